"""Tenants: no caller gets another's, and no credential is kept."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.http.identity import ANONYMOUS, tenant_of


def pairs(headers: dict[str, str]) -> list[tuple[str, str]]:
    return list(headers.items())


def tenant_by(header: str, value: str) -> bytes | None:
    return tenant_of([(header, value)], "")


TEXTS = st.text(st.characters(max_codepoint=255), max_size=20)


def test_the_credential_names_the_tenant() -> None:
    one = tenant_of(pairs({"authorization": "Bearer a"}), "")
    assert one == tenant_of(pairs({"authorization": "Bearer a", "x-session-id": "s", "x-tenant": "b"}), "")
    assert one != tenant_of(pairs({"authorization": "Bearer b"}), "")
    assert one != ANONYMOUS


@pytest.mark.parametrize("name", ["authorization", "x-api-key", "api-key"])
def test_every_usual_place_of_a_credential_counts(name: str) -> None:
    assert tenant_of(pairs({name: "a"}), "") == tenant_of(pairs({"authorization": "a"}), "")
    assert tenant_of(pairs({name: ""}), "") == ANONYMOUS


@pytest.mark.parametrize("headers", [{}, {"x-session-id": "a"}, {"cookie": "a"}, {"x-tenant": "a"}])
def test_callers_without_a_credential_are_one_tenant(headers: dict[str, str]) -> None:
    assert tenant_of(pairs(headers), "") == ANONYMOUS


def test_the_order_of_places_is_fixed() -> None:
    both = {"x-api-key": "b", "authorization": "a"}
    assert tenant_of(pairs(both), "") == tenant_of(pairs({"authorization": "a"}), "")


def test_with_an_identity_header_only_that_header_counts() -> None:
    one = tenant_of(pairs({"x-tenant": "a", "authorization": "Bearer 1"}), "x-tenant")
    assert one == tenant_of(pairs({"x-tenant": "a", "authorization": "Bearer 2"}), "x-tenant")
    assert one == tenant_of(pairs({"x-tenant": "a"}), "x-tenant")
    assert one != tenant_of(pairs({"x-tenant": "b", "authorization": "Bearer 1"}), "x-tenant")


@pytest.mark.parametrize("headers", [{}, {"x-tenant": ""}, {"authorization": "Bearer a"}, {"x-tenants": "a"}])
def test_a_caller_that_no_gateway_named_has_no_identity(headers: dict[str, str]) -> None:
    assert tenant_of(pairs(headers), "x-tenant") is None


@pytest.mark.parametrize(("name", "identity_header"), [("x-tenant", "x-tenant"), ("authorization", "")])
@pytest.mark.parametrize("second", ["a", "b", ""])
def test_a_header_that_came_twice_names_nobody(name: str, identity_header: str, second: str) -> None:
    assert tenant_of([(name, "a"), (name, second)], identity_header) is None
    assert tenant_of([(name, second), (name, "a")], identity_header) is None


def test_a_named_tenant_is_never_a_credentials_tenant() -> None:
    assert tenant_of(pairs({"x-tenant": "a"}), "x-tenant") != tenant_of(pairs({"authorization": "a"}), "")
    assert tenant_of(pairs({"credential": "a"}), "credential") is not None
    assert tenant_of(pairs({"a": "b"}), "a") != tenant_of(pairs({"c": "b"}), "c")


def test_a_tenant_is_a_short_digest_and_shows_nothing() -> None:
    for headers, name in (
        ({"authorization": "Bearer secret"}, ""),
        ({"x-tenant": "secret"}, "x-tenant"),
        ({}, ""),
    ):
        tenant = tenant_of(pairs(headers), name)
        assert tenant is not None
        assert len(tenant) == 16
        assert b"secret" not in tenant


@given(TEXTS, TEXTS)
def test_equal_credentials_and_only_they_are_equal_tenants(one: str, other: str) -> None:
    same = tenant_by("authorization", one) == tenant_by("authorization", other)
    assert same == (one == other)


@given(TEXTS, TEXTS, TEXTS, TEXTS)
def test_no_header_name_and_value_can_be_mistaken_for_others(a: str, b: str, c: str, d: str) -> None:
    """Names of headers hold no NUL, so that the two parts of what is digested cannot be shifted."""
    a, c = a.replace("\0", "") or "x", c.replace("\0", "") or "x"
    one, other = tenant_of(pairs({a: b}), a), tenant_of(pairs({c: d}), c)
    if one is not None and other is not None:
        assert (one == other) == ((a, b) == (c, d))
