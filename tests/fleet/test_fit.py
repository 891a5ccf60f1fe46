"""A line follows what is measured, forgets it in time, and is not thrown by one odd observation."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.fleet.fit import CLIP, CLIP_FLOOR_S, Fit, Line, Mean

PRIOR = Line(0.1, 27e-6)


def close(line: Line, to: Line, *, within: float = 0.05) -> bool:
    return all(abs(line.at(n) - to.at(n)) <= within * to.at(n) + 1e-3 for n in (500, 4_000, 20_000))


def test_without_observations_the_line_is_its_prior() -> None:
    assert Fit(PRIOR).line == PRIOR


@pytest.mark.parametrize("true", [Line(0.05, 50e-6), Line(0.0, 10e-6), Line(2.0, 1e-3), Line(0.01, 0.0)])
def test_a_line_is_found_from_its_points(true: Line) -> None:
    fit = Fit(PRIOR)
    for at in range(200):
        tokens = 300 + at * 397 % 20_000
        fit.observe(tokens, true.at(tokens), now_s=float(at))
    assert close(fit.line, true)


def test_prompts_of_one_size_set_the_level_and_the_prior_keeps_the_slope() -> None:
    """A machine that is ten times slower, seen at one size only, is taken to be so at any size."""
    fit = Fit(PRIOR)
    for at in range(40):
        fit.observe(800, 10 * PRIOR.at(800), now_s=float(at))
    assert close(fit.line, Line(10 * PRIOR.fixed_s, 10 * PRIOR.token_s), within=0.15)


def test_one_odd_observation_counts_as_a_few_and_no_more() -> None:
    fit = Fit(PRIOR)
    for at in range(30):
        fit.observe(1000 + 100 * at, PRIOR.at(1000 + 100 * at), now_s=0.0)
    fit.observe(2000, 60.0, now_s=0.0)
    assert fit.line.at(2000) < 1.2 * PRIOR.at(2000)


def test_a_node_that_is_slow_for_good_is_believed_in_the_end() -> None:
    fit, slow = Fit(PRIOR), Line(5.0, 1e-3)
    for at in range(60):
        fit.observe(1000 + 100 * (at % 20), slow.at(1000 + 100 * (at % 20)), now_s=float(at))
    assert fit.line.at(2000) > 0.7 * slow.at(2000)


def test_what_is_old_loses_its_weight_and_the_prior_comes_back() -> None:
    fit = Fit(PRIOR, half_life_s=10.0)
    for at in range(20):
        fit.observe(1000, 3 * PRIOR.at(1000), now_s=float(at))
    slow = fit.line.at(1000)
    fit.refresh(PRIOR, now_s=300.0)
    assert slow > 2.5 * PRIOR.at(1000)
    assert close(fit.line, PRIOR)


@given(st.lists(st.tuples(st.integers(1, 200_000), st.floats(0, 1000), st.floats(0, 100)), max_size=30))
def test_no_line_ever_falls_or_gives_less_than_nothing(seen: list[tuple[int, float, float]]) -> None:
    fit, now_s = Fit(PRIOR), 0.0
    for tokens, seconds, later_s in seen:
        now_s += later_s
        most = max(fit.line.at(tokens), CLIP_FLOOR_S) * CLIP
        fit.observe(tokens, seconds, now_s)
        assert fit.line.fixed_s >= 0.0
        assert fit.line.token_s >= 0.0
        assert fit.line.at(tokens) <= 3 * most, "the level moves with the slope"


def test_a_mean_begins_with_its_prior_and_forgets() -> None:
    mean = Mean(1.0, prior_weight=4.0, half_life_s=10.0)
    assert mean.value == 1.0
    for _ in range(16):
        mean.observe(0.0, now_s=0.0)
    assert mean.value == pytest.approx(0.2)
    mean.observe(1.0, now_s=1000.0)
    assert mean.value == pytest.approx(1.0)
