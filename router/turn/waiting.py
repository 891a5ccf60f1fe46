"""Waiting for a leg's first byte, as long as anything can be expected of its node."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from router.engines.upstream import Broken
from router.fleet.leg import Leg


@contextlib.asynccontextmanager
async def while_expected(leg: Leg) -> AsyncIterator[Callable[[], None]]:
    """Run what waits for a leg, and cancel it when its node is given up.

    Raises Broken then: whoever has no byte yet may go elsewhere. Gives what ends the watch, to be called as
    soon as something has come: a node that streams is alive, whatever its probes say.
    """
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(None) as clock:

            def end_watch() -> None:
                leg.when_given_up = None
                # Given up and answered in one turn of the loop: the answer counts.
                clock.reschedule(None)

            leg.when_given_up = lambda: clock.reschedule(loop.time())
            yield end_watch
    except TimeoutError:
        if not leg.given_up:
            raise
        raise Broken(f"given up: {leg.given_up}") from None
    finally:
        leg.when_given_up = None
