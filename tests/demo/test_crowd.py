"""The demo's agents over a running pool."""

import asyncio
import threading

import pytest

from router.demo import crowd
from router.demo.crowd import crowd as crowd_of
from router.telemetry.facts import TurnEnded
from tests.e2e.http_pool import CHAT, NO_CACHE_P, fault, http_pool, until


async def test_agents_go_on_talking_also_after_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    async with http_pool(NO_CACHE_P) as pool:
        fault(pool.p, path=CHAT, status=400)
        monkeypatch.setattr(crowd, "PAUSE_S", (0.0, 0.01))
        monkeypatch.setattr(crowd, "AGAIN_S", 0.01)
        talking = crowd_of(pool.origin, "sim-qwen3", agents=2)
        talking.__enter__()
        try:

            def plans() -> set[str]:
                return {fact.plan for fact in pool.facts if isinstance(fact, TurnEnded)}

            await until(lambda: "pull" in plans(), "a turn that reuses")
            assert any(isinstance(fact, TurnEnded) and fact.status == 400 for fact in pool.facts)
        finally:
            # Its threads wait for answers that this loop has to give.
            await asyncio.to_thread(talking.__exit__, None, None, None)
        assert not [one for one in threading.enumerate() if one.name.startswith("agent ")]
        await pool.idle()
