"""The same play over real sockets: the router as it is served, engines on ports, and an HTTP client."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

import aiohttp
import msgspec

from router.app import Router, build
from router.fleet.node import State
from router.sim.clock import RealClock
from router.sim.engine import SimEngine
from tests.e2e.asks import Ask
from tests.e2e.http_pool import serving, settings_for, sim_servers
from tests.e2e.play import Trouble
from tests.e2e.setups import Setup
from tests.e2e.stage import TENANT_HEADER, Stage, Turn, turn_of

_NOT_HERE: Final = (
    Trouble.PULL_HANGS, Trouble.NODE_DOWN, Trouble.UPGRADE, Trouble.NEAR_EXPIRY, Trouble.LATE
)  # fmt: skip
SOCKET_TROUBLES: Final = tuple(trouble for trouble in Trouble if trouble not in _NOT_HERE)
"""What can happen here without waiting for it in real time."""

_SETTLE_S: Final = 5.0
"""How long engines may take to notice that a client has left; only a failing test waits that long."""


class SocketStage(Stage):
    """A router at ``origin``, its engines, and one client for all tenants."""

    def __init__(
        self,
        setup: Setup,
        router: Router,
        origin: str,
        engines: Mapping[str, SimEngine],
        prefills: Sequence[str],
    ) -> None:
        super().__init__(setup, engines, prefills, RealClock())
        self._router, self._origin = router, origin
        self._client = aiohttp.ClientSession()

    async def turn(self, ask: Ask) -> Turn:
        headers = {
            **dict(ask.headers),
            "content-type": "application/json",
            "authorization": f"Bearer {ask.tenant}",
            TENANT_HEADER: ask.tenant,
        }
        post = self._client.post(self._origin + ask.path, data=msgspec.json.encode(ask.body), headers=headers)
        try:
            async with asyncio.timeout(ask.leave_after_s), post as answer:
                body = await answer.read()
        except TimeoutError:
            return turn_of(ask, 0, {}, b"", left=True)
        return turn_of(
            ask, answer.status, {k.lower(): v for k, v in answer.headers.items()}, body, left=False
        )

    def pause(self, seconds: float) -> None:
        """Real time cannot be made to pass."""

    async def probe(self) -> None:
        await self._router.context.fleet.refresh(self._router.context.upstream)

    def take_down(self, origin: str) -> None:
        raise NotImplementedError(f"{origin} stays up")

    def check_router(self) -> None:
        context = self._router.context
        assert self._router.open_turns.count == 0
        open_legs = {node.key: node.in_flight for node in context.fleet.snapshot.nodes if node.in_flight}
        assert not open_legs, open_legs
        assert not any(context.upstream.open_calls().values()), context.upstream.open_calls()

    async def check(self, turns: Iterable[Turn], *, disturbed: bool) -> None:
        await self._settled()
        await super().check(turns, disturbed=disturbed)

    async def _settled(self) -> None:
        """Wait until everybody has seen what the others have closed."""
        until_s = time.monotonic() + _SETTLE_S
        while time.monotonic() < until_s and (
            self._router.open_turns.count
            or any(self._router.context.upstream.open_calls().values())
            or any(engine.running or any(engine.open_requests.values()) for engine in self.engines.values())
        ):
            await asyncio.sleep(0.002)

    async def close(self) -> None:
        await self._client.close()


@asynccontextmanager
async def stage_over_sockets(setup: Setup) -> AsyncIterator[SocketStage]:
    """The setup's engines and a router for them, on free ports; they stop together."""
    async with sim_servers([*setup.prefills, *setup.decodes]) as servers:
        engines = {server.origin: server.engine for server in servers}
        origins = list(engines)
        prefills, decodes = origins[: len(setup.prefills)], origins[len(setup.prefills) :]
        settings = settings_for(
            prefills,
            decodes,
            verify=setup.verify,
            answer_tokens=setup.answer_tokens,
            take_share=setup.take_share,
            decode_ttl_s=setup.ttl_s,
            deadline_margin_s=setup.margin_s,
        )
        router = build(settings)
        async with serving(settings, router) as origin:
            stage = SocketStage(setup, router, origin, engines, prefills)
            try:
                while not all(node.state is State.READY for node in router.context.fleet.snapshot.nodes):
                    await asyncio.sleep(0.005)
                yield stage
            finally:
                await stage.close()
