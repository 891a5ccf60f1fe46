"""The clock that routers of one store share."""

import pytest

from router.ledger.clock import TOLERANCE_S, SharedClock


class Hands:
    """A machine's two clocks."""

    def __init__(self, wall_s: float, monotonic_s: float) -> None:
        self.wall_s, self.monotonic_s = wall_s, monotonic_s

    def clock(self) -> SharedClock:
        return SharedClock(wall=lambda: self.wall_s, monotonic=lambda: self.monotonic_s)


def test_before_an_answer_it_is_the_wall_clock_that_ran_on_steadily() -> None:
    hands = Hands(1_000_000.0, 50.0)
    clock = hands.clock()
    assert clock() == 1_000_000.0
    hands.monotonic_s += 7
    hands.wall_s -= 3600  # an operator sets it back
    assert clock() == 1_000_007.0


def test_machines_whose_clocks_differ_agree_by_the_store() -> None:
    clocks = [Hands(wall_s, 5.0).clock() for wall_s in (1_000.0, 4_600.0, -2_600.0)]
    for clock in clocks:
        clock.agree(2_000.0, 0.002)
        assert clock() == pytest.approx(2_000.001)


@pytest.mark.parametrize("difference_s", [TOLERANCE_S, -TOLERANCE_S, 0.01])
def test_small_differences_leave_durations_alone(difference_s: float) -> None:
    clock = Hands(1_000.0, 5.0).clock()
    assert clock.agree(1_000.0 + difference_s, 0.0) == 0.0
    assert clock() == 1_000.0


def test_an_answer_that_took_long_proves_less() -> None:
    clock = Hands(1_000.0, 5.0).clock()
    assert clock.agree(1_000.2, 0.4) == 0.0
    assert clock.agree(1_001.0, 0.4) == pytest.approx(1.2)
