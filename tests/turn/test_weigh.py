"""What falls out of the estimates: affinity as far as it saves, and no further."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from router.fleet.fit import Line
from router.fleet.load import IDLE_DECODE, IDLE_PREFILL, DecodeLoad, Loads, PrefillLoad
from router.fleet.node import Node, Role
from router.ledger.store import Absence, Found, Relation
from router.turn.plan import Kind, Plan, Reason, Situation, Unfit, Verify
from router.turn.request import Endpoint, read_request
from router.turn.weigh import choose, weigh
from tests.turn.test_plan import FOUND, HANDLE, a_request, decode, prefill, situation

TOKENS = 20_000
TRACE = replace(FOUND.trace, prompt_tokens=TOKENS, prompt_bytes=4 * TOKENS)
LONG = replace(FOUND, trace=TRACE, handle=replace(HANDLE, tokens=TOKENS + 500, prompt_tokens=TOKENS))
"""Twenty thousand tokens and an answer of five hundred, computed by p1 and held by d1."""
SIZES = (8_000, 40_000, 60_000, 4 * TOKENS, 4 * TOKENS + 2_000, 4 * TOKENS + 3_200)
"""Depth 4 is the known prompt; the answer, and 300 tokens more."""
P = tuple(prefill(f"p{n}", prefix_cache=True) for n in (1, 2, 3))
D = tuple(decode(f"d{n}", prefix_cache=True, engine_id="engine-a") for n in (1, 2, 3))
NO_CACHE = tuple(prefill(f"p{n}", prefix_cache=False) for n in (1, 2, 3))
QUEUED = IDLE_PREFILL._replace(queue_s=5.0, queue_tokens=100_000.0, is_measured=True)
IDLE = IDLE_PREFILL._replace(is_measured=True)


def loads(prefills: dict[str, PrefillLoad] | None = None, **decodes: DecodeLoad) -> Loads:
    known = {f"p{n}": IDLE for n in (1, 2, 3)} | (prefills or {})
    return Loads(known, decodes, verify=Line(0.0, 0.0))


def long(**changes: Any) -> Situation:
    given = {"found": LONG, "prefills": P, "decodes": D, "sizes_bytes": SIZES, "loads": loads(), **changes}
    return situation(**given)


def planned(**changes: Any) -> Plan:
    plan = choose(long(**changes))
    assert plan is not None
    return plan


def where(plan: Plan) -> tuple[str, str | None, str]:
    return (plan.kind, plan.prefill.key if plan.prefill is not None else None, plan.decode.key)


def test_a_conversation_comes_back_to_the_nodes_that_know_it() -> None:
    assert where(planned()) == (Kind.LOCAL, "p1", "d1")


def test_the_estimate_is_that_of_the_plan() -> None:
    plan = planned()
    assert plan.estimate is not None
    assert plan.estimate.seconds == pytest.approx(
        IDLE.move.at(500) + IDLE.compute.at(300) + IDLE_DECODE.deliver.at(300), rel=0.05
    )
    assert plan.estimate.prompt_tokens == pytest.approx(20_800, rel=0.01)


def test_an_overloaded_prefill_node_is_left_and_the_handle_is_read_elsewhere() -> None:
    plan = planned(loads=loads({"p1": QUEUED}))
    assert (plan.kind, plan.decode.key, plan.handle) == (Kind.PULL, "d1", LONG.handle)
    assert plan.prefill is not None
    assert plan.prefill.key != "p1"


def test_an_overloaded_decode_node_is_left_and_its_handle_is_read_all_the_same() -> None:
    crowded = IDLE_DECODE._replace(legs=120, slowdown=2.0)
    plan = planned(loads=loads(d1=crowded))
    assert (plan.kind, plan.handle) == (Kind.LOCAL, LONG.handle)
    assert plan.decode.key != "d1"


def test_a_decode_node_that_is_nearly_full_is_left() -> None:
    full = decode("d1", prefix_cache=True, kv_usage=0.99, num_blocks=2_000, block_size=16)
    assert planned(decodes=(full, *D[1:])).decode.key != "d1"


def test_a_decode_node_that_drains_is_read_from_and_gets_no_turn() -> None:
    plan = planned(decodes=D[1:], readable=D)
    assert (plan.kind, plan.handle) == (Kind.LOCAL, LONG.handle)
    assert plan.decode.key != "d1"
    assert planned(decodes=D[1:]).reason == Reason.HOLDER_GONE


def test_a_node_that_this_turn_has_seen_fail_is_not_read_from() -> None:
    assert planned(decodes=D[1:], readable=D, exclude={"d1"}).reason == Reason.HOLDER_GONE


def without_handle(absence: Absence = Absence.NO_HANDLE) -> Found:
    return replace(LONG, handle=None, absence=absence)


def test_a_sibling_that_lost_the_race_goes_to_the_p_that_has_the_prefix() -> None:
    plan = planned(found=without_handle())
    assert where(plan) == (Kind.COLD, "p1", "d1")
    assert plan.reason == Absence.NO_HANDLE
    assert plan.estimate is not None
    assert plan.estimate.compute_tokens == pytest.approx(800, rel=0.05)


def test_a_shared_beginning_leads_a_stranger_to_the_p_that_computed_it() -> None:
    shared = replace(without_handle(Absence.SMALL_GAIN), depth=1, relation=Relation.FORK)
    plan = planned(found=shared, sizes_bytes=(30_000, 32_000))
    assert where(plan)[:2] == (Kind.COLD, "p1")
    busy = planned(found=shared, sizes_bytes=(30_000, 32_000), loads=loads({"p1": QUEUED}))
    assert where(busy)[1] != "p1"


def test_a_p_that_keeps_nothing_is_not_preferred_for_what_it_computed() -> None:
    """It is only the first among equals."""
    plan = planned(prefills=NO_CACHE, loads=loads({"p1": IDLE._replace(queue_s=0.5)}))
    assert where(plan)[:2] == (Kind.PULL, "p2")


def test_a_p_that_was_started_anew_has_nothing() -> None:
    renewed = replace(P[0], renewed_at_s=TRACE.computed_at_s + 1.0)
    assert where(planned(prefills=(renewed, *P[1:])))[0] == Kind.PULL


def test_a_pair_that_cools_is_left_for_one_that_does_not() -> None:
    plan = planned(prefills=NO_CACHE, cooling={("p1", "d1")})
    assert where(plan) == (Kind.PULL, "p2", "d1")
    assert where(planned(cooling={("p1", "d1")}))[:2] == (Kind.COLD, "p1"), "it still has the prompt itself"
    alone = planned(prefills=P[:1], cooling={("p1", "d1")})
    assert (alone.kind, alone.reason) == (Kind.COLD, Reason.PAIR_COOLING)


SLOW_NETWORK = Line(3.0, 1e-3)


@pytest.mark.parametrize(("measured", "kind"), [(True, Kind.COLD), (False, Kind.PULL)])
def test_a_handle_is_left_only_for_what_was_measured(measured: bool, kind: Kind) -> None:
    slow = IDLE._replace(move=SLOW_NETWORK, is_measured=measured)
    known = loads(dict.fromkeys(("p1", "p2", "p3"), slow))
    plan = planned(prefills=NO_CACHE, loads=known)
    assert plan.kind is kind
    if kind is Kind.COLD:
        assert (plan.reason, plan.handle, plan.verify) == (Reason.CHEAPER, None, Verify.OFF)


def test_equals_take_turns() -> None:
    firsts = [planned(found=None, sizes_bytes=(900,), turn=turn) for turn in range(9)]
    assert Counter(where(plan)[1] for plan in firsts) == {"p1": 3, "p2": 3, "p3": 3}
    assert Counter(plan.decode.key for plan in firsts) == {"d1": 3, "d2": 3, "d3": 3}


def test_differences_that_no_estimate_can_see_make_no_difference() -> None:
    """Else all that comes would go to whichever node was measured a millisecond faster."""
    faster = IDLE._replace(compute=Line(IDLE.compute.fixed_s - 0.001, IDLE.compute.token_s))
    known = loads({"p2": faster})
    firsts = [planned(turn=turn, found=None, sizes_bytes=(900,), loads=known) for turn in range(9)]
    assert Counter(where(plan)[1] for plan in firsts) == {"p1": 3, "p2": 3, "p3": 3}


def test_first_turns_go_where_least_is_queued() -> None:
    known = loads({"p1": QUEUED, "p2": QUEUED._replace(queue_s=1.0), "p3": QUEUED})
    assert where(planned(found=None, loads=known))[1] == "p2"


def test_without_any_measure_first_turns_go_where_the_fewest_legs_are_open() -> None:
    plan = planned(
        found=None,
        prefills=(prefill("p1", 5), prefill("p2", 1), prefill("p3", 4)),
        decodes=(decode("d1", 5), decode("d2", 4), decode("d3", 1)),
        loads=Loads(),
    )
    assert where(plan)[1:] == ("p2", "d3")


# -- simple policies -------------------------------------------------------------------------------------


@pytest.mark.parametrize("turn", range(4))
def test_round_robin_still_reads_the_handle(turn: int) -> None:
    plan = planned(policy="round_robin", turn=turn)
    assert (plan.prefill, plan.decode) == (P[turn % 3], D[turn % 3])
    assert plan.kind is (Kind.LOCAL if turn % 3 == 0 else Kind.PULL)
    assert plan.handle is LONG.handle


def test_a_sticky_conversation_waits_for_its_node() -> None:
    assert where(planned(policy="sticky", loads=loads({"p1": QUEUED}))) == (Kind.LOCAL, "p1", "d1")


def test_least_load_counts_legs_and_nothing_else() -> None:
    plan = planned(
        policy="least_load",
        prefills=(replace(P[0], in_flight=2), P[1]),
        decodes=(replace(D[0], in_flight=2), D[1]),
    )
    assert where(plan) == (Kind.PULL, "p2", "d2")


# -- stay ------------------------------------------------------------------------------------------------


def staying(**changes: Any) -> Plan:
    return planned(**{"stay_max_tokens": 512, **changes})


def test_a_short_append_to_a_held_history_stays() -> None:
    plan = staying()
    assert where(plan) == (Kind.STAY, None, "d1")
    assert (plan.verify, plan.handle, plan.reason) == (Verify.OFF, None, Relation.EXTENSION)
    assert plan.estimate is not None
    assert plan.estimate.compute_tokens == pytest.approx(300, rel=0.1)


TOO_LONG = (*SIZES[:-1], 4 * TOKENS + 2_000 + 2_400)


@pytest.mark.parametrize(
    ("changes", "why_not"),
    [
        ({"stay_max_tokens": 0}, Unfit.OFF),
        ({"sizes_bytes": TOO_LONG}, Unfit.LONG_APPEND),
        ({"decodes": (decode("d1"),)}, Unfit.NO_PREFIX_CACHE),
        ({"decodes": (replace(D[0], renewed_at_s=99.0),)}, Unfit.NO_PREFIX_CACHE),
        ({"decodes": (decode("d1", prefix_cache=True, engine_id="other"),)}, Reason.ENGINE_RESTARTED),
        ({"exclude": {"d1"}}, Unfit.FAILED),
        ({"mistrusted": True}, Reason.MODEL_MISTRUSTED),
        ({"cold_reason": Reason.RETRY}, Reason.RETRY),
        ({"mode": "off"}, Reason.VERIFY_OFF),
        ({"media_depth": 6}, Reason.MEDIA),
        ({"policy": "sticky"}, Unfit.POLICY),
        ({"found": replace(LONG, relation=Relation.FORK)}, Unfit.FORK),
    ],
)
def test_why_a_turn_does_not_stay(changes: dict[str, Any], why_not: str) -> None:
    given = long(**{"stay_max_tokens": 512, **changes})
    (stay,) = [one for one in weigh(given) if one.kind is Kind.STAY]
    assert stay.why_not == why_not
    plan = choose(given)
    assert plan is None or plan.kind is not Kind.STAY


def test_a_plain_prompt_does_not_stay() -> None:
    request = read_request(Endpoint.COMPLETIONS, "/v1/completions", (), b'{"prompt":"x"}', turn_id="t")
    (stay,) = [one for one in weigh(long(request=request, stay_max_tokens=512)) if one.kind is Kind.STAY]
    assert stay.why_not == Unfit.ENDPOINT


def test_a_crowded_decode_node_computes_nothing_itself() -> None:
    assert staying(loads=loads(d1=IDLE_DECODE._replace(legs=50))).kind is not Kind.STAY


def test_a_turn_does_not_stay_where_the_next_one_would_find_nothing() -> None:
    """No handle to be kept, and a P that keeps nothing: all would have to be computed again."""
    assert staying(found=without_handle(), prefills=NO_CACHE).kind is Kind.STAY, "it has nothing else now"
    nobody = replace(LONG, trace=replace(TRACE, prefill=""))
    soon = replace(nobody, handle=replace(HANDLE, tokens=20_500, prompt_tokens=TOKENS, deadline_s=20.0))
    assert staying(found=soon, prefills=NO_CACHE, now_s=10.0).kind is Kind.PULL


def test_with_the_plugin_a_turn_that_stays_leaves_a_handle_of_its_own() -> None:
    """So it pays nothing for what the next turn would miss."""
    plain, plugin = (
        next(one for one in weigh(long(stay_max_tokens=512, decodes=(node,))) if one.kind is Kind.STAY)
        for node in (D[0], decode("d1", prefix_cache=True, engine_id="engine-a", stamps=True))
    )
    assert plugin.price_s < plain.price_s


# -- weigh -----------------------------------------------------------------------------------------------


def test_every_way_is_told_and_the_first_is_taken() -> None:
    given = long(stay_max_tokens=512)
    told, plan = weigh(given), choose(given)
    assert plan is not None
    assert (told[0].kind, told[0].prefill, told[0].decode) == where(plan)
    ways = {(one.kind, one.prefill, one.decode) for one in told}
    assert {(Kind.LOCAL, "p1", "d1"), (Kind.PULL, "p2", "d1"), (Kind.COLD, "p3", "d1")} <= ways
    assert {(Kind.LOCAL, "p1", "d2"), (Kind.STAY, None, "d1")} <= ways
    totals = [one.estimate_s + one.price_s for one in told if not one.why_not]
    assert totals[0] <= 1.03 * min(totals) + 0.01
    assert [bool(one.why_not) for one in told] == sorted(bool(one.why_not) for one in told)


def test_a_request_that_cannot_be_split_is_weighed_over_decode_nodes() -> None:
    told = weigh(long(request=a_request(n=2), found=None, decodes=(replace(D[0], in_flight=30), D[1])))
    assert [(one.kind, one.prefill) for one in told] == [(Kind.UNSPLIT, None)] * 2
    assert told[0].decode == "d2"


@pytest.mark.parametrize("changes", [{"prefills": ()}, {"decodes": ()}, {"prefills": (), "decodes": ()}])
def test_nothing_is_to_be_had_without_a_pair(changes: dict[str, Any]) -> None:
    assert choose(long(**changes)) is None
    assert all(one.why_not for one in weigh(long(**changes)))


def test_the_order_of_nodes_does_not_matter() -> None:
    def turned(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        return nodes[1:] + nodes[:1]

    assert where(planned(prefills=turned(P), decodes=turned(D))) == where(planned())
    assert all(node.role is Role.PREFILL for node in P)
