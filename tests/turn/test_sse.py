"""Framing: however a stream is split, the same events come out, and not one byte is lost or added."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.turn.sse import Event, EventTooLarge, Framer, ends_event

BOM = b"\xef\xbb\xbf"


def frame(*chunks: bytes, max_event_bytes: int = 1 << 20) -> tuple[list[Event], bytes]:
    framer = Framer(max_event_bytes=max_event_bytes)
    events = [event for chunk in chunks for event in framer.feed(chunk)]
    return events, framer.tail


def whole(events: list[Event]) -> list[bytes]:
    """The events' bytes, each with the remainder of its line end."""
    merged: list[bytes] = []
    for event in events:
        if event.is_remainder:
            merged[-1] += event.raw
        else:
            merged.append(event.raw)
    return merged


def datas(events: list[Event]) -> list[bytes | None]:
    return [event.data for event in events if not event.is_remainder]


def reference(stream: bytes) -> tuple[list[bytes | None], bytes]:
    """The standard's algorithm, byte by byte: data of each event (None without a data line), and the rest."""
    at = len(BOM) if stream.startswith(BOM) else 0
    found: list[bytes | None] = []
    values: list[bytes] | None = None
    done = 0
    line_start = at
    while at < len(stream):
        if stream[at] not in b"\r\n":
            at += 1
            continue
        line = stream[line_start:at]
        at += 2 if stream[at : at + 2] == b"\r\n" else 1
        line_start = at
        if not line:
            found.append(None if values is None else b"\n".join(values))
            values, done = None, at
            continue
        name, _, value = line.partition(b":")
        if name == b"data":
            values = [*(values or []), value[1:] if value.startswith(b" ") else value]
    return found, stream[done:]


LINES = st.sampled_from(
    [
        b"data: {}",
        b"data:x",
        b"data:  two",
        b"data",
        b"data:",
        b"data: a:b",
        b"data : no",
        b"Data: no",
        b"datax: no",
        b": comment",
        b":",
        b"event: error",
        b"id: 1",
        "data: 汉字 😀 \u2028 \u0085 \x0b\x0c\x1c".encode(),
        b"\xff\xfe",
        BOM + b"data: late mark",
        b"",
        b"",
    ]
)
ENDS = st.sampled_from([b"\n", b"\n", b"\r\n", b"\r"])


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    lines = draw(st.lists(st.tuples(LINES, ENDS), max_size=14))
    start = draw(st.sampled_from([b"", b"", BOM]))
    return (
        start
        + b"".join(line + end for line, end in lines)
        + draw(st.sampled_from([b"", b"data: ha", b"\xe6\xb1"]))
    )


@st.composite
def split(draw: st.DrawFn, stream: bytes) -> list[bytes]:
    cuts = sorted(draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    return [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]


@settings(max_examples=400)
@given(st.data())
def test_events_are_those_of_the_standard_however_the_stream_is_split(data: st.DataObject) -> None:
    stream = data.draw(streams())
    expected, rest = reference(stream)
    for chunks in ([stream], [bytes([byte]) for byte in stream], data.draw(split(stream))):
        events, tail = frame(*chunks)
        assert datas(events) == expected
        assert tail == rest if stream != BOM else tail in (b"", BOM)
        assert b"".join(event.raw for event in events) + tail == stream
        assert whole(events) == whole(frame(stream)[0])


SAMPLE = (
    BOM
    + 'data: {"a":"汉字😀"}\r\n\r\n: hi\n\n'.encode()
    + b"data: 1\rdata: 2\r\rid: 7\r\ndata:x\n\r\n\r\rdata: [DONE]\n\n"
)


def test_every_split_of_a_sample_into_two() -> None:
    expected = ['{"a":"汉字😀"}'.encode(), None, b"1\n2", b"x", None, None, b"[DONE]"]
    assert reference(SAMPLE) == (expected, b"")
    for cut in range(len(SAMPLE) + 1):
        events, tail = frame(SAMPLE[:cut], SAMPLE[cut:])
        assert datas(events) == expected
        assert b"".join(event.raw for event in events) == SAMPLE
        assert tail == b""


def test_an_event_that_ends_in_a_cr_does_not_wait_for_an_lf() -> None:
    framer = Framer()
    steps = [
        (b"data: a\r", [], False),
        (b"\r", [Event(b"data: a\r\r")], False),
        (b"\n", [Event(b"\n", 1)], True),
        (b"\n", [Event(b"\n")], True),
    ]
    for chunk, events, at_rest in steps:
        assert framer.feed(chunk) == events
        assert framer.at_rest is at_rest
    assert Event(b"\n", 1).is_remainder
    assert not Event(b"\n").is_remainder
    assert Event(b"\n").data is None


def test_the_two_bytes_of_a_crlf_are_one_line_end() -> None:
    framer = Framer()
    assert framer.feed(b"data: a\r") == []
    assert framer.feed(b"\n") == []
    assert framer.feed(b"data: b\r\n") == []
    assert [event.data for event in framer.feed(b"\r")] == [b"a\nb"]
    assert [event.is_remainder for event in framer.feed(b"\ndata: c\n\n")] == [True, False]


def test_a_whole_chunk_is_not_copied() -> None:
    chunk = b"data: {}\n\n"
    framer = Framer()
    assert framer.feed(chunk)[0].raw is chunk
    assert framer.at_rest


def test_at_rest_says_that_nothing_is_pending() -> None:
    framer = Framer()
    for chunk, rest in (
        (b"", False),
        (b"data: 1\n", False),
        (b"\n", True),
        (b"x", False),
        (b"\r\r", False),
        (b"a\n\n", True),
    ):
        framer.feed(chunk)
        assert framer.at_rest is rest
    framer.feed(b"")
    assert framer.at_rest


@pytest.mark.parametrize(
    ("chunk", "expected"),
    [
        (b"data: 1\n\n", True),
        (b"data: 1\r\n\r\n", True),
        (b"data: 1\r\n\n", True),
        (b"\n\n", True),
        (b"data: 1\n", False),
        (b"data: 1\r\n", False),
        (b"data: 1\r\r", False),
        (b"", False),
    ],
)
def test_ends_event(chunk: bytes, expected: bool) -> None:
    assert ends_event(chunk) is expected
    if expected:
        assert frame(chunk)[1] == b""


def test_a_byte_order_mark_counts_at_the_start_only() -> None:
    assert datas(frame(BOM + b"data: 1\n\n" + BOM + b"data: 2\n\n")[0]) == [b"1", None]
    for cut in range(len(BOM) + 1):
        stream = BOM + b"\ndata: 1\n\n"
        events, _ = frame(stream[:cut], stream[cut:])
        assert datas(events) == [None, b"1"]
        assert b"".join(event.raw for event in events) == stream


def test_spans_point_at_the_values() -> None:
    (event,), _ = frame(b": c\r\ndata: one\ndata:two\rdata\nid: 3\n\n")
    assert [event.raw[a:b] for a, b in event.data_spans()] == [b"one", b"two", b""]
    assert event.data == b"one\ntwo\n"


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_the_size_of_an_event_is_bounded_however_it_comes(size: int) -> None:
    fits = b"data: " + b"x" * 92 + b"\n\n"
    too_large = b"data: " + b"x" * 93 + b"\n\n"
    stream = fits * 3 + too_large
    chunks = [stream[at : at + size] for at in range(0, len(stream), size)]
    assert frame(fits * 3, max_event_bytes=100)[1] == b""
    with pytest.raises(EventTooLarge, match="100 bytes") as caught:
        frame(*chunks, max_event_bytes=100)
    assert caught.value.limit_bytes == 100


def test_an_endless_event_is_not_collected() -> None:
    framer = Framer(max_event_bytes=1000)
    for _ in range(10):
        assert framer.feed(b"x" * 100) == []
    with pytest.raises(EventTooLarge):
        framer.feed(b"x")


def test_a_limit_below_one_byte_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Framer(max_event_bytes=0)


def test_a_large_event_in_small_chunks_is_scanned_once() -> None:
    stream = b"data: " + b"x" * 400_000 + b"\n\n"
    framer = Framer()
    events = [event for at in range(0, len(stream), 7) for event in framer.feed(stream[at : at + 7])]
    assert [event.raw for event in events] == [stream]
