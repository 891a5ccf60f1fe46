"""Tenants: no caller gets another's, and no credential is kept."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.http.identity import ANONYMOUS, tenant_of

TEXTS = st.text(st.characters(max_codepoint=255), max_size=20)


def test_the_credential_names_the_tenant() -> None:
    one = tenant_of({"authorization": "Bearer a"}, "")
    assert one == tenant_of({"authorization": "Bearer a", "x-session-id": "s", "x-tenant": "b"}, "")
    assert one != tenant_of({"authorization": "Bearer b"}, "")
    assert one != ANONYMOUS


@pytest.mark.parametrize("name", ["authorization", "x-api-key", "api-key"])
def test_every_usual_place_of_a_credential_counts(name: str) -> None:
    assert tenant_of({name: "a"}, "") == tenant_of({"authorization": "a"}, "")
    assert tenant_of({name: ""}, "") == ANONYMOUS


@pytest.mark.parametrize("headers", [{}, {"x-session-id": "a"}, {"cookie": "a"}, {"x-tenant": "a"}])
def test_callers_without_a_credential_are_one_tenant(headers: dict[str, str]) -> None:
    assert tenant_of(headers, "") == ANONYMOUS


def test_the_order_of_places_is_fixed() -> None:
    both = {"x-api-key": "b", "authorization": "a"}
    assert tenant_of(both, "") == tenant_of({"authorization": "a"}, "")


def test_with_an_identity_header_only_that_header_counts() -> None:
    one = tenant_of({"x-tenant": "a", "authorization": "Bearer 1"}, "x-tenant")
    assert one == tenant_of({"x-tenant": "a", "authorization": "Bearer 2"}, "x-tenant"), "keys may rotate"
    assert one == tenant_of({"x-tenant": "a"}, "x-tenant")
    assert one != tenant_of({"x-tenant": "b", "authorization": "Bearer 1"}, "x-tenant")


@pytest.mark.parametrize("headers", [{}, {"x-tenant": ""}, {"authorization": "Bearer a"}, {"x-tenants": "a"}])
def test_a_caller_that_no_gateway_named_has_no_identity(headers: dict[str, str]) -> None:
    assert tenant_of(headers, "x-tenant") is None


def test_a_named_tenant_is_never_a_credentials_tenant() -> None:
    assert tenant_of({"x-tenant": "a"}, "x-tenant") != tenant_of({"authorization": "a"}, "")
    assert tenant_of({"credential": "a"}, "credential") is not None
    assert tenant_of({"a": "b"}, "a") != tenant_of({"c": "b"}, "c")


def test_a_tenant_is_a_short_digest_and_shows_nothing() -> None:
    for headers, name in (
        ({"authorization": "Bearer secret"}, ""),
        ({"x-tenant": "secret"}, "x-tenant"),
        ({}, ""),
    ):
        tenant = tenant_of(headers, name)
        assert tenant is not None
        assert len(tenant) == 16
        assert b"secret" not in tenant


@given(TEXTS, TEXTS)
def test_equal_credentials_and_only_they_are_equal_tenants(one: str, other: str) -> None:
    assert (tenant_of({"authorization": one}, "") == tenant_of({"authorization": other}, "")) == (
        one == other
    )


@given(TEXTS, TEXTS, TEXTS, TEXTS)
def test_no_header_name_and_value_can_be_mistaken_for_others(a: str, b: str, c: str, d: str) -> None:
    """Names of headers hold no NUL, so that the two parts of what is digested cannot be shifted."""
    a, c = a.replace("\0", "") or "x", c.replace("\0", "") or "x"
    one, other = tenant_of({a: b}, a), tenant_of({c: d}, c)
    if one is not None and other is not None:
        assert (one == other) == ((a, b) == (c, d))
