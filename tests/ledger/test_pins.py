"""The budget of pinned tokens, and which handle goes first."""

import pytest

from router.fleet.node import Engine
from router.ledger.gaps import Gaps
from router.ledger.pins import RELEASE_FROM, capacity_tokens, excess_tokens, least_likely
from router.ledger.store import Candidate, Finish

NOW_S = 1_000.0


def candidate(
    name: str,
    *,
    finish: Finish = Finish.STOP,
    tokens: int = 1_000,
    waited_s: float = 10.0,
    left_s: float = 470.0,
) -> Candidate:
    return Candidate(name, 1, "d", finish, tokens, NOW_S - waited_s, NOW_S + left_s)


def learned() -> Gaps:
    """Tool calls go on within seconds; of other turns one in ten does, within a minute."""
    gaps = Gaps(480.0)
    for turn in range(2_000):
        ended_s = turn / 4
        gaps.ended(Finish.TOOL_CALLS, ended_s)
        gaps.ended(Finish.STOP, ended_s)
        if turn > 4:
            gaps.went_on(Finish.TOOL_CALLS, 1.0, ended_s)
        if turn % 10 == 0 and turn > 120:
            gaps.went_on(Finish.STOP, 30.0, ended_s)
    return gaps


def test_the_capacity_is_what_the_metrics_tell() -> None:
    assert capacity_tokens(Engine(block_size=16, num_blocks=1_000)) == 16_000
    assert capacity_tokens(Engine(block_size=16)) is None
    assert capacity_tokens(Engine(num_blocks=16)) is None


@pytest.mark.parametrize(
    ("pinned", "excess"),
    [
        (0, 0),
        (int(5_000 * RELEASE_FROM), 0),
        (int(5_000 * RELEASE_FROM) + 1, 1),
        (9_000, 9_000 - int(5_000 * RELEASE_FROM)),
    ],
)
def test_what_is_over_the_budget(pinned: int, excess: int) -> None:
    assert excess_tokens(pinned, 10_000, 0.5) == excess


def test_without_a_known_capacity_nothing_is_over_the_budget() -> None:
    assert excess_tokens(10**9, None, 0.5) == 0


def test_nothing_to_choose_from() -> None:
    assert least_likely([], Gaps(480.0), NOW_S) is None


def test_the_least_likely_goes_first() -> None:
    gaps = learned()
    tool, stop = candidate("tool", finish=Finish.TOOL_CALLS, waited_s=0.1), candidate("stop", waited_s=0.1)
    choice = least_likely([tool, stop], gaps, NOW_S)
    assert choice is not None
    assert choice.candidate is stop
    assert choice.likelihood < 0.2


def test_a_tool_that_never_answered_goes_before_a_person_who_thinks() -> None:
    gaps = learned()
    tool = candidate("tool", finish=Finish.TOOL_CALLS, waited_s=40.0)
    stop = candidate("stop", waited_s=5.0)
    choice = least_likely([stop, tool], gaps, NOW_S)
    assert choice is not None
    assert choice.candidate is tool


def test_of_equals_the_one_that_frees_more_per_loss() -> None:
    small, large = candidate("small", tokens=500), candidate("large", tokens=20_000)
    choice = least_likely([small, large], learned(), NOW_S)
    assert choice is not None
    assert choice.candidate is large


def test_one_at_the_end_of_its_life_goes_before_one_that_lasts() -> None:
    lasts, ends = candidate("lasts", waited_s=20.0), candidate("ends", waited_s=20.0, left_s=0.5)
    choice = least_likely([lasts, ends], learned(), NOW_S)
    assert choice is not None
    assert choice.candidate is ends
