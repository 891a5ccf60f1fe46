"""Which way a turn goes, and why: a table for each reason, and what holds for every situation."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.fleet.fit import Line
from router.fleet.load import DecodeLoad, Loads, PrefillLoad
from router.fleet.node import Engine, Node, Role, State
from router.ledger.store import Absence, Found, Handle, Relation, Trace
from router.turn.digest import chain
from router.turn.plan import Kind, Plan, Reason, Situation, Verify, proof_limit
from router.turn.request import Endpoint, Request, Unsplit, read_request
from router.turn.weigh import choose, weigh


def a_request(**members: Any) -> Request:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], **members}).encode()
    return read_request(Endpoint.CHAT, "/v1/chat/completions", (), body, turn_id="brg-1")


def prefill(key: str = "p1", in_flight: int = 0, **engine: Any) -> Node:
    return Node(key, f"http://{key}", Role.PREFILL, State.READY, engine=Engine(**engine), in_flight=in_flight)


def decode(key: str = "d1", in_flight: int = 0, **engine: Any) -> Node:
    return Node(key, f"http://{key}", Role.DECODE, State.READY, engine=Engine(**engine), in_flight=in_flight)


HANDLE = Handle(
    params=b"{}",
    decode="d1",
    engine_id="engine-a",
    tokens=788,
    prompt_tokens=769,
    deadline_s=100.0,
    stamped=False,
    held=chain(range(788)),
    media_depth=0,
)
FOUND = Found(
    branch="b",
    version=3,
    depth=4,
    relation=Relation.EXTENSION,
    trace=Trace("p1", "d1", prompt_tokens=769, prompt_bytes=3000, reused_tokens=0, computed_at_s=1.0),
    turns=2,
    handle=HANDLE,
    absence=None,
)
UNKNOWN: Sequence[Node] = (prefill(),)
VERIFYING: Sequence[Node] = (prefill(verifies=True),)


def situation(**changes: Any) -> Situation:
    plain = Situation(
        request=a_request(),
        media_depth=0,
        prefills=(prefill(),),
        decodes=(decode(engine_id="engine-a"),),
        found=FOUND,
        mode="auto",
    )
    return replace(plain, **changes)


def found(**changes: Any) -> Found:
    return replace(FOUND, **changes)


def holding(**changes: Any) -> Found:
    return replace(FOUND, handle=replace(HANDLE, **changes))


def planned(**changes: Any) -> Plan:
    plan = choose(situation(**changes))
    assert plan is not None
    return plan


def test_another_rank_of_the_same_process_is_no_restart() -> None:
    """Which rank of a data-parallel D spoke last says nothing about the handles of the others."""
    plan = planned(found=holding(engine_id="one_dp0"), decodes=(decode(engine_id="one_dp1"),))
    assert plan.kind is Kind.PULL
    gone = planned(found=holding(engine_id="one_dp0"), decodes=(decode(engine_id="two_dp0"),))
    assert gone.reason is Reason.ENGINE_RESTARTED


def test_a_handle_that_nothing_speaks_against_is_pulled() -> None:
    assert planned() == Plan(
        Kind.PULL,
        Relation.EXTENSION,
        decode(engine_id="engine-a"),
        prefill(),
        Verify.ROUTER,
        HANDLE,
    )


@pytest.mark.parametrize("relation", list(Relation))
def test_the_reason_of_a_pull_is_how_the_history_relates(relation: Relation) -> None:
    assert planned(found=found(relation=relation)).reason == relation


COLD: list[tuple[str, dict[str, Any]]] = [
    (Reason.FIRST_TURN, {"found": None}),
    (Reason.VERIFY_OFF, {"mode": "off"}),
    (Reason.VERIFY_OFF, {"mode": "off", "found": None}),
    (Reason.VERIFY_OFF, {"mode": "off", "cold_reason": Reason.RETRY}),
    (Reason.NO_IDENTITY, {"found": None, "cold_reason": Reason.NO_IDENTITY}),
    (Reason.LEDGER_DOWN, {"found": None, "cold_reason": Reason.LEDGER_DOWN}),
    (Reason.RETRY, {"cold_reason": Reason.RETRY}),
    (Reason.MISMATCH, {"cold_reason": Reason.MISMATCH}),
    (Absence.NO_HANDLE, {"found": found(handle=None, absence=Absence.NO_HANDLE)}),
    (Absence.EXPIRED, {"found": found(handle=None, absence=Absence.EXPIRED)}),
    (Absence.SMALL_GAIN, {"found": found(handle=None, absence=Absence.SMALL_GAIN)}),
    (Reason.HOLDER_GONE, {"decodes": (decode("d2"),)}),
    (Reason.HOLDER_GONE, {"decodes": (decode("d1"), decode("d2")), "exclude": {"d1"}}),
    (Reason.ENGINE_RESTARTED, {"decodes": (decode(engine_id="engine-b"),)}),
    (Reason.PAIR_COOLING, {"cooling": {("p1", "d1")}}),
    (Reason.MODEL_MISTRUSTED, {"mistrusted": True}),
    (Reason.MODEL_MISTRUSTED, {"mistrusted": True, "prefills": VERIFYING, "found": holding(stamped=True)}),
    (Reason.MEDIA, {"found": holding(media_depth=5)}),
    (Reason.MEDIA, {"found": holding(media_depth=5), "mode": "lineage"}),
    (Reason.BLOCK_SIZE, {"prefills": (prefill(block_size=16),), "decodes": (decode(block_size=32),)}),
    (
        Reason.BLOCK_SIZE,
        {"prefills": (prefill(block_size=16, prefix_cache=True),), "decodes": (decode(block_size=32),)},
    ),
    (Reason.UNVERIFIABLE, {"found": holding(held=None)}),
    (Reason.UNVERIFIABLE, {"found": holding(held=None, stamped=True)}),
    (Reason.UNVERIFIABLE, {"found": holding(held=None), "prefills": VERIFYING}),
    (Reason.UNVERIFIABLE, {"mode": "engine"}),
    (
        Reason.UNVERIFIABLE,
        {"mode": "router", "found": holding(held=None, stamped=True), "prefills": VERIFYING},
    ),
    (Reason.UNVERIFIABLE, {"mode": "lineage", "found": found(relation=Relation.FORK)}),
    (Reason.UNVERIFIABLE, {"mode": "lineage", "found": found(relation=Relation.REGENERATED)}),
    (Reason.UNVERIFIABLE, {"mode": "unknown"}),
]


@pytest.mark.parametrize(("reason", "changes"), COLD)
def test_why_a_turn_is_cold(reason: str, changes: dict[str, Any]) -> None:
    plan = planned(**changes)
    assert (plan.kind, plan.reason) == (Kind.COLD, reason)
    assert (plan.verify, plan.handle) == (Verify.OFF, None)
    assert plan.prefill is not None


def test_a_cold_turn_without_any_reason_noted_still_has_one() -> None:
    assert planned(found=found(handle=None, absence=None)).reason == Absence.NO_HANDLE


def test_an_engine_whose_id_is_not_known_is_not_taken_for_restarted() -> None:
    assert planned(decodes=(decode(),)).kind is Kind.PULL


@pytest.mark.parametrize(
    ("prefill_block", "decode_block", "prefix_cache"),
    [(16, 32, False), (16, 16, True), (None, 16, True), (16, None, None), (None, None, None)],
)
def test_block_sizes_that_do_not_speak_against_a_whole_handle(
    prefill_block: int | None, decode_block: int | None, prefix_cache: bool | None
) -> None:
    plan = planned(
        prefills=(prefill("p2", block_size=prefill_block, prefix_cache=prefix_cache),),
        decodes=(decode(block_size=decode_block),),
    )
    assert plan.kind is Kind.PULL


def test_only_the_pair_itself_cools() -> None:
    assert planned(cooling={("p1", "d2"), ("p2", "d1"), ("d1", "p1")}).kind is Kind.PULL


@pytest.mark.parametrize(
    ("mode", "stamped", "held", "verifies", "relation", "verify"),
    [
        ("auto", True, True, True, Relation.EXTENSION, Verify.ENGINE),
        ("auto", True, False, True, Relation.FORK, Verify.ENGINE),
        ("auto", True, True, None, Relation.EXTENSION, Verify.ROUTER),
        ("auto", True, True, False, Relation.EXTENSION, Verify.ROUTER),
        ("auto", False, True, True, Relation.EXTENSION, Verify.ROUTER),
        ("auto", False, True, None, Relation.REGENERATED, Verify.ROUTER),
        ("auto", False, False, True, Relation.EXTENSION, None),
        ("engine", True, True, True, Relation.EXTENSION, Verify.ENGINE),
        ("engine", True, True, None, Relation.EXTENSION, None),
        ("engine", True, True, False, Relation.EXTENSION, None),
        ("engine", False, True, True, Relation.EXTENSION, None),
        ("router", True, True, True, Relation.EXTENSION, Verify.ROUTER),
        ("router", False, True, None, Relation.FORK, Verify.ROUTER),
        ("router", True, False, True, Relation.EXTENSION, None),
        ("lineage", False, False, None, Relation.EXTENSION, Verify.LINEAGE),
        ("lineage", True, True, True, Relation.EXTENSION, Verify.LINEAGE),
        ("lineage", True, True, True, Relation.FORK, None),
        ("lineage", True, True, True, Relation.REGENERATED, None),
        ("off", True, True, True, Relation.EXTENSION, None),
    ],
)
def test_who_verifies(
    mode: str, stamped: bool, held: bool, verifies: bool | None, relation: Relation, verify: Verify | None
) -> None:
    handle = replace(HANDLE, stamped=stamped, held=HANDLE.held if held else None)
    plan = planned(
        mode=mode, prefills=(prefill(verifies=verifies),), found=found(handle=handle, relation=relation)
    )
    if verify is None:
        assert (plan.kind, plan.handle) == (Kind.COLD, None)
    else:
        assert (plan.kind, plan.verify, plan.handle) == (Kind.PULL, verify, handle)


@pytest.mark.parametrize(
    ("media_depth", "mode", "prefills", "stamped", "kind"),
    [
        (0, "router", UNKNOWN, False, Kind.PULL),
        (4, "router", UNKNOWN, False, Kind.PULL),
        (5, "router", UNKNOWN, False, Kind.COLD),
        (5, "auto", UNKNOWN, True, Kind.COLD),
        (5, "auto", VERIFYING, False, Kind.COLD),
        (5, "router", VERIFYING, True, Kind.COLD),
        (5, "lineage", VERIFYING, True, Kind.COLD),
        (5, "auto", VERIFYING, True, Kind.PULL),
        (5, "engine", VERIFYING, True, Kind.PULL),
    ],
)
def test_media_past_the_equal_messages_only_an_engine_can_verify(
    media_depth: int, mode: str, prefills: Sequence[Node], stamped: bool, kind: Kind
) -> None:
    plan = planned(mode=mode, prefills=prefills, found=holding(media_depth=media_depth, stamped=stamped))
    assert plan.kind is kind
    if kind is Kind.COLD:
        assert plan.reason == Reason.MEDIA


@pytest.mark.parametrize(("media_depth", "limit"), [(0, 788), (4, 788), (5, 769), (9, 769)])
def test_new_media_limit_the_proof_to_the_old_prompt(media_depth: int, limit: int) -> None:
    assert proof_limit(situation(media_depth=media_depth), HANDLE) == limit


@pytest.mark.parametrize(
    ("computed_by", "prefix_cache", "kind"),
    [
        ("p1", True, Kind.LOCAL),
        ("p1", False, Kind.PULL),
        ("p1", None, Kind.PULL),
        ("p2", True, Kind.PULL),
        ("", True, Kind.PULL),
    ],
)
def test_a_turn_is_local_where_the_node_that_computed_the_last_one_keeps_its_prompts(
    computed_by: str, prefix_cache: bool | None, kind: Kind
) -> None:
    trace = replace(FOUND.trace, prefill=computed_by)
    plan = planned(prefills=(prefill(prefix_cache=prefix_cache),), found=found(trace=trace))
    assert plan.kind is kind
    assert plan.handle is HANDLE, "local is a pull on the wire"


def keys(plan: Plan) -> tuple[str | None, str]:
    return (None if plan.prefill is None else plan.prefill.key, plan.decode.key)


PREFILLS = (prefill("p1", 5), prefill("p2", 1), prefill("p3", 1))
DECODES = (decode("d1", 5), decode("d2", 1), decode("d3", 1))


@pytest.mark.parametrize(
    ("changes", "nodes"),
    [
        pytest.param({"found": None}, ("p2", "d2"), id="nobody holds anything: the fewest open legs"),
        pytest.param({}, ("p1", "d1"), id="who holds it decodes, who computed it prefills"),
        pytest.param({"exclude": {"p1"}}, ("p2", "d1"), id="who computed it failed"),
        pytest.param({"exclude": {"d1"}}, ("p1", "d2"), id="who holds it failed"),
        pytest.param({"exclude": {"p1", "p2", "d1", "d2"}}, ("p3", "d3"), id="only the last ones are left"),
        pytest.param(
            {"found": replace(holding(decode="d3"), trace=replace(FOUND.trace, prefill="p3"))},
            ("p3", "d3"),
            id="the handle's node before the trace's",
        ),
        pytest.param(
            {"found": replace(FOUND, handle=None, trace=replace(FOUND.trace, decode="d3"))},
            ("p1", "d3"),
            id="no handle: where the last turn was decoded",
        ),
        pytest.param(
            {"found": replace(holding(decode="gone"), trace=replace(FOUND.trace, prefill="gone"))},
            ("p2", "d2"),
            id="both are gone",
        ),
        pytest.param({"mode": "off"}, ("p1", "d1"), id="affinity needs no handle"),
    ],
)
def test_which_nodes_serve_where_conversations_stick(changes: dict[str, Any], nodes: tuple[str, str]) -> None:
    given_ = {"policy": "sticky", "prefills": PREFILLS, "decodes": DECODES, **changes}
    assert keys(planned(**given_)) == nodes


def test_a_request_that_cannot_be_split_runs_on_one_node() -> None:
    plan = planned(request=a_request(n=2), prefills=(), decodes=DECODES, found=None)
    assert plan == Plan(Kind.UNSPLIT, Unsplit.CHOICES, DECODES[1], None)


def test_a_request_that_cannot_be_split_uses_no_handle() -> None:
    plan = planned(request=a_request(prompt_logprobs=1))
    assert (plan.kind, plan.handle, plan.verify, plan.prefill) == (Kind.UNSPLIT, None, Verify.OFF, None)


@pytest.mark.parametrize(
    "changes",
    [
        {"prefills": ()},
        {"decodes": ()},
        {"prefills": (), "decodes": ()},
        {"exclude": {"p1"}},
        {"exclude": {"d1"}},
        {"request": a_request(n=2), "decodes": ()},
        {"request": a_request(n=2), "exclude": {"d1"}},
    ],
)
def test_no_plan_without_nodes(changes: dict[str, Any]) -> None:
    assert choose(situation(**changes)) is None


def test_going_cold_keeps_the_nodes_and_nothing_else() -> None:
    plan = planned()
    assert plan.cold(Reason.RETRY) == Plan(Kind.COLD, Reason.RETRY, plan.decode, plan.prefill)


NAMES = st.sampled_from(["1", "2", "3"])
FLAGS = st.sampled_from([None, False, True])


@st.composite
def nodes(draw: st.DrawFn, role: Role) -> tuple[Node, ...]:
    names = draw(st.lists(NAMES, unique=True, max_size=3))
    return tuple(
        Node(
            f"{role.value[0]}{name}",
            f"http://{role.value}{name}",
            role,
            State.READY,
            engine=Engine(
                engine_id=draw(st.sampled_from([None, "engine-a", "engine-b"])),
                verifies=draw(FLAGS),
                prefix_cache=draw(FLAGS),
            ),
            in_flight=draw(st.integers(0, 3)),
        )
        for name in names
    )


@st.composite
def loads(draw: st.DrawFn) -> Loads:
    """Measured or not, and nodes that differ."""
    seconds = st.floats(0.0, 2.0)
    is_measured = draw(st.booleans())
    lines = st.builds(Line, seconds, st.floats(0.0, 0.001))
    prefills = {
        key: PrefillLoad(draw(lines), draw(lines), draw(seconds), 0.0, draw(st.floats(0, 1)), is_measured)
        for key in draw(st.sets(st.sampled_from(["p1", "p2", "p3"])))
    }
    decodes = {
        key: DecodeLoad(draw(lines), draw(lines), draw(st.integers(0, 99)), 1.0, draw(st.floats(0, 1)))
        for key in draw(st.sets(st.sampled_from(["d1", "d2", "d3"])))
    }
    return Loads(prefills, decodes, draw(lines), draw(st.floats(0.5, 8.0)))


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    handle = replace(
        HANDLE,
        decode=draw(st.sampled_from(["d1", "d2"])),
        stamped=draw(st.booleans()),
        held=draw(st.sampled_from([None, HANDLE.held])),
        media_depth=draw(st.integers(0, 6)),
    )
    some = draw(st.booleans())
    found_ = found(
        relation=draw(st.sampled_from(Relation)),
        handle=handle if some else None,
        absence=None if some else draw(st.sampled_from(Absence)),
        trace=replace(FOUND.trace, prefill=draw(st.sampled_from(["p1", "p2", ""])), decode="d1"),
    )
    return Situation(
        request=a_request(n=draw(st.sampled_from([1, 1, 1, 2]))),
        media_depth=draw(st.integers(0, 6)),
        prefills=draw(nodes(Role.PREFILL)),
        decodes=draw(nodes(Role.DECODE)),
        found=draw(st.sampled_from([None, found_, found_])),
        mode=draw(st.sampled_from(["auto", "engine", "router", "lineage", "off"])),
        cooling=draw(
            st.sets(st.tuples(st.sampled_from(["p1", "p2"]), st.sampled_from(["d1", "d2"])), max_size=2)
        ),
        mistrusted=draw(st.booleans()),
        cold_reason=draw(st.sampled_from(["", "", Reason.RETRY])),
        exclude=draw(st.sets(st.sampled_from(["p1", "p2", "d1", "d2"]), max_size=2)),
        sizes_bytes=draw(st.sampled_from([(), (900, 1000, 2900, 3000, 3100, 3200), (900, 3000, 90_000)])),
        policy=draw(st.sampled_from(["planned", "planned", "round_robin", "least_load", "sticky"])),
        turn=draw(st.integers(0, 9)),
        stay_max_tokens=draw(st.sampled_from([0, 256])),
        now_s=draw(st.sampled_from([0.0, 90.0])),
        loads=draw(loads()),
    )


@given(situations())
def test_whatever_the_situation_a_handle_is_used_only_where_nothing_speaks_against_it(
    given_: Situation,
) -> None:
    plan = choose(given_)
    if plan is None:
        return
    first = weigh(given_)[0]
    assert not first.why_not
    assert (first.kind, first.reason) == (plan.kind, plan.reason)
    assert first.decode == plan.decode.key
    assert first.prefill == (plan.prefill.key if plan.prefill is not None else None)
    assert plan.decode in given_.decodes
    assert plan.decode.key not in given_.exclude
    alone = (Kind.STAY, Kind.UNSPLIT)
    assert (plan.handle is None) == (plan.verify is Verify.OFF) == (plan.kind in (Kind.COLD, *alone))
    assert plan.reason
    assert (plan.prefill is None) == (plan.kind in alone)
    if plan.kind is Kind.STAY:
        assert given_.stay_max_tokens
        assert plan.decode.engine.prefix_cache is True
        assert not given_.mistrusted
        assert not given_.cold_reason
        assert given_.mode != "off"
    if plan.prefill is not None:
        assert plan.prefill in given_.prefills
        assert plan.prefill.key not in given_.exclude
    if plan.handle is None:
        return
    assert given_.found is not None
    assert plan.prefill is not None
    assert plan.handle is given_.found.handle
    assert given_.mode != "off"
    assert not given_.mistrusted
    assert not given_.cold_reason
    assert given_.request.unsplit is None
    (holder,) = [node for node in given_.decodes if node.key == plan.handle.decode]
    assert holder.key not in given_.exclude
    assert holder.engine.engine_id in (None, plan.handle.engine_id)
    assert (plan.prefill.key, plan.handle.decode) not in given_.cooling
    match plan.verify:
        case Verify.ENGINE:
            assert plan.handle.stamped
            assert plan.prefill.engine.verifies is True
        case Verify.ROUTER:
            assert plan.handle.held is not None
            assert plan.handle.media_depth <= given_.found.depth
        case Verify.LINEAGE:
            assert given_.mode == "lineage"
            assert given_.found.relation is Relation.EXTENSION
            assert plan.handle.media_depth <= given_.found.depth


@pytest.mark.parametrize(
    ("then_s", "since_s", "reason"),
    [
        (100.0, 100.4, Relation.EXTENSION),
        (None, 100.0, Relation.EXTENSION),
        (100.0, None, Relation.EXTENSION),
        (100.0, 160.0, Reason.ENGINE_RESTARTED),
    ],
)
def test_a_fixed_engine_id_does_not_hide_a_restart(
    then_s: float | None, since_s: float | None, reason: str
) -> None:
    holder = decode(engine_id="engine-a", started_at_s=since_s)
    assert planned(found=holding(started_at_s=then_s), decodes=(holder,)).reason == reason
