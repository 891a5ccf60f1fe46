"""Background tasks that do not die: one that raises is a fact, and starts again."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

from router.telemetry.facts import Facts, TaskFailed

Run = Callable[[], Awaitable[None]]
RESTART_PAUSE_S = 1.0


@contextlib.asynccontextmanager
async def supervised(tasks: Mapping[str, Run], facts: Facts) -> AsyncIterator[None]:
    """Keep the named tasks running inside; they are cancelled, and have ended, at the end."""
    running = [asyncio.create_task(_keep(name, run, facts), name=name) for name, run in tasks.items()]
    try:
        yield
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def every(interval_s: float, step: Run) -> Run:
    """A task that runs ``step`` now and every ``interval_s`` seconds."""

    async def run() -> None:
        while True:
            await step()
            await asyncio.sleep(interval_s)

    return run


async def _keep(name: str, run: Run, facts: Facts) -> None:
    while True:
        try:
            await run()
            facts.publish(TaskFailed(name, "it ended"))
        except Exception as error:
            facts.publish(TaskFailed(name, f"{type(error).__name__}: {error}"))
        await asyncio.sleep(RESTART_PAUSE_S)
