"""Background tasks that do not die: each round's failure is a fact, and the next round comes all the same."""

import asyncio
from collections.abc import Awaitable, Callable

from router.telemetry.facts import Facts, TaskFailed


async def repeat(task: str, step: Callable[[], Awaitable[None]], every_s: float, facts: Facts) -> None:
    """Run ``step`` every ``every_s`` seconds until cancelled."""
    while True:
        try:
            await step()
        except Exception as error:
            facts.publish(TaskFailed(task, f"{type(error).__name__}: {error}"))
        await asyncio.sleep(every_s)
