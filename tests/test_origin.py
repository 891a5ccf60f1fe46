import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.origin import parse_origin


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
