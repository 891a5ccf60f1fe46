"""What goes out, byte for byte."""

import pytest

from router.engines.request_head import destination, request_head
from router.engines.upstream import Call, Unsendable

TO = destination("http://engine:8000")


@pytest.mark.parametrize(
    ("origin", "host", "port", "is_tls", "authority"),
    [
        ("http://engine", "engine", 80, False, "engine"),
        ("http://engine:80", "engine", 80, False, "engine"),
        ("https://engine:443/", "engine", 443, True, "engine"),
        ("https://engine:80", "engine", 80, True, "engine:80"),
        ("HTTP://Engine.Example.:8000", "engine.example.", 8000, False, "engine.example.:8000"),
        ("http://[::1]:8000", "::1", 8000, False, "[::1]:8000"),
        ("http://[fe80::1%eth0]:8000", "fe80::1%eth0", 8000, False, "[fe80::1]:8000"),
        ("http://10.0.0.1:8000", "10.0.0.1", 8000, False, "10.0.0.1:8000"),
    ],
)
def test_destinations(origin: str, host: str, port: int, is_tls: bool, authority: str) -> None:
    found = destination(origin)
    assert (found.host, found.port, found.is_tls, found.authority) == (host, port, is_tls, authority)


@pytest.mark.parametrize(
    "origin",
    [
        "",
        "engine:8000",
        "ftp://engine",
        "http://",
        "http://a:0",
        "http://a:99999",
        "http://u:p@a",
        "http://a/b",
    ],
)
def test_what_is_no_origin(origin: str) -> None:
    with pytest.raises(Unsendable):
        destination(origin)


def test_a_head_of_a_request_with_a_body() -> None:
    call = Call("POST", "/v1/a?b", (("X-A", "1"), ("x-a", "2")), b"{}")
    assert request_head(TO, call) == (
        b"POST /v1/a?b HTTP/1.1\r\nhost: engine:8000\r\nX-A: 1\r\nx-a: 2\r\n"
        b"accept-encoding: identity\r\ncontent-length: 2\r\n\r\n"
    )


@pytest.mark.parametrize(
    ("method", "body", "length"),
    [
        ("GET", b"", None),
        ("HEAD", b"", None),
        ("GET", b"a", b"1"),
        ("DELETE", b"", b"0"),
        ("POST", b"", b"0"),
    ],
)
def test_lengths(method: str, body: bytes, length: bytes | None) -> None:
    head = request_head(TO, Call(method, "/", body=body))
    assert (b"content-length: " in head) is (length is not None)
    if length is not None:
        assert head.endswith(b"content-length: " + length + b"\r\n\r\n")


@pytest.mark.parametrize(
    ("value", "wire"),
    [
        ("\xe9\xff", b"\xe9\xff"),
        ("漢", "漢".encode()),
        ("é".encode().decode("latin-1"), "é".encode()),
        ("", b""),
    ],
)
def test_values_go_out_as_the_bytes_they_were(value: str, wire: bytes) -> None:
    assert b"\r\nx-a: " + wire + b"\r\nx-b: \xe9\r\n" in request_head(
        TO, Call("GET", "/", (("x-a", value), ("x-b", "\xe9")))
    )


@pytest.mark.parametrize(
    "call",
    [
        Call("GET", "/", (("x-a: b\r\nx", "c"),)),
        Call("GET", "/", (("host: other", "c"),)),
        Call("GET", "/", (("", "c"),)),
        Call("GET", "/", (("x", "\ud800"),)),
        Call("GET", "/", (("x", "a\x7f"),)),
        Call("GET", "/#a"),
        Call("GET", "/é"),
        Call("GET", "*"),
        Call("", "/"),
    ],
)
def test_what_cannot_be_sent(call: Call) -> None:
    with pytest.raises(Unsendable):
        request_head(TO, call)


def test_ours_to_set_is_not_taken_from_the_caller() -> None:
    given = (
        ("Host", "other"),
        ("Connection", "close"),
        ("CONTENT-LENGTH", "9"),
        ("transfer-encoding", "chunked"),
    )
    assert request_head(TO, Call("POST", "/", given, b"a")) == request_head(TO, Call("POST", "/", (), b"a"))
