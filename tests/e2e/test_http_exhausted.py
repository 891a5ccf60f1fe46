"""A router that can open no more connections: its clients are told to come again, and no engine is blamed."""

import asyncio
import resource
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

from router.sim.config import EngineConfig
from router.sim.profiles import Profile
from tests.e2e.http_pool import CHAT, direct_client, error_of, opening, router_process, sim_servers, total

BUSY = EngineConfig(version="0.33.0", profile=Profile(prefill_ms=1_000.0))
"""Every leg has a connection of its own for a second."""


def leave_files(pid: int, free: int) -> None:
    """A process may open so many more files."""
    taken = {int(entry.name) for entry in Path(f"/proc/{pid}/fd").iterdir()}
    limit = 0
    while free:
        free -= limit not in taken
        limit += 1
    _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, hard))


async def test_no_engine_is_blamed_for_what_the_router_lacks() -> None:
    async with (
        sim_servers([BUSY] * 4) as (p, other_p, d, other_d),
        router_process([p.origin, other_p.origin], [d.origin, other_d.origin]) as (process, origin),
        direct_client(origin) as http,
        AsyncExitStack() as stack,
    ):
        # Their connections are there already, so that what is scarce is those to engines.
        clients = [await stack.enter_async_context(direct_client(origin)) for _ in range(20)]
        for client in (*clients, http):
            await client.get("/live")
        before = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        leave_files(process.pid, 2)
        answers = await asyncio.gather(
            *(one.post(CHAT, json=opening(f"turn {n}")) for n, one in enumerate(clients))
        )
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, before)
        statuses = Counter(answer.status_code for answer in answers)
        assert set(statuses) == {200, 503}, statuses
        refused = next(answer for answer in answers if answer.status_code == 503)
        assert error_of(refused)["code"] == "no_capacity"
        assert refused.headers["retry-after"] == "1"
        metrics = (await http.get("/metrics")).text
        assert total(metrics, "boomerang_leg_faults_total", fault="exhausted") == statuses[503]
        assert total(metrics, "boomerang_node_ejections_total") == 0
        assert total(metrics, "boomerang_open_legs") == 0
        assert (await http.post(CHAT, json=opening("again"))).status_code == 200
