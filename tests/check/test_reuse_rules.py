from dataclasses import replace
from typing import Any

import pytest

from router.check import reuse_rules
from router.check.findings import Judged, Verdict
from router.check.observed import Assumed, Divergence, PairSeen, ReleaseSeen, ReuseSeen, TurnSeen
from router.fleet.node import Role
from tests.check.values import failed, good_pair, leg, node

OK, WARNING, ERROR, SKIPPED = Verdict.OK, Verdict.WARNING, Verdict.ERROR, Verdict.SKIPPED


def judged(rule: Any, seen: PairSeen) -> Judged:
    found: Judged | None = rule(seen, Assumed())
    assert found is not None
    assert found.advice or found.verdict in (OK, SKIPPED)
    return found


def second(prefill: Any, **changes: Any) -> PairSeen:
    reuse = ReuseSeen(TurnSeen(prefill, leg(Role.DECODE, 7)), False, 210, 200, 0)
    return replace(good_pair(), second=replace(reuse, **changes))


def reused(tokens: int | None, **members: Any) -> Any:
    return leg(Role.PREFILL, 7, remote_prefill_cached_tokens=tokens, **members)


def verified(tokens: int) -> dict[str, Any]:
    return {"boomerang": {"verified_tokens": tokens}}


@pytest.mark.parametrize("name", reuse_rules.REUSE_RULES)
def test_all_is_well(name: str) -> None:
    assert judged(reuse_rules.REUSE_RULES[name], good_pair()).verdict is OK


@pytest.mark.parametrize("name", reuse_rules.REUSE_RULES)
def test_what_was_not_reached_is_not_judged(name: str) -> None:
    nothing = PairSeen(node(Role.PREFILL), node(Role.DECODE))
    assert reuse_rules.REUSE_RULES[name](nothing, Assumed()) is None


@pytest.mark.parametrize(
    ("seen", "verdict"),
    [
        (second(reused(200)), OK),
        (second(reused(208)), OK),
        (second(reused(199)), ERROR),
        (second(reused(0)), ERROR),
        (second(reused(None)), WARNING),
        (second(failed()), ERROR),
        (second(failed(timed_out=True, status=None)), SKIPPED),
        (second(reused(192, **verified(192)), by_engine=True, local_tokens=112), OK),
        (second(reused(112, **verified(192)), by_engine=True, local_tokens=112), ERROR),
        (second(reused(112, **verified(112)), by_engine=True, local_tokens=112), ERROR),
        (second(reused(0, **verified(0)), by_engine=True), ERROR),
        (replace(good_pair(), unfit="kv_groups"), ERROR),
    ],
)
def test_reuse_is_what_p_reports(seen: PairSeen, verdict: Verdict) -> None:
    assert judged(reuse_rules.reuse, seen).verdict is verdict


def test_a_hang_is_told_from_a_dead_engine() -> None:
    late = failed(timed_out=True, status=None)
    hangs = judged(reuse_rules.bidirectional_prefill, second(late, serves_others=True))
    assert (hangs.verdict, "hangs on a handle" in hangs.seen) == (ERROR, True)
    assert "bidirectional_kv_xfer" in hangs.advice
    dead = judged(reuse_rules.bidirectional_prefill, second(late, serves_others=False))
    assert (dead.verdict, "nothing any more" in dead.seen) == (ERROR, True)
    assert judged(reuse_rules.bidirectional_prefill, second(failed())).verdict is SKIPPED


@pytest.mark.parametrize(
    ("divergence", "verdict"),
    [
        (None, OK),
        (Divergence(3, reproducible=True, gap=0.01), WARNING),
        (Divergence(3, reproducible=True, gap=0.125), ERROR),
        (Divergence(0, reproducible=True, gap=None), ERROR),
        (Divergence(3, reproducible=False, gap=None), WARNING),
    ],
)
def test_answers_differ_by_rounding_or_are_wrong(divergence: Divergence | None, verdict: Verdict) -> None:
    found = judged(reuse_rules.answer, replace(good_pair(), divergence=divergence))
    assert found.verdict is verdict
    assert ("WRONG" in found.seen) == (verdict is ERROR)


def test_answers_without_tokens_are_not_compared() -> None:
    seen = replace(good_pair(), reference=TurnSeen(leg(Role.PREFILL, 7), failed()))
    found = judged(reuse_rules.answer, seen)
    assert found.verdict is SKIPPED
    assert "answered 500" in found.seen


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({}, OK),
        ({"after": 0.0079}, OK),
        ({"after": 0.0081}, WARNING),
        ({"after": 0.02, "is_busy": True}, SKIPPED),
        ({"after": None}, SKIPPED),
        ({"pinned_share": None}, SKIPPED),
        ({"fault": "answered 500"}, WARNING),
    ],
)
def test_a_release_shows_in_the_usage(change: dict[str, Any], verdict: Verdict) -> None:
    seen = ReleaseSeen(2, 0.004, 0.010, 0.006, 0.3, is_busy=False)
    assert (
        judged(reuse_rules.release, replace(good_pair(), release=replace(seen, **change))).verdict is verdict
    )


def test_a_hanging_p_releases_nothing() -> None:
    seen = second(failed(timed_out=True, status=None))
    assert judged(reuse_rules.release, seen).verdict is WARNING
