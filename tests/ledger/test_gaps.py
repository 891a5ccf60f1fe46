"""The life table of silences: what it learns, what it forgets, and that it stays small."""

import random
from math import exp

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.ledger.gaps import HALF_LIFE_S, PRIOR, SLICE_S, Gaps
from router.ledger.store import Finish


def play(
    gaps: Gaps,
    *,
    finish: Finish,
    returning: float,
    mean_s: float,
    seconds: int,
    seed: int,
    begin_s: float = 0.0,
    rate: int = 5,
) -> None:
    """Conversations of one turn each, ``rate`` in a second; a share comes back after exponential gaps."""
    draw = random.Random(seed)
    events: list[tuple[float, float | None]] = []
    for at in range(seconds * rate):
        ended_s = begin_s + at / rate
        events.append((ended_s, None))
        if draw.random() < returning:
            silent_s = draw.expovariate(1 / mean_s)
            events.append((ended_s + silent_s, silent_s))
    for now_s, gap_s in sorted(events, key=lambda event: event[0]):
        if now_s > begin_s + seconds:
            break
        if gap_s is None:
            gaps.ended(finish, now_s)
        else:
            gaps.went_on(finish, gap_s, now_s)
    gaps.pass_time(begin_s + seconds)


def true_chance(returning: float, mean_s: float, waited_s: float, left_s: float) -> float:
    """Of an exponential gap that has lasted ``waited_s``, where a share never returns."""
    still = returning * exp(-waited_s / mean_s)
    return (still - returning * exp(-(waited_s + left_s) / mean_s)) / (still + 1 - returning)


@pytest.mark.parametrize(("returning", "mean_s"), [(0.3, 20.0), (0.9, 5.0), (0.05, 60.0), (1.0, 30.0)])
def test_it_learns_the_chance_to_go_on(returning: float, mean_s: float) -> None:
    gaps = Gaps(480.0)
    play(gaps, finish=Finish.STOP, returning=returning, mean_s=mean_s, seconds=1500, seed=1)
    for waited_s in (0.0, 5.0, 30.0, 100.0):
        expected = true_chance(returning, mean_s, waited_s, 200.0)
        if returning == 1.0 and waited_s > 2 * mean_s:
            continue  # hardly anybody is silent for so long, so there is little to learn from
        assert gaps.returns(Finish.STOP, waited_s, 200.0) == pytest.approx(expected, abs=0.06), waited_s


def test_kinds_are_told_apart() -> None:
    gaps = Gaps(480.0)
    play(gaps, finish=Finish.TOOL_CALLS, returning=0.95, mean_s=2.0, seconds=300, seed=2)
    play(gaps, finish=Finish.STOP, returning=0.2, mean_s=60.0, seconds=300, seed=3, begin_s=300.0)
    assert gaps.returns(Finish.TOOL_CALLS, 0.0, 60.0) > 0.9
    assert gaps.returns(Finish.STOP, 0.0, 60.0) < 0.2


def test_who_was_silent_for_long_is_less_likely_to_go_on() -> None:
    gaps = Gaps(480.0)
    play(gaps, finish=Finish.STOP, returning=0.3, mean_s=10.0, seconds=600, seed=4)
    chances = [gaps.returns(Finish.STOP, waited_s, 480.0 - waited_s) for waited_s in (0, 5, 10, 20, 40, 80)]
    assert chances == sorted(chances, reverse=True)
    assert chances[0] > 0.25
    assert chances[-1] < 0.02


def test_early_on_the_silence_of_the_newest_says_nothing() -> None:
    """A hundred turns a moment ago, none of which has gone on yet: that is no sign that none will."""
    gaps = Gaps(480.0)
    before = gaps.returns(Finish.STOP, 0.0, 100.0)
    for _ in range(100):
        gaps.ended(Finish.STOP, 10.0)
    gaps.pass_time(10.0 + SLICE_S)
    assert gaps.returns(Finish.STOP, 0.0, 100.0) == pytest.approx(before, abs=0.02)


def test_a_seldom_kind_leans_on_the_others() -> None:
    gaps = Gaps(480.0)
    play(gaps, finish=Finish.STOP, returning=0.0, mean_s=1.0, seconds=600, seed=5)
    assert gaps.returns(Finish.LENGTH, 0.0, 60.0) == pytest.approx(
        gaps.returns(Finish.STOP, 0.0, 60.0), abs=0.01
    )


def test_old_observations_fade() -> None:
    gaps = Gaps(60.0)
    play(gaps, finish=Finish.STOP, returning=0.0, mean_s=1.0, seconds=100, seed=6)
    gone = gaps.returns(Finish.STOP, 0.0, 60.0)
    gaps.pass_time(200.0)
    gaps.pass_time(200 + 20 * HALF_LIFE_S)
    assert gone < 0.05
    assert gaps.returns(Finish.STOP, 0.0, 60.0) > 0.5


def test_without_observations_there_is_a_prior() -> None:
    gaps = Gaps(480.0)
    assert gaps.returns(Finish.STOP, 0.0, 0.25) == pytest.approx(PRIOR)
    assert 0.5 < gaps.returns(Finish.STOP, 0.0, 480.0) < 1.0


def test_others_returns_do_not_outnumber_our_turns() -> None:
    """Where routers share a ledger, conversations come back here that never were here before."""
    gaps = Gaps(60.0)
    for second in range(200):
        gaps.ended(Finish.STOP, float(second))
        for _ in range(3):
            gaps.went_on(Finish.STOP, 1.5, second + 0.25)
    gaps.pass_time(300.0)
    assert gaps.returns(Finish.STOP, 0.0, 60.0) <= 1.0
    gaps.went_on(Finish.STOP, 1e9, 301.0)
    gaps.went_on(Finish.STOP, -1.0, 301.0)


def test_what_is_kept_is_bounded_by_the_horizon() -> None:
    gaps = Gaps(60.0)
    for turn in range(100_000):
        gaps.ended(Finish.STOP, turn / 50)
    assert sum(map(len, gaps._cohorts.values())) <= 60 / SLICE_S * 2


@given(
    st.lists(
        st.tuples(st.sampled_from(Finish), st.floats(0, 100), st.floats(0, 500)), min_size=1, max_size=60
    ),
    st.floats(0, 1000),
    st.floats(0, 1000),
)
def test_a_chance_is_a_chance(
    turns: list[tuple[Finish, float, float]], waited_s: float, left_s: float
) -> None:
    gaps = Gaps(480.0)
    now_s = 0.0
    for finish, after_s, gap_s in turns:
        now_s += after_s
        gaps.ended(finish, now_s)
        gaps.went_on(finish, gap_s, now_s + gap_s / 2)
    for finish in Finish:
        chance = gaps.returns(finish, waited_s, left_s)
        assert 0.0 <= chance <= 1.0
        assert gaps.returns(finish, waited_s, left_s + 10.0) >= chance - 1e-9


def test_curves_are_exported() -> None:
    curves = Gaps(480.0).curves(100.0)
    assert set(curves) == set(Finish)
    for curve in curves.values():
        assert list(curve) == [0.0, 1.0, 10.0, 60.0]
        assert all(0.0 <= chance <= 1.0 for chance in curve.values())


@pytest.mark.parametrize("horizon_s", [0.0, -1.0, float("inf"), float("nan")])
def test_a_horizon_is_a_positive_number(horizon_s: float) -> None:
    with pytest.raises(ValueError, match="horizon_s"):
        Gaps(horizon_s)


def test_routers_that_tell_each_other_know_as_much_as_one() -> None:
    """Each turn ends at a router by chance, and goes on at a router by chance."""
    draw = random.Random(7)
    one = Gaps(60.0)
    several = [Gaps(60.0, shared=True) for _ in range(3)]
    events: list[tuple[float, float | None]] = []
    for at in range(600 * 3):
        ended_s = at / 3
        events.append((ended_s, None))
        if draw.random() < 0.4:
            gap_s = draw.expovariate(1 / 8.0)
            events.append((ended_s + gap_s, gap_s))
    for now_s, ended_gap_s in sorted(events, key=lambda event: event[0]):
        for gaps in (one, draw.choice(several)):
            if ended_gap_s is None:
                gaps.ended(Finish.STOP, now_s)
            else:
                gaps.went_on(Finish.STOP, ended_gap_s, now_s)
    for gaps in (one, *several):
        gaps.pass_time(700.0)
    for gaps in several:
        gaps.hear((other.told(), 0.0) for other in several if other is not gaps)
    for waited_s in (0.0, 1.0, 5.0, 20.0):
        expected = one.returns(Finish.STOP, waited_s, 60.0 - waited_s)
        assert expected == pytest.approx(true_chance(0.4, 8.0, waited_s, 60.0 - waited_s), abs=0.06)
        for gaps in several:
            assert gaps.returns(Finish.STOP, waited_s, 60.0 - waited_s) == pytest.approx(expected, abs=0.01)


def test_what_was_heard_takes_the_place_of_what_was_heard_before() -> None:
    teller, gaps = Gaps(60.0, shared=True), Gaps(60.0, shared=True)
    play(teller, finish=Finish.STOP, returning=0.0, mean_s=1.0, seconds=100, seed=8)
    before = gaps.returns(Finish.STOP, 0.0, 60.0)
    for _ in range(3):
        gaps.hear([(teller.told(), 0.0)])
    once = gaps.returns(Finish.STOP, 0.0, 60.0)
    assert once == pytest.approx(teller.returns(Finish.STOP, 0.0, 60.0))
    gaps.hear([(teller.told(), 4 * HALF_LIFE_S)])
    assert once < gaps.returns(Finish.STOP, 0.0, 60.0) < before, "what is old tells less"
    gaps.hear([])
    assert gaps.returns(Finish.STOP, 0.0, 60.0) == before


@pytest.mark.parametrize("counts", [(), (1.0,), (float("nan"),) * 17, (float("inf"),) * 17], ids=str)
def test_tables_of_nonsense_tell_nothing(counts: tuple[float, ...]) -> None:
    gaps = Gaps(60.0, shared=True)
    before = gaps.returns(Finish.STOP, 0.0, 60.0)
    gaps.hear([({"stop": (counts, counts), "no kind": ((1.0,), (1.0,))}, 0.0)])
    assert gaps.returns(Finish.STOP, 0.0, 60.0) == before


def test_what_is_kept_of_others_turns_is_bounded_as_well() -> None:
    gaps = Gaps(60.0, shared=True)
    for turn in range(20_000):
        gaps.went_on(Finish.STOP, turn * 7 % 60, turn / 10)
    assert sum(map(len, gaps._cohorts.values())) <= 60 / SLICE_S * 2 + 2
