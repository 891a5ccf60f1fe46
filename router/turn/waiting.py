"""Waiting for a leg's first byte, as long as anything can be expected of its node."""

import asyncio
from collections.abc import Callable
from types import TracebackType

from router.engines.upstream import Broken
from router.fleet.leg import Leg


class WhileExpected:
    """Runs what waits for a leg, and cancels it when its node is given up; for a task's ``with`` statement.

    Raises Broken then: whoever has no byte yet may go elsewhere. Gives what ends the watch, to be called as
    soon as something has come: a node that streams is alive, whatever its probes say.

    As ``asyncio.timeout``, with a node's giving up for the time: each leg has one, and few fire.
    """

    __slots__ = ("_cancelling", "_handle", "_has_cancelled", "_leg", "_loop", "_task")

    def __init__(self, leg: Leg) -> None:
        self._leg = leg
        self._handle: asyncio.Handle | None = None
        self._has_cancelled = False

    def __enter__(self) -> Callable[[], None]:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("there is no task to cancel")
        self._task, self._loop, self._cancelling = task, task.get_loop(), task.cancelling()
        self._leg.when_given_up = self._given_up
        return self._end

    def _given_up(self) -> None:
        if self._handle is None:
            # Not at once: given up and answered in one turn of the loop, the answer counts.
            self._handle = self._loop.call_soon(self._cancel)

    def _cancel(self) -> None:
        self._has_cancelled = True
        self._task.cancel()

    def _end(self) -> None:
        self._leg.when_given_up = None
        if self._handle is not None:
            self._handle.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
        # Somebody else may have cancelled the task besides.
        is_ours = self._has_cancelled and self._task.uncancel() <= self._cancelling
        if is_ours and kind is asyncio.CancelledError:
            raise Broken(f"given up: {self._leg.given_up}") from None
