"""Background tasks that raise, end, and are stopped."""

import asyncio

import pytest

from router import supervise
from router.supervise import every, supervised
from router.telemetry.facts import Fact, Facts, TaskFailed


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "RESTART_PAUSE_S", 0.0)


class Heard:
    """What was published, and a way to wait for it."""

    def __init__(self) -> None:
        self.facts = Facts()
        self.failures: list[TaskFailed] = []
        self.facts.subscribe(self._take)
        self._more = asyncio.Event()

    def _take(self, fact: Fact) -> None:
        assert isinstance(fact, TaskFailed)
        self.failures.append(fact)
        self._more.set()

    async def until(self, count: int) -> None:
        async with asyncio.timeout(30):
            while len(self.failures) < count:
                self._more.clear()
                await self._more.wait()


async def test_a_task_that_raises_is_a_fact_and_starts_again() -> None:
    heard, starts = Heard(), 0

    async def broken() -> None:
        nonlocal starts
        starts += 1
        raise ValueError(f"attempt {starts}")

    async with supervised({"probe": broken}, heard.facts):
        await heard.until(3)
    assert heard.failures[:2] == [
        TaskFailed("probe", "ValueError: attempt 1"),
        TaskFailed("probe", "ValueError: attempt 2"),
    ]


async def test_a_task_that_ends_starts_again_and_says_so() -> None:
    heard = Heard()

    async def short() -> None:
        await asyncio.sleep(0)

    async with supervised({"sweep": short}, heard.facts):
        await heard.until(2)
    assert heard.failures[0] == TaskFailed("sweep", "it ended")


async def test_one_that_fails_does_not_disturb_the_others() -> None:
    heard, steps = Heard(), asyncio.Semaphore(0)

    async def broken() -> None:
        raise OSError("no disk")

    async def good() -> None:
        while True:
            steps.release()
            await asyncio.sleep(0)

    async with supervised({"broken": broken, "good": good}, heard.facts):
        await heard.until(2)
        async with asyncio.timeout(30):
            for _ in range(5):
                await steps.acquire()
    assert {failure.task for failure in heard.failures} == {"broken"}


async def test_all_have_ended_when_the_context_has() -> None:
    heard, cleaned = Heard(), []

    async def waiting() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append("waiting")

    with pytest.raises(RuntimeError, match="the caller's own"):
        async with supervised({"waiting": waiting}, heard.facts):
            await asyncio.sleep(0)
            raise RuntimeError("the caller's own")
    assert cleaned == ["waiting"]
    assert not heard.failures, "being stopped is no failure"


async def test_every_runs_now_and_again() -> None:
    done = 0
    enough = asyncio.Event()

    async def step() -> None:
        nonlocal done
        done += 1
        if done == 3:
            enough.set()

    async with supervised({"step": every(0.001, step)}, Facts()), asyncio.timeout(30):
        await enough.wait()
    assert done >= 3
    async with supervised({"step": every(3_600.0, step)}, Facts()):
        before = done
        await asyncio.sleep(0)
        assert done == before + 1, "at once, and then not for an hour"
