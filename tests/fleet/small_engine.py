"""A small HTTP server that answers what a test tells it to."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tests.engines.scripted import Peer, Seen, engine

METRICS = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="tiny"}} 2.0
vllm:num_requests_waiting{{engine="0",model_name="tiny"}} 3.0
vllm:kv_cache_usage_perc{{engine="0",model_name="tiny"}} 0.25
vllm:cache_config_info{{block_size="128",enable_prefix_caching="True",engine="0",num_gpu_blocks="900"}} 1.0
process_start_time_seconds {started}
"""


@dataclass(slots=True)
class SmallEngine:
    origin: str = ""
    answers: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Path to status and body; a path that is not here is not answered at all."""
    seen: list[Seen] = field(default_factory=list)
    asked: asyncio.Condition = field(default_factory=asyncio.Condition)

    def healthy(self, *, started: float = 1000.0) -> None:
        self.answers.update(
            {
                "/health": (200, ""),
                "/version": (200, '{"version":"0.32.0"}'),
                "/v1/models": (200, '{"object":"list","data":[{"id":"tiny","root":"x"},{"id":"lora"}]}'),
                "/metrics": (200, METRICS.format(started=started)),
            }
        )

    async def _serve(self, peer: Peer) -> None:
        while True:
            request = await peer.request()
            async with self.asked:
                self.seen.append(request)
                self.asked.notify_all()
            status, body = self.answers.get(request.line.split()[1], (0, ""))
            if status == 0:
                await peer.wait_gone()
                return
            await peer.answer(body.encode(), status=f"{status} Whatever")

    async def until_asked(self, path: str, times: int) -> None:
        """Wait until ``path`` has been asked for so often in all."""
        async with asyncio.timeout(10), self.asked:
            await self.asked.wait_for(
                lambda: sum(one.line == f"GET {path} HTTP/1.1" for one in self.seen) >= times
            )


@asynccontextmanager
async def small_engine() -> AsyncIterator[SmallEngine]:
    here = SmallEngine()
    async with engine(here._serve) as server:
        here.origin = server.origin
        yield here
