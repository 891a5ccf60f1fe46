"""Chunks that arrive alone: told exactly where a parser would tell the same, and never otherwise."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.engines.answer_parser import AnswerParser
from router.engines.whole_chunks import body_of

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNK = b"5\r\nhello\r\n"


@pytest.mark.parametrize("size", [1, 9, 10, 15, 16, 17, 254, 255, 256, 257, 4095, 4096, 60_000])
def test_one_plain_chunk_is_told(size: int) -> None:
    body = b"x" * size
    assert body_of(b"%x\r\n%b\r\n" % (size, body)) == body


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\r\n",
        b"0\r\n\r\n",
        b"5\r\nhell\r\n",
        b"5\r\nhello!\r\n",
        b"5\r\nhello\r\n0\r\n\r\n",
        b"+5\r\nhello\r\n",
        b"05\r\nhello\r\n",
        b"5;a\r\nhello\r\n",
        b"5 \r\nhello\r\n",
        b"A\r\n" + 10 * b"x" + b"\r\n",
        b"5\r\nhello\n\n",
        b"20000\r\n" + 131_072 * b"x" + b"\r\n",
    ],
)
def test_anything_else_is_for_the_parser(data: bytes) -> None:
    assert body_of(data) is None


@given(st.binary(max_size=80))
def test_what_is_told_is_what_the_parser_reads(data: bytes) -> None:
    body = body_of(data)
    parser = AnswerParser()
    parser.feed(HEAD + CHUNK + data)
    if body is not None:
        assert parser.is_between_chunks
        assert parser.take() == b"hello" + body


@given(st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=4), st.data())
def test_a_chunk_may_begin_only_where_the_last_one_has_ended(
    bodies: list[bytes], data: st.DataObject
) -> None:
    """Where a line end is torn apart, the parser may not see it: then nothing is passed by it."""
    extension = data.draw(st.sampled_from([b"", b";a", b';a="b"']))
    wire = b"".join(b"%x%b\r\n%b\r\n" % (len(body), extension, body) for body in bodies)
    ends = {0}
    for body in bodies:
        ends.add(max(ends) + len(b"%x%b\r\n%b\r\n" % (len(body), extension, body)))
    at = data.draw(st.sampled_from(sorted(ends)) | st.integers(0, len(wire)))
    split = data.draw(st.integers(0, at))
    parser = AnswerParser()
    for part in (HEAD + CHUNK, wire[:split], wire[split:at]):
        if part:
            parser.feed(part)
    if split == at or split + 2 <= at:
        assert parser.is_between_chunks is (at in ends)
    else:
        assert at in ends or not parser.is_between_chunks


def test_not_before_the_body_nor_behind_its_end() -> None:
    parser = AnswerParser()
    told = []
    for part in (HEAD, CHUNK, b"0\r\n", b"\r\n"):
        parser.feed(part)
        told.append(parser.is_between_chunks)
    assert parser.is_complete
    assert told == [False, True, False, False]
