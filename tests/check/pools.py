"""Simulated pools on loopback ports, the check run against them, and what must hold after every check."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

from router.check.command import check
from router.check.findings import Finding, Verdict
from router.check.observed import Assumed
from router.check.pool import Asked
from router.engines.aiohttp_upstream import AiohttpUpstream
from router.engines.upstream import Answer, AnswerStream, Call
from router.sim.config import EngineConfig
from router.sim.server import SimServer

STOCK_32: Final = EngineConfig()
STOCK_33: Final = EngineConfig(version="0.33.0")
PLUGIN_32: Final = EngineConfig(plugin=True)
PATIENCE_S: Final = 30.0

Rule = Callable[[str, Call], Answer | None]
"""An answer in an engine's place, by its origin and the call; None for the engine's own."""


def _the_engines_own(_: str, __: Call) -> Answer | None:
    return None


def nothing_at(*paths: str) -> Rule:
    """404 at these paths."""
    return lambda _, call: Answer(404, (), b"") if call.path in paths else None


def always(path: str, body: bytes) -> Rule:
    return lambda _, call: Answer(200, (), body) if call.path == path else None


class Altered:
    """The HTTP client, with some answers replaced and some origins standing for others."""

    def __init__(self, rule: Rule, aliases: Mapping[str, str]) -> None:
        self._client, self._rule, self.aliases = AiohttpUpstream(), rule, aliases

    async def send(self, origin: str, call: Call) -> Answer:
        answer = self._rule(origin, call)
        return answer or await self._client.send(self.aliases.get(origin, origin), call)

    def stream(self, origin: str, call: Call) -> AbstractAsyncContextManager[AnswerStream]:
        return self._client.stream(self.aliases.get(origin, origin), call)

    def open_calls(self) -> dict[str, int]:
        return dict(self._client.open_calls())

    async def close(self) -> None:
        await self._client.close()


@dataclass(frozen=True, slots=True)
class Checked:
    """What a check found."""

    findings: tuple[Finding, ...]

    def rows(self, name: str) -> list[Finding]:
        return [each for each in self.findings if each.check == name]

    def row(self, name: str) -> Finding:
        (found,) = self.rows(name)
        return found

    def verdict(self, name: str) -> Verdict:
        return self.row(name).verdict

    def verdicts(self, *skip: str) -> dict[str, Verdict]:
        """Everything that is not ok, but for the rows of ``skip``."""
        return {
            each.check: each.verdict
            for each in self.findings
            if each.verdict is not Verdict.OK and each.check not in skip
        }


@dataclass(slots=True)
class Pools:
    """Engines that run, and a check of them."""

    prefills: list[SimServer]
    decodes: list[SimServer]
    rule: Rule = _the_engines_own
    aliases: dict[str, str] = field(default_factory=dict)

    @property
    def p(self) -> SimServer:
        return self.prefills[0]

    @property
    def d(self) -> SimServer:
        return self.decodes[0]

    def asked(self, **changes: Any) -> Asked:
        asked = Asked(
            [server.origin for server in self.prefills],
            [server.origin for server in self.decodes],
            timeout_s=PATIENCE_S,
        )
        return replace(asked, **changes)

    async def check(self, **changes: Any) -> Checked:
        """Check the pool; it must not have sent anything that an engine stumbles over."""
        findings = await check(self.asked(**changes), upstream=Altered(self.rule, self.aliases))
        for server in (*self.prefills, *self.decodes):
            assert_harmless(server)
        return Checked(findings)


def assert_harmless(server: SimServer) -> None:
    """No params without a direction: they pin blocks that nothing frees."""
    for received in server.engine.received:
        params = received.body.get("kv_transfer_params")
        if params is not None:
            assert bool(params["do_remote_decode"]) != bool(params["do_remote_prefill"])


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.005)


@asynccontextmanager
async def pools(
    prefill: EngineConfig | Sequence[SimServer | EngineConfig],
    decode: EngineConfig | Sequence[SimServer | EngineConfig],
) -> AsyncIterator[Pools]:
    """Engines on free ports."""
    async with AsyncExitStack() as stack:

        async def start(side: EngineConfig | Sequence[SimServer | EngineConfig]) -> list[SimServer]:
            wanted = [side] if isinstance(side, EngineConfig) else side
            servers = [one if isinstance(one, SimServer) else SimServer(one) for one in wanted]
            return [await stack.enter_async_context(server) for server in servers]

        yield Pools(await start(prefill), await start(decode))


def dead_origin() -> str:
    """A loopback origin that nothing listens at."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


TTL_SET: Final = Assumed(ttl_s=480.0, ttl_is_set=True)
