"""Another conversation's handle on a cold prefill leg, only to be freed."""

from types import TracebackType

from router.engines.upstream import NeverSent
from router.telemetry.facts import HandleFact, Outcome
from router.turn.context import Context
from router.turn.release import Due


class Ride:
    """Holds ``due``, if there is one, while the leg that carries it is open; then tells what became of it.

    A leg that was never sent, or that P had no room for (429), has told nobody anything, and the handle waits
    for the next. Any other refusal may be of what rode along, which is not to cost another turn its leg.
    """

    __slots__ = ("_context", "_due", "status")

    def __init__(self, context: Context, due: Due | None) -> None:
        self._context, self._due = context, due
        self.status: int | None = None

    def answered(self, status: int) -> None:
        """P's answer has this status."""
        self.status = status

    def __enter__(self) -> "Ride":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        due, context = self._due, self._context
        if due is None:
            return
        if isinstance(error, NeverSent) or (error is None and self.status == 429):
            context.releases.back(due)
        elif error is None and self.status == 200:
            context.releases.released(due)
            handle = due.handle
            context.facts.publish(HandleFact(Outcome.RELEASED, handle.decode, handle.tokens, due.cause))
        else:
            _lost(context, due)


def _lost(context: Context, due: Due) -> None:
    context.releases.failed(due)
    context.facts.publish(HandleFact(Outcome.LOST, due.handle.decode, due.handle.tokens, "release_failed"))
