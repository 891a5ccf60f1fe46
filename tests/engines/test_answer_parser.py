"""What is decided beyond httptools: where an answer ends, what is none, and what may follow."""

import pytest

from router.engines.answer_parser import AnswerParser

HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


def fed(*pieces: bytes) -> AnswerParser:
    parser = AnswerParser()
    for piece in pieces:
        parser.feed(piece)
    return parser


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/2.0 200 OK\r\n\r\n",
        b"HTTP/0.9 200 OK\r\n\r\n",
        b"HTTP/1.1 000 OK\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\nabc",
        b"HTTP/1.1 150 What\r\nContent-Length: 2\r\n\r\nab" + HEAD + b"\r\n",
        HEAD + b"Transfer-Encoding: gzip\r\n\r\n",
        HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n",
        HEAD + b"Transfer-Encoding: chun\r\n ked\r\n\r\n",
        HEAD + b"Content-Length : 9\r\n\r\nab",
        HEAD + b"Content-Length: 2, 2\r\n\r\nab",
        HEAD + b"Content-Length: -1\r\n\r\nab",
        HEAD + b"X A: 2\r\n\r\nab",
        CHUNKED + b"-1\r\n",
        CHUNKED + b"fffffffffffffffff\r\n",
        CHUNKED + b"2\r\nabc\r\n",
    ],
)
def test_what_is_no_answer(said: bytes) -> None:
    parser = fed(said)
    parser.feed_end()
    assert parser.fault is not None
    assert not parser.is_complete
    parser.feed(HEAD + b"Content-Length: 0\r\n\r\n")
    assert not parser.is_complete


@pytest.mark.parametrize("value", [b"a\x01b", b"a\x7fb", b"a\tb", b"\xe9\xff"])
def test_values_come_as_the_bytes_they_are(value: bytes) -> None:
    parser = fed(HEAD + b"X-A: " + value + b"\r\nContent-Length: 2\r\n\r\nok")
    assert parser.is_complete
    assert parser.headers[0] == ("x-a", value.decode("latin-1"))


@pytest.mark.parametrize(
    "start",
    [
        HEAD + b"X: ",
        b"HTTP/1.1 200 ",
        CHUNKED + b"3\r\nabc\r\n3;a=",
        CHUNKED + b"3\r\nabc\r\n0\r\nX: ",
        b"\r\n",
    ],
)
def test_nothing_goes_on_for_ever(start: bytes) -> None:
    filling = b"\r\n" * 500 if start == b"\r\n" else b"a" * 1_000
    parser = fed(start, *[filling] * 100)
    assert parser.fault is not None
    assert parser.take() in (b"", b"abc")


@pytest.mark.parametrize("framing", ["head", "trailers"])
def test_headers_and_trailers_are_bounded_in_number_and_size(framing: str) -> None:
    def said(fields: bytes) -> AnswerParser:
        if framing == "head":
            return fed(HEAD + fields + b"Content-Length: 0\r\n\r\n")
        return fed(CHUNKED + b"0\r\n" + fields + b"\r\n")

    few = b"".join(b"x-%d: a\r\n" % number for number in range(100))
    many = b"".join(b"x-%d: a\r\n" % number for number in range(200))
    assert said(few + b"x-long: " + b"a" * 16_000 + b"\r\n").is_complete
    assert said(many).fault is not None
    assert said(b"x-long: " + b"a" * 17_000 + b"\r\n").fault is not None


def test_interim_answers_leave_nothing_behind() -> None:
    early = b"HTTP/1.1 103 Early\r\nLink: </a>\r\nTransfer-Encoding: chunked\r\n\r\n"
    parser = fed(early * 3, HEAD, b"X: 1\r\n\r\nabc")
    assert (parser.status, parser.headers, parser.is_complete) == (200, [("x", "1")], False)
    parser.feed_end()
    assert (parser.is_complete, parser.take()) == (True, b"abc")


def test_any_number_of_interim_answers_may_come() -> None:
    parser = fed(*[b"HTTP/1.1 102 Processing\r\n\r\n"] * 10_000, HEAD + b"Content-Length: 0\r\n\r\n")
    assert parser.is_complete


@pytest.mark.parametrize(
    ("said", "may_reuse"),
    [
        (HEAD + b"Content-Length: 2\r\n\r\nok", True),
        (HEAD + b"Connection: close\r\nContent-Length: 2\r\n\r\nok", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", False),
        (b"HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 2\r\n\r\nok", True),
        (HEAD + b"Content-Length: 2\r\n\r\nokHTTP", False),
        (HEAD + b"Upgrade: h2c\r\nConnection: upgrade\r\nContent-Length: 2\r\n\r\nok", True),
        (CHUNKED + b"2\r\nok\r\n0\r\n\r\n", True),
        (CHUNKED + b"2\r\nok\r\n0\r\n\r\n0\r\n\r\n", False),
    ],
)
def test_what_may_be_used_again(said: bytes, may_reuse: bool) -> None:
    parser = fed(said)
    assert (parser.is_complete, parser.may_reuse, parser.fault) == (True, may_reuse, None)
    assert parser.take() == b"ok"


def test_a_fault_keeps_the_body_before_it_and_quotes_nothing() -> None:
    parser = fed(CHUNKED + b"3\r\nabc\r\nSECRET\r\n")
    assert parser.take() == b"abc"
    assert parser.fault is not None
    assert "SECRET" not in parser.fault
