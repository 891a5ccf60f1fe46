"""The clock that routers of one shared store have in common: the store's own.

Each process's wall clock may be wrong, or jump, and a handle whose end one router wrote is read by another.
So all go by the store's clock, as far as it is known from its answers, and step on with their own monotonic
clocks in between. Before the first answer it is the wall clock.
"""

import time
from collections.abc import Callable

TOLERANCE_S = 0.25
"""A smaller difference is left alone: durations are measured with this clock, too. It is far less than the
margin by which handles are given up early (``deadline_margin_s``)."""


class SharedClock:
    """Seconds since the epoch, by the store's clock. Never jumps but when ``agree`` finds a difference."""

    __slots__ = ("_monotonic", "_offset_s")

    def __init__(
        self, *, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._monotonic = monotonic
        self._offset_s = wall() - monotonic()

    def __call__(self) -> float:
        return self._monotonic() + self._offset_s

    def agree(self, store_s: float, waited_s: float) -> float:
        """Take over what the store's clock said in an answer that took ``waited_s``; the correction made.

        The answer was made somewhere within that time: half of it is how wrong this can be.
        """
        difference_s = store_s + waited_s / 2 - self()
        if abs(difference_s) <= TOLERANCE_S + waited_s / 2:
            return 0.0
        self._offset_s += difference_s
        return difference_s
