"""An event loop whose clock jumps: whoever sleeps is woken as soon as nothing else can run.

Hours of pauses, time-outs and deadlines pass in no time, in the same order on every machine. It serves code
that talks to nobody outside of the process: a loop that would wait for a socket raises instead.
"""

import asyncio
import selectors
from collections.abc import Mapping
from typing import Any


class _JumpingSelector(selectors.BaseSelector):
    """Never waits: moves the loop's clock by the time that a real selector would have waited."""

    def __init__(self) -> None:
        self._real = selectors.DefaultSelector()
        self.now_s = 1_000.0

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout <= 0:
            return []
        ready = self._real.select(0)
        if not ready:
            if timeout is None:
                raise RuntimeError("every task waits for something that nobody will do")
            self.now_s += timeout
        return ready

    def close(self) -> None:
        self._real.close()

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._real.get_map()


class VirtualLoop(asyncio.SelectorEventLoop):
    """See the module's text."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s

    def advance(self, seconds: float) -> None:
        """Let time pass while nobody waits; what falls due runs as soon as the loop does."""
        self._jumping.now_s += seconds


class LoopClock:
    """The running loop's time, as a clock of the simulated engines."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def now(self) -> float:
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
