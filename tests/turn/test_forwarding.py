"""What goes on within a callback, and what the turn's own task has to be woken for."""

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
