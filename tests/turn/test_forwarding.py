"""What goes on within a callback, and what the turn's own task has to be woken for."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from router.bench.engine import chunk as framed
from router.engines.whole_chunks import body_of
from router.turn.forwarding import Forwarding
from router.turn.record import Record
from router.turn.request import Endpoint, read_request
from router.turn.tap import Tap, TapSettings
from tests.e2e.world import RecordingClient

FIRST = b'data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}]}\n\n'
SECOND = FIRST.replace(b'"x"', b'"y"')
DONE = b"data: [DONE]\n\n"


class Framed(RecordingClient):
    """A client that gets chunks where there are any."""

    def put(self, data: bytes, chunk: bytes | None = None) -> bool:
        return super().put(chunk or data)


def forwarding(client: RecordingClient) -> tuple[Forwarding, Record]:
    ticks = iter(range(100))

    def now() -> float:
        return float(next(ticks))

    request = read_request(Endpoint.CHAT, "/v1/chat/completions", (), b"{}", turn_id="t")
    record = Record(request, now, now())
    return Forwarding(client, Tap(TapSettings()), record, now, waited_from_s=now()), record


@dataclass
class Flow:
    write_paused: bool = False


@dataclass
class Wire:
    """A connection to a client that keeps what is written."""

    is_gone: bool = False
    flow: Flow = field(default_factory=Flow)
    written: bytearray = field(default_factory=bytearray)

    @property
    def write(self) -> Callable[[bytes], object]:
        return self.written.extend


def with_shortcut() -> tuple[Forwarding, Wire]:
    """A stream whose next event may take the shortcut."""
    wire = Wire()
    sink, _ = forwarding(RecordingClient(chunk_writer=wire))
    for event in (FIRST, SECOND, SECOND):
        assert sink.take(event, framed(event))
    assert body_of(framed(FIRST)) == FIRST, "chunks of that size are known"
    return sink, wire


def has_begun(record: Record) -> bool:
    return record.first_byte_s is not None


def is_held(sink: Forwarding) -> bool:
    return sink.is_held


def test_a_piece_that_passes_unchanged_goes_on_in_its_own_framing() -> None:
    client = Framed()
    sink, record = forwarding(client)
    assert sink.take(FIRST, None)
    assert record.first_byte_s is not None
    assert sink.take(SECOND, b"framed:" + SECOND)
    assert bytes(client.body) == FIRST + b"framed:" + SECOND


def test_a_piece_that_is_changed_does_not() -> None:
    client = Framed()
    sink, _ = forwarding(client)
    assert sink.take(FIRST, None)
    secret = FIRST[:-3] + b',"kv_transfer_params":{"remote_host":"10.0.0.7"}}\n\n'
    assert sink.take(secret, b"framed:" + secret)
    assert bytes(client.body) == FIRST + FIRST


def test_half_an_event_is_no_first_byte() -> None:
    client = RecordingClient()
    sink, record = forwarding(client)
    assert sink.take(FIRST[:9], None)
    assert not has_begun(record)
    assert sink.take(FIRST[9:], None)
    assert has_begun(record)
    assert bytes(client.body) == FIRST


def test_the_end_is_kept_back_until_the_turn_is_stored() -> None:
    client = RecordingClient()
    sink, _ = forwarding(client)
    assert sink.take(FIRST, None)
    assert not sink.take(DONE, b"framed")
    assert is_held(sink)
    assert bytes(client.body) == FIRST
    assert sink.let_go()
    assert not is_held(sink)
    assert bytes(client.body) == FIRST + DONE
    assert sink.take(b": bye\n\n", None), "what follows is held no more"


def test_a_client_that_falls_behind_is_waited_for() -> None:
    client = RecordingClient(reads_every_s=1.0)
    sink, _ = forwarding(client)
    assert not sink.take(FIRST, None)
    assert not is_held(sink)
    assert bytes(client.body) == FIRST, "it has it all the same"


def test_the_wait_for_a_piece_began_with_the_one_before() -> None:
    sink, _ = forwarding(RecordingClient())
    began_s = sink.waited_from_s
    sink.take(FIRST, None)
    assert sink.waited_from_s == began_s
    sink.take(SECOND, None)
    first_read_s = sink.waited_from_s
    sink.take(DONE, None)
    assert began_s < first_read_s < sink.waited_from_s


def test_an_event_like_those_before_it_takes_the_shortcut() -> None:
    sink, wire = with_shortcut()
    assert sink.shortcut(framed(SECOND))
    assert sink.shortcut(framed(FIRST))
    assert bytes(wire.written) == framed(SECOND) + framed(FIRST)


def test_the_wait_for_an_event_began_with_the_one_that_took_the_shortcut() -> None:
    sink, _ = with_shortcut()
    before_s = sink.waited_from_s
    assert sink.shortcut(framed(SECOND))
    assert sink.shortcut(framed(SECOND))
    assert before_s < sink.waited_from_s
    since_s = sink.waited_from_s
    assert sink.take(SECOND, None)
    assert since_s < sink.waited_from_s


def test_nothing_takes_the_shortcut_to_a_client_that_has_left_or_fallen_behind() -> None:
    sink, wire = with_shortcut()
    wire.is_gone = True
    assert not sink.shortcut(framed(SECOND))
    wire.is_gone = False
    wire.flow.write_paused = True
    assert not sink.shortcut(framed(SECOND))
    wire.flow.write_paused = False
    assert sink.shortcut(framed(SECOND))


def test_what_is_no_such_event_goes_the_usual_way() -> None:
    sink, wire = with_shortcut()
    chunk = framed(SECOND)
    for other in (
        chunk[:-1],
        chunk + chunk,
        b"0\r\n\r\n",
        chunk.replace(b"null", b'"no"'),
        chunk.replace(b"y", b'"'),
        chunk.replace(b"y", b"\n"),
        framed(SECOND.replace(b'"y"', b'"\\u006bv"')),
        framed(DONE),
        framed(SECOND + DONE),
    ):
        assert not sink.shortcut(other)
    assert not wire.written


def test_nothing_takes_the_shortcut_in_the_midst_of_an_event() -> None:
    sink, _ = with_shortcut()
    assert sink.take(FIRST[:9], None)
    assert not sink.shortcut(framed(SECOND))


def test_nothing_takes_the_shortcut_where_token_ids_are_read() -> None:
    sink = Forwarding(
        RecordingClient(chunk_writer=Wire()),
        Tap(TapSettings(lift_token_ids=True)),
        forwarding(RecordingClient())[1],
        lambda: 0.0,
        0.0,
    )
    for _ in range(3):
        assert sink.take(FIRST, framed(FIRST))
    assert not sink.shortcut(framed(FIRST))


TEXTS = st.text(max_size=8) | st.sampled_from(
    ("", " a", '"', "\\", "\n", "\u00e9", "\u2028", '{"kv_transfer_params":{}}', "[DONE]", '"error"')
)
EVENTS = st.one_of(
    TEXTS.map(lambda text: {"delta": {"content": text}, "finish_reason": None}),
    st.just({"delta": {"content": "x"}, "finish_reason": None}),
    st.just({"delta": {}, "finish_reason": "stop"}),
    st.just({"delta": {"content": ""}, "finish_reason": None, "kv_transfer_params": {"a": 1}}),
)
PIECES = st.lists(
    st.tuples(EVENTS, st.booleans(), st.sampled_from(("{}", '{"kv_transfer_params":{"remote_port":1}}', "")))
)


@given(pieces=PIECES, cut=st.integers(1, 40), is_cut=st.sets(st.integers(0, 20)))
def test_a_stream_is_the_same_with_the_shortcut_and_without(
    pieces: list[tuple[dict[str, object], bool, str]], cut: int, is_cut: set[int]
) -> None:
    client, plain = Framed(), Framed()
    wire = Wire(written=client.body)
    client.chunk_writer = wire
    short, usual = forwarding(client)[0], forwarding(plain)[0]
    usual_event: dict[str, object] = {"delta": {"content": "x"}, "finish_reason": None}
    for number, (choice, ascii_only, more) in enumerate([(usual_event, True, "")] * 3 + pieces):
        said = {"id": "c", "choices": [{"index": 0, **choice}], **json.loads(more or "{}")}
        event = b"data: " + json.dumps(said, ensure_ascii=ascii_only).encode(errors="replace") + b"\n\n"
        for part in (event[:cut], event[cut:]) if number in is_cut else (event,):
            chunk = framed(part)
            if not short.shortcut(chunk):
                short.take(part, body_of(chunk) and chunk)
            usual.take(part, chunk)
        assert client.body == plain.body
        assert short.waited_from_s == usual.waited_from_s
