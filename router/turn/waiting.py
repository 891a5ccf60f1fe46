"""Waiting for a leg's first byte, as long as anything can be expected of its node."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from router.engines.upstream import Broken
from router.fleet.leg import Leg


@contextlib.asynccontextmanager
async def while_expected(leg: Leg) -> AsyncIterator[None]:
    """Run what waits for a leg, and cancel it when its node is given up.

    Raises Broken then: whoever has no byte yet may go elsewhere. ``leg.when_given_up = None`` ends the watch:
    a node that streams is alive, whatever its probes say.
    """
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(None) as clock:
            leg.when_given_up = lambda: clock.reschedule(loop.time())
            yield
    except TimeoutError:
        if not leg.given_up:
            raise
        raise Broken(f"given up: {leg.given_up}") from None
    finally:
        leg.when_given_up = None
