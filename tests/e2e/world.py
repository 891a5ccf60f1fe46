"""A whole router over simulated engines in one process, in virtual time.

The turn code, the ledger, the fleet and its probes are the real ones; only sockets are left out.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import count
from typing import Final, Self, TypeVar

import msgspec

from router.app import relay_settings
from router.fleet.admission import Admission, AdmissionLimits
from router.fleet.doubts import Doubts
from router.fleet.pool import Fleet
from router.ledger.memory import MemoryLedger
from router.settings import Settings
from router.sim.engine import SimEngine
from router.sim.upstream import SimUpstream
from router.telemetry.facts import Facts
from router.turn.context import ChunkWriter, Context, no_key
from router.turn.handle import Lifetime
from router.turn.relay import Relay
from router.turn.release import Releases
from router.turn.request import Endpoint, read_request
from tests.e2e.asks import CHAT, COMPLETIONS, Ask
from tests.e2e.setups import Setup
from tests.e2e.stage import TENANT_HEADER, Stage, Turn, named, turn_of
from tests.e2e.virtual_time import LoopClock, VirtualLoop

_ENDPOINTS: Final = {CHAT: Endpoint.CHAT, COMPLETIONS: Endpoint.COMPLETIONS}
T = TypeVar("T")


@dataclass(slots=True)
class RecordingClient:
    """A client that keeps what it reads, at its own pace."""

    reads_every_s: float = 0.0
    started: bool = False
    left: bool = False
    has_all: bool = False
    chunk_writer: ChunkWriter | None = None
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)

    async def start(self, status: int, headers: Sequence[tuple[str, str]]) -> None:
        self.started, self.status, self.headers = True, status, dict(headers)

    def put(self, data: bytes, chunk: bytes | None = None) -> bool:
        self.body += data
        return not self.reads_every_s

    def put_last(self, data: bytes) -> bool:
        return self.put(data)

    async def flush(self) -> None:
        await asyncio.sleep(self.reads_every_s)

    def drop(self) -> None:
        self.left = True

    def told_all(self) -> None:
        self.has_all = True

    async def end(self) -> None:
        """Nothing more comes; what came tells whether it is complete."""

    async def whole(self, status: int, headers: Sequence[tuple[str, str]], body: bytes) -> None:
        await self.start(status, headers)
        self.put(body)


class World(Stage):
    """One router, its engines, and their history. Leave its context to close it."""

    def __init__(self, setup: Setup) -> None:
        self.loop = VirtualLoop()
        clock = LoopClock(self.loop)
        engines, prefills = named(setup, SimEngine, clock)
        super().__init__(setup, engines, prefills, clock)
        self.upstream = SimUpstream(engines)
        self.failures: list[Exception] = []
        facts = Facts(on_error=self.failures.append)
        decodes = [origin for origin in engines if origin not in prefills]
        ledger = MemoryLedger(max_branches=setup.max_branches, trace_ttl_s=3_600.0, now=clock.now)
        releases = Releases(clock.now)
        ledger.on_left = releases.left
        self.context = Context(
            upstream=self.upstream,
            fleet=Fleet.of(prefills, decodes, facts=facts, now=clock.now),
            ledger=ledger,
            facts=facts,
            doubts=Doubts(),
            admission=Admission(AdmissionLimits(turns=10_000, waiting=10_000)),
            settings=replace(
                relay_settings(Settings(prefill=tuple(prefills), decode=tuple(decodes)), no_key),
                lifetime=Lifetime(setup.ttl_s, setup.margin_s, explicit=True),
                verify=setup.verify,
                answer_tokens=setup.answer_tokens,
                take_share=setup.take_share,
                policy=setup.policy,
                stay_max_tokens=setup.stay_max_tokens,
            ),
            now=clock.now,
            releases=releases,
            pins=ledger,
        )
        self.relay = Relay(self.context)
        self._ids = count(1)
        self.run(self.probe())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self.loop.shutdown_asyncgens())
        self.loop.close()

    def run(self, awaitable: Awaitable[T]) -> T:
        """Run something to its end in this world's time."""
        return self.loop.run_until_complete(awaitable)

    async def turn(self, ask: Ask) -> Turn:
        client = RecordingClient(ask.reads_every_s)
        headers = (*ask.headers, (TENANT_HEADER, ask.tenant))
        body = msgspec.json.encode(ask.body)
        request = read_request(_ENDPOINTS[ask.path], ask.path, headers, body, turn_id=f"t{next(self._ids)}")
        tenant = blake2b(ask.tenant.encode(), digest_size=16).digest()
        left = False
        running = asyncio.ensure_future(self.relay.run(request, tenant, client))
        if ask.leave_after_s is not None:
            await asyncio.wait({running}, timeout=ask.leave_after_s)
            left = client.left = not running.done()
            running.cancel()
        try:
            await running
        except asyncio.CancelledError:
            if not left:
                raise
        return turn_of(ask, client.status, client.headers, bytes(client.body), left=left)

    def pause(self, seconds: float) -> None:
        self.loop.advance(seconds)

    async def probe(self) -> None:
        await self.context.fleet.refresh(self.upstream)

    def take_down(self, origin: str) -> None:
        self.upstream.engines.pop(origin, None)

    def calm(self) -> None:
        super().calm()
        self.upstream.engines |= self.engines

    def check_router(self) -> None:
        assert not self.failures, self.failures
        open_legs = {node.key: node.in_flight for node in self.context.fleet.snapshot.nodes if node.in_flight}
        assert not open_legs, open_legs
        assert not self.upstream.open_calls(), self.upstream.open_calls()
