"""Nodes in processes of their own that are killed under load, and come back."""

import asyncio
import contextlib
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from router.app import build
from router.fleet.node import Role, State
from tests.e2e.http_pool import (
    CHAT,
    PATIENCE_S,
    continued,
    direct_client,
    opening,
    serving,
    settings_for,
    until,
)  # fmt: skip
from tests.engines.scripted import closed_port


@dataclass(slots=True)
class SimProcess:
    """A simulated engine that can be killed as an engine can, and started again in its place."""

    port: int
    process: Process | None = None

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "router", "sim", "--port", str(self.port), "--profile", "instant"),
            cwd=Path(__file__).parent.parent.parent, stdout=DEVNULL, stderr=DEVNULL,
        )  # fmt: skip

    async def kill(self) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.kill()
            await self.process.wait()

    async def corruptions(self) -> list[Any]:
        async with direct_client(self.origin) as http:
            found: list[Any] = (await http.get("/sim/state")).json()["corruptions"]
            return found


@asynccontextmanager
async def sim_processes(count: int) -> AsyncIterator[list[SimProcess]]:
    async with AsyncExitStack() as stack:
        engines = [SimProcess(closed_port()) for _ in range(count)]
        for engine in engines:
            stack.push_async_callback(engine.kill)
            await engine.start()
        yield engines


@dataclass(slots=True)
class Load:
    """Conversations that go on whatever happens; what came of their turns."""

    http: httpx.AsyncClient
    answered: int = 0
    errors: list[tuple[int, str]] = field(default_factory=list)
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, name: str) -> None:
        talk = 0
        while not self.stop.is_set():
            talk += 1
            body = opening(f"{name} {talk}")
            for _ in range(4):
                answer = await self.http.post(CHAT, json=body)
                if answer.status_code != 200:
                    self.errors.append((answer.status_code, answer.text))
                    break
                self.answered += 1
                body = continued(body, answer.json())


async def test_killed_nodes_cost_at_most_the_turns_that_were_on_them() -> None:
    async with sim_processes(4) as engines:
        prefills, decodes = engines[:2], engines[2:]
        settings = settings_for(
            [engine.origin for engine in prefills], [engine.origin for engine in decodes],
            probe_interval_s=0.1, probe_timeout_s=5.0, connect_timeout_s=5.0, pull_timeout_s=10.0,
            first_token_timeout_s=20.0, prefill_timeout_s=20.0, decode_timeout_s=20.0,
        )  # fmt: skip
        router = build(settings)
        async with serving(settings, router) as origin, direct_client(origin) as http:
            fleet = router.context.fleet

            def ready() -> int:
                return sum(node.state is State.READY for node in fleet.snapshot.nodes)

            await until(lambda: ready() == 4, "all engines")
            load = Load(http)
            running = [asyncio.create_task(load.run(name)) for name in ("anna", "bert", "carl", "dora")]
            try:
                for victim in (decodes[0], prefills[0]):
                    seen = load.answered
                    await until(lambda seen=seen: load.answered > seen + 8, "load")  # type: ignore[misc]
                    await victim.kill()
                    await until(lambda: ready() == 3, "the ejection")
                    failed = len(load.errors)
                    seen = load.answered
                    await until(lambda seen=seen: load.answered > seen + 8, "turns without it")  # type: ignore[misc]
                    assert load.errors[failed:] == [], "turns that do not touch the dead node do not fail"
                    await victim.start()
                    await until(lambda: ready() == 4, "its return")
            finally:
                load.stop.set()
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait_for(asyncio.gather(*running), PATIENCE_S)
            # No more than each conversation's one open turn for each kill.
            assert len(load.errors) <= 2 * len(running), load.errors
            assert {status for status, _ in load.errors} <= {500, 502, 504}
            assert router.open_turns.count == 0
            await until(lambda: not any(node.in_flight for node in fleet.snapshot.nodes), "open legs")
            renewed = {node.role for node in fleet.snapshot.nodes if node.renewed_at_s is not None}
            assert renewed == {Role.PREFILL, Role.DECODE}, "both victims are known to be other processes"
        for engine in engines:
            assert await engine.corruptions() == []
