import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.origin import at_port, parse_dns, parse_origin, parse_ranked_origin


@pytest.mark.parametrize(
    ("given_text", "kept"),
    [
        ("http://P.Example:8100/", "http://p.example:8100"),
        ("HTTPS://p", "https://p"),
        ("https://p:443", "https://p"),
        ("http://p:443", "http://p:443"),
        ("http://10.0.0.1:80", "http://10.0.0.1"),
        ("http://[FE80::1]:8100", "http://[fe80::1]:8100"),
        ("http://[::1]", "http://[::1]"),
        ("http://under_score:1", "http://under_score:1"),
        ("http://p.svc.cluster.local.:8100", "http://p.svc.cluster.local.:8100"),
    ],
)
def test_origins_are_kept_in_one_spelling(given_text: str, kept: str) -> None:
    assert parse_origin(given_text) == kept


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "begins with http:// or https://"),
        ("p:8100", "begins with http:// or https://"),
        ("ftp://p:8100", "begins with http:// or https://"),
        ("http://", "needs a host name"),
        ("http://:8100", "needs a host name"),
        ("http://p q", "needs a host name"),
        ("http://-p", "needs a host name"),
        ("http://p:0", "port is between 1 and 65535"),
        ("http://p:70000", "not a valid origin"),
        ("http://p:x", "not a valid origin"),
        ("http://[::1:80", "not a valid origin"),
        ("http://::1:80", "not a valid origin"),
        ("http://[::zz]:80", "not a valid origin"),
        ("http://p:8100/v1", "has no path"),
        ("http://p:8100?", "no query or fragment"),
        ("http://p:8100#", "no query or fragment"),
        ("http://user:secret@p:8100", "no user and password"),
        ("http://@p:8100", "no user and password"),
    ],
)
def test_anything_else_is_refused_without_being_quoted(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint) as raised:
        parse_origin(text)
    assert "secret" not in str(raised.value)


@given(st.text(alphabet="http:/s[]@?#.-_%0189ap \t\n\u00fc"), st.booleans())
def test_what_is_taken_stays_as_it_is_when_read_again(text: str, bare: bool) -> None:
    try:
        kept = parse_origin(text if bare else f"http://{text}")
    except ValueError:
        return
    assert parse_origin(kept) == kept
    assert not set(kept) & set("@?# \t\n")


@pytest.mark.parametrize(
    ("text", "origin", "rank"),
    [
        ("http://P:8000", "http://p:8000", None),
        ("http://P:8000@0", "http://p:8000", 0),
        ("https://p@12/", "https://p", 12),
        ("http://[::1]:80@3", "http://[::1]", 3),
    ],
)
def test_a_rank_stands_behind_its_origin(text: str, origin: str, rank: int | None) -> None:
    assert parse_ranked_origin(text) == (origin, rank)


@pytest.mark.parametrize(
    "text", ["http://p:8000@", "http://p:8000@-1", "http://p:8000@12345", "http://u:s@p@1", "http://u:s@1.2"]
)
def test_what_is_no_rank_is_refused_without_being_quoted(text: str) -> None:
    with pytest.raises(ValueError, match=r".+") as raised:
        parse_ranked_origin(text)
    assert text not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("dns://Engines.local:8000", "engines.local", 8000),
        ("DNS://e:80/", "e", 80),
        ("dns://[::1]:1", "::1", 1),
    ],
)
def test_names(text: str, host: str, port: int) -> None:
    assert parse_dns(text) == (host, port)


@pytest.mark.parametrize(
    "text", ["dns://e", "dns:e:1", "http://e:1", "dns://", "dns://e:1/x", "dns://u@e:1", "dns://[::1]"]
)
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_dns(text)


def test_hosts_and_ports_make_origins() -> None:
    assert at_port("10.0.0.1", 8000) == "http://10.0.0.1:8000"
    assert at_port("fd00::1", 443, scheme="https") == "https://[fd00::1]"
