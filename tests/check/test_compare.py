from dataclasses import replace

import pytest

from router.check.compare import has_fallen, parting, sizes_differ
from router.check.observed import TurnSeen
from router.fleet.node import Engine, Role
from tests.check.values import failed, leg


def turn(first: int, *answer: int) -> TurnSeen:
    return TurnSeen(leg(Role.PREFILL, first), leg(Role.DECODE, *answer))


@pytest.mark.parametrize(
    ("one", "at"),
    [
        (turn(7, 7, 8, 9), None),
        (turn(7, 7, 8, 1), 2),
        (turn(7, 7, 8), 2),
        (turn(7, 7, 8, 9, 4), 3),
        (turn(6, 7, 8, 9), 0),
        (TurnSeen(leg(Role.PREFILL, 7), failed()), None),
        (TurnSeen(leg(Role.PREFILL, 7)), None),
    ],
)
def test_where_answers_part(one: TurnSeen, at: int | None) -> None:
    assert parting(one, turn(7, 7, 8, 9)) == at


def test_an_answer_without_tokens_is_not_compared() -> None:
    silent = replace(leg(Role.DECODE), answer=None)
    assert parting(TurnSeen(leg(Role.PREFILL), silent), turn(7, 7)) is None


def test_usage_has_fallen_by_half_of_what_was_released() -> None:
    assert has_fallen(0.50, 0.45, 0.10)
    assert not has_fallen(0.50, 0.46, 0.10)


def test_unknown_sizes_do_not_differ() -> None:
    assert sizes_differ(Engine(block_size=16), Engine(block_size=32))
    assert not sizes_differ(Engine(block_size=16), Engine(block_size=16))
    assert not sizes_differ(Engine(block_size=16), Engine())
