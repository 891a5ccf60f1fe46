"""Another conversation's handle on a cold prefill leg, only to be freed."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from router.engines.upstream import NeverSent
from router.telemetry.facts import HandleFact, Outcome
from router.turn.context import Context
from router.turn.release import Due


@dataclass(slots=True)
class Ride:
    """``answered`` is told the status of P's answer, if there is one."""

    status: int | None = None

    def answered(self, status: int) -> None:
        self.status = status


@contextlib.contextmanager
def riding(context: Context, due: Due | None) -> Iterator[Ride]:
    """Hold ``due``, if there is one, while the leg that carries it is open; then tell what became of it.

    A leg that was never sent, or that P had no room for (429), has told nobody anything, and the handle waits
    for the next. Any other refusal may be of what rode along, which is not to cost another turn its leg.
    """
    ride, releases = Ride(), context.releases
    try:
        yield ride
    except NeverSent:
        if due is not None:
            releases.back(due)
        raise
    except BaseException:
        if due is not None:
            _lost(context, due)
        raise
    if due is None:
        return
    if ride.status == 200:
        releases.released(due)
        context.facts.publish(HandleFact(Outcome.RELEASED, due.handle.decode, due.handle.tokens, due.cause))
    elif ride.status == 429:
        releases.back(due)
    else:
        _lost(context, due)


def _lost(context: Context, due: Due) -> None:
    context.releases.failed(due)
    context.facts.publish(HandleFact(Outcome.LOST, due.handle.decode, due.handle.tokens, "release_failed"))
