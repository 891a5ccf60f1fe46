"""Clocks of the simulation: the real one, and one that advances without waiting.

A virtual clock moves only when everything that can run has run: a sleeper is woken, in order of its deadline,
after a few passes of the event loop in which nobody woke. It knows nothing of sockets, so use it in process
only.
"""

import asyncio
import heapq
import time
from typing import Final, Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Seconds, monotonic."""

    async def sleep(self, seconds: float) -> None:
        """Return once ``seconds`` have passed on this clock."""


class RealClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class VirtualClock:
    """A clock that jumps to the next sleeper's deadline as soon as the event loop is idle."""

    _QUIET_PASSES: Final = 4

    def __init__(self, start_s: float = 1_000.0) -> None:
        self._now = start_s
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = 0
        self._ticking = False

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        """Move the clock by hand, waking every sleeper whose deadline passes."""
        self._now += seconds
        while self._sleepers and self._sleepers[0][0] <= self._now:
            self._wake()

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            return
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._order += 1
        heapq.heappush(self._sleepers, (self._now + seconds, self._order, future))
        if not self._ticking:
            self._ticking = True
            loop.call_soon(self._tick, self._QUIET_PASSES)
        await future

    def _wake(self) -> None:
        deadline, _, future = heapq.heappop(self._sleepers)
        self._now = max(self._now, deadline)
        if not future.done():
            future.set_result(None)

    def _tick(self, passes_left: int) -> None:
        while self._sleepers and self._sleepers[0][2].done():
            heapq.heappop(self._sleepers)
        if not self._sleepers:
            self._ticking = False
            return
        if not passes_left:
            self._wake()
        following = passes_left - 1 if passes_left else self._QUIET_PASSES
        asyncio.get_running_loop().call_soon(self._tick, following)
