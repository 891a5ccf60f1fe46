"""When a breaker opens, whom it lets through, and what closes it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.fleet.breaker import WINDOW_LEGS, WINDOW_S, Breaker, Rules, Verdict, due, judged, tried, untried
from router.fleet.node import Circuit, Ejection

RULES = Rules(failures=3, open_s=10.0)
OK, BUSY, FAULT = Verdict


def play(verdicts: list[Verdict], *, start: Breaker | None = None, step_s: float = 0.0) -> Breaker:
    breaker = start or Breaker()
    for at, verdict in enumerate(verdicts):
        breaker = judged(breaker, verdict, at * step_s, RULES, why=f"leg {at}")
    return breaker


@pytest.mark.parametrize(
    ("verdicts", "opens"),
    [
        ([FAULT, FAULT], False),
        ([FAULT, FAULT, FAULT], True),
        ([FAULT, FAULT, OK, FAULT, FAULT], False),
        ([FAULT, FAULT, BUSY, FAULT], True),  # E3: busy does not reset a row of faults
        ([BUSY] * 50, False),
        ([OK] * 50, False),
        ([OK, FAULT] * 2, False),  # too few for a share
        ([OK, FAULT] * 3, True),
        ([FAULT, OK, OK] * 10, False),
    ],
)
def test_when_it_opens(verdicts: list[Verdict], opens: bool) -> None:
    assert (play(verdicts).circuit is Circuit.OPEN) is opens


def test_why_it_opened() -> None:
    assert play([FAULT] * 3).why == "3 legs in a row failed; the last: leg 2"
    assert play([FAULT] * 3).opened_by is Ejection.LEGS_IN_A_ROW
    assert play([OK, FAULT] * 3).why == "3 of 6 legs failed; the last: leg 5"
    assert play([OK, FAULT] * 3).opened_by is Ejection.LEGS_SHARE
    assert play([FAULT] * 2).opened_by is None


def test_old_faults_are_no_share() -> None:
    assert play([OK, FAULT] * 3, step_s=WINDOW_S).circuit is Circuit.CLOSED


def test_half_open_lets_one_leg_through_and_it_decides() -> None:
    opened = judged(play([FAULT] * 2), FAULT, 100.0, RULES)
    assert (opened.circuit, opened.open_until_s, opened.trips) == (Circuit.OPEN, 110.0, 1)
    assert due(opened, 109.9) == opened
    half = due(opened, 110.0)
    assert half.circuit is Circuit.HALF_OPEN
    trying = tried(half, 110.0, RULES)
    assert trying.circuit is Circuit.TRYING
    assert tried(trying, 110.5, RULES) == trying

    closed = judged(trying, OK, 111.0, RULES, on_trial=True)
    assert (closed.circuit, closed.why, closed.in_a_row, closed.newest) == (Circuit.CLOSED, "", 0, ())
    assert closed.opened_by is None
    again = judged(trying, FAULT, 111.0, RULES, why="refused", on_trial=True)
    assert (again.circuit, again.open_until_s, again.trips) == (Circuit.OPEN, 121.0, 2)
    assert again.why == "the leg on trial failed: refused"
    for unclear in (judged(trying, BUSY, 111.0, RULES, on_trial=True), untried(trying)):
        assert unclear.circuit is Circuit.HALF_OPEN


@pytest.mark.parametrize("circuit", [Circuit.OPEN, Circuit.HALF_OPEN, Circuit.TRYING])
@pytest.mark.parametrize("verdict", list(Verdict))
def test_legs_of_another_time_decide_nothing(circuit: Circuit, verdict: Verdict) -> None:
    breaker = Breaker(circuit, "why", open_until_s=10.0, trips=1)
    assert judged(breaker, verdict, 1.0, RULES) == breaker


@given(st.lists(st.tuples(st.sampled_from(list(Verdict)), st.floats(0, 30), st.booleans()), max_size=80))
def test_it_is_bounded_and_always_comes_back(legs: list[tuple[Verdict, float, bool]]) -> None:
    breaker, now_s = Breaker(), 0.0
    for verdict, passed_s, sent in legs:
        now_s += passed_s
        breaker = due(breaker, now_s)
        on_trial = sent and breaker.circuit is Circuit.HALF_OPEN
        breaker = tried(breaker, now_s, RULES) if on_trial else breaker
        breaker = judged(breaker, verdict, now_s, RULES, on_trial=on_trial)
        assert breaker.circuit is not Circuit.TRYING
        assert len(breaker.newest) <= WINDOW_LEGS
        assert (breaker.open_until_s is not None) is (breaker.circuit is Circuit.OPEN)
    half = due(breaker, now_s + RULES.open_s)
    assert half.circuit in (Circuit.CLOSED, Circuit.HALF_OPEN)
    assert judged(tried(half, now_s, RULES), OK, now_s, RULES, on_trial=True).circuit is Circuit.CLOSED


def with_peers(legs: list[tuple[Verdict, str]]) -> Breaker:
    breaker = Breaker()
    for verdict, peer in legs:
        breaker = judged(breaker, verdict, 0.0, RULES, peer=peer)
    return breaker


@pytest.mark.parametrize(
    ("legs", "opens"),
    [
        # One of two peers fails: it is the peer's fault, or the pair's, and there is another.
        ([(OK, "p2"), (FAULT, "p1"), (FAULT, "p1"), (FAULT, "p1"), (FAULT, "p1")], False),
        ([(OK, "p2"), (FAULT, "p1")] * 6, False),
        # All that there are fail, be it one or two of them.
        ([(FAULT, "p1")] * 3, True),
        ([(FAULT, "p1"), (FAULT, "p2"), (FAULT, "p1")], True),
        # A prefill node's own legs go well, and no decode node can read from it.
        ([(OK, ""), (FAULT, "d1"), (OK, ""), (FAULT, "d2"), (OK, ""), (FAULT, "d1")], True),
        # One of two decode nodes cannot.
        ([(OK, ""), (FAULT, "d1"), (OK, ""), (OK, "d2")] * 5, False),
        # A fault without a peer is its own.
        ([(OK, "p2"), (FAULT, "p1"), (FAULT, ""), (FAULT, "p1")], True),
    ],
)
def test_faults_that_a_peer_may_be_to_blame_for(legs: list[tuple[Verdict, str]], opens: bool) -> None:
    assert (with_peers(legs).circuit is Circuit.OPEN) is opens


def test_a_trial_that_takes_long_holds_up_no_other() -> None:
    breaker = Breaker(Circuit.HALF_OPEN, "why")
    trying = tried(breaker, 100.0, RULES)
    assert due(trying, 100.0 + RULES.open_s - 0.1).circuit is Circuit.TRYING
    again = due(trying, 100.0 + RULES.open_s)
    assert again.circuit is Circuit.HALF_OPEN
    late = judged(again, OK, 200.0, RULES, on_trial=True)
    assert late.circuit is Circuit.CLOSED
    assert judged(again, FAULT, 200.0, RULES, on_trial=True).circuit is Circuit.OPEN
