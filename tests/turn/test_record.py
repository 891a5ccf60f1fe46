"""What a turn's record tells of it."""

from router.fleet.node import Role, node_of
from router.turn.lineage import Lineage
from router.turn.plan import Estimate, Kind, Plan
from router.turn.record import Record, line_name
from router.turn.request import Endpoint, Request

KEYS = (b"a" * 16, b"b" * 16, b"c" * 16)
P, D = node_of("http://p:1", Role.PREFILL), node_of("http://d:1", Role.DECODE)
REQUEST = Request(
    endpoint=Endpoint.CHAT, path="/v1/chat/completions", headers=(), members={}, model="m", stream=True,
    wants_token_ids=False, unsplit=None, turn_id="brg-1", client_id="", conversation="",
)  # fmt: skip


def lineage(keys: tuple[bytes, ...], own_depth: int) -> Lineage:
    return Lineage(b"s" * 16, keys, tuple(range(len(keys))), own_depth, 0)


def test_a_conversation_keeps_its_name_as_it_grows_and_a_stranger_has_another() -> None:
    name = line_name(lineage(KEYS[:2], 2))
    assert name == line_name(lineage(KEYS, 2))
    assert name != line_name(lineage((KEYS[0], KEYS[2]), 2)), "the same system prompt is not the same talk"
    assert len(name) == 8
    assert not any(key.hex().startswith(name) for key in KEYS)


def test_without_a_history_there_is_no_name() -> None:
    assert line_name(lineage((), 1)) == ""
    assert line_name(lineage(KEYS[:1], 3)) == line_name(lineage(KEYS[:1], 1))


def test_what_is_left_of_a_lease_runs_from_the_end_of_the_prefill_leg() -> None:
    now_s = [100.0]
    one = Record(REQUEST, lambda: now_s[0], 0.0)
    assert one.lease_left_s(30.0) is None
    one.prefill_ended()
    now_s[0] = 112.0
    assert one.lease_left_s(30.0) == 18.0
    now_s[0] = 131.0
    assert one.lease_left_s(30.0) == -1.0


def record(kind: Kind, reused: int | None, held: float = 0.0) -> Record:
    one = Record(REQUEST, lambda: 0.0, 0.0)
    one.planned(Plan(kind, "extension", D, P, estimate=Estimate(0.1, 1000.0, 100.0, held_tokens=held)))
    one.reused_tokens = reused
    return one


def test_moved_is_what_was_reused_and_not_held() -> None:
    assert record(Kind.PULL, 900).moved_tokens() == 900
    assert record(Kind.LOCAL, 900, held=600.4).moved_tokens() == 300
    assert record(Kind.LOCAL, 900, held=2000.0).moved_tokens() == 0
    assert record(Kind.COLD, 512, held=512.0).moved_tokens() == 0, "of P's own cache"
    assert record(Kind.STAY, 900).moved_tokens() == 0
    assert record(Kind.PULL, None).moved_tokens() is None
    assert Record(REQUEST, lambda: 0.0, 0.0).moved_tokens() is None


def test_a_plan_without_an_estimate_moved_all_that_was_reused() -> None:
    one = Record(REQUEST, lambda: 0.0, 0.0)
    one.planned(Plan(Kind.PULL, "extension", D, P))
    one.reused_tokens = 64
    assert one.moved_tokens() == 64
    assert one.fact().moved_tokens == 64
