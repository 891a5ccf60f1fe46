"""A router and simulated engines on loopback ports, and what a test asks of them.

The router is served as ``boomerang serve`` serves it, in the test's own event loop, so that a test can look
inside; ``router_process`` has it in a process of its own, with its own event loop and signals.
"""

import asyncio
import contextlib
import json
import os
import re
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import httpx
import uvicorn
from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from prometheus_client.parser import text_string_to_metric_families

from router.app import Router, build
from router.fleet.node import State
from router.serve import server_config
from router.settings import Settings
from router.sim.config import EngineConfig
from router.sim.faults import Fault
from router.sim.record import Received
from router.sim.server import SimServer
from router.sim.template import TemplateOptions
from router.telemetry.facts import Fact, TurnEnded

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
MODEL: Final = "sim-qwen3"
PATIENCE_S: Final = 60.0
"""How long a test waits for what has to happen; only a failing test waits that long."""

Body = dict[str, Any]
Message = dict[str, Any]

STOCK_33: Final = EngineConfig(version="0.33.0")
"""The oldest engine whose streams carry handles without the plugin."""

NO_CACHE_P: Final = replace(STOCK_33, prefix_cache=False)
"""A P whose own cache hides nothing: what is reused was pulled."""

KEEPS_REASONING: Final = TemplateOptions(strip_reasoning=False)


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def system(words: int = 300) -> Message:
    """Long enough that its KV is worth more than the router's and the engines' thresholds."""
    return {"role": "system", "content": " ".join(f"rule{n}" for n in range(words))}


def opening(text: str = "what now, then?", **members: Any) -> Body:
    """The first turn of a conversation."""
    return {"model": MODEL, "messages": [system(), user(text)], **members}


def continued(body: Body, answer: Mapping[str, Any], text: str = "and then?") -> Body:
    """The next turn: the same request with the answer's message and a new one of the user."""
    said = {key: value for key, value in answer["choices"][0]["message"].items() if value is not None}
    return {**body, "messages": [*body["messages"], said, user(text)]}


class _Front(uvicorn.Server):
    """uvicorn without signal handlers, which stops when it is told instead of looking ten times a second."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening, self.stopping = asyncio.Event(), asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    async def main_loop(self) -> None:
        await self.on_tick(0)
        await self.stopping.wait()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def serving(settings: Settings, router: Router) -> AsyncIterator[str]:
    """Serve a router on a free port; its origin."""
    listener = socket.create_server(("127.0.0.1", 0))
    # asyncio sets this only where a socket names its protocol; without it each answer waits 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    front = _Front(server_config(settings, router))
    running = asyncio.create_task(front.serve(sockets=[listener]))
    try:
        async with asyncio.timeout(PATIENCE_S):
            await front.listening.wait()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        front.stopping.set()
        await running
        listener.close()


@asynccontextmanager
async def sim_servers(configs: Sequence[EngineConfig]) -> AsyncIterator[list[SimServer]]:
    """Simulated engines on free ports; they stop together."""
    servers = [SimServer(config) for config in configs]
    await asyncio.gather(*(server.__aenter__() for server in servers))
    try:
        yield servers
    finally:
        await asyncio.gather(*(server.__aexit__(None, None, None) for server in servers))


def direct_client(origin: str, **options: Any) -> httpx.AsyncClient:
    """A client that trusts nothing of the environment: no proxies, no certificates to load."""
    return httpx.AsyncClient(
        base_url=origin, timeout=PATIENCE_S, trust_env=False, verify=False, **options  # noqa: S501 - loopback
    )  # fmt: skip


@asynccontextmanager
async def openai_client(origin: str, key: str = "sk-one") -> AsyncIterator[AsyncOpenAI]:
    """The official client, without retries of its own."""
    http = DefaultAsyncHttpxClient(timeout=PATIENCE_S, trust_env=False, verify=False)
    async with AsyncOpenAI(base_url=f"{origin}/v1", api_key=key, max_retries=0, http_client=http) as client:
        yield client


async def until(condition: Callable[[], bool], what: str = "") -> float:
    """Wait until something is so; how long that took, in seconds."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    while not condition():
        assert loop.time() - began_s < PATIENCE_S, f"still waiting for {what or condition}"
        await asyncio.sleep(0.005)
    return loop.time() - began_s


def samples(exposition: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every sample of a Prometheus exposition, by name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(exposition)
        for sample in family.samples
    }


def total(exposition: str, name: str, **labels: str) -> float:
    """The sum of all samples of that name that have these labels, among others."""
    wanted = set(labels.items())
    return sum(
        value for (found, has), value in samples(exposition).items() if found == name and wanted <= has
    )


@dataclass(slots=True)
class HttpPool:
    """A router, its engines, and a client of its own."""

    router: Router
    origin: str
    prefills: list[SimServer]
    decodes: list[SimServer]
    http: httpx.AsyncClient
    facts: list[Fact] = field(default_factory=list)

    @property
    def p(self) -> SimServer:
        return self.prefills[0]

    @property
    def d(self) -> SimServer:
        return self.decodes[0]

    @property
    def engines(self) -> list[SimServer]:
        return [*self.prefills, *self.decodes]

    async def chat(self, body: Body, *, path: str = CHAT, **headers: str) -> httpx.Response:
        return await self.http.post(path, json=body, headers=_named(headers))

    async def turn(self, body: Body, *, plan: str | None = None, **headers: str) -> Body:
        """A turn that goes well; the answer. ``plan``: the plan it has to have had."""
        answer = await self.chat(body, **headers)
        assert answer.status_code == 200, answer.text
        if plan is not None:
            assert answer.headers["x-boomerang-plan"] == plan, dict(answer.headers)
        found: Body = answer.json()
        return found

    async def stream(self, body: Body, *, path: str = CHAT) -> bytes:
        """The whole of a streamed answer."""
        return (await self.chat({**body, "stream": True}, path=path)).content

    async def metric(self, name: str, **labels: str) -> float:
        return total((await self.http.get("/metrics")).text, f"boomerang_{name}", **labels)

    def ended(self) -> TurnEnded:
        """The newest turn that has ended."""
        return [fact for fact in self.facts if isinstance(fact, TurnEnded)][-1]

    async def idle(self) -> None:
        """Wait until nothing of the router, and nothing on an engine, is open any more.

        Not only turns have legs: what a turn could not keep, the router releases with one of its own, behind
        the answer. Raises AssertionError where something stays open.
        """
        while True:
            await until(lambda: not self.still_open(), "all that is open to end")
            text = (await self.http.get("/metrics")).text
            if not (total(text, "boomerang_open_turns") or total(text, "boomerang_open_legs")):
                return

    def still_open(self) -> list[str]:
        """What is open now: turns, legs, calls, and what engines run."""
        context = self.router.context
        return [
            *(["turns"] if self.router.open_turns.count else []),
            *(f"a leg on {node.key}" for node in context.fleet.snapshot.nodes if node.in_flight),
            *(f"a call to {origin}" for origin, count in context.upstream.open_calls().items() if count),
            *(f"a request on {server.origin}" for server in self.engines if server.engine.running),
        ]

    def sound(self) -> None:
        """No engine has used KV that was not its prompt's. Raises AssertionError."""
        corruptions = [record for server in self.engines for record in server.engine.corruptions]
        assert not corruptions, corruptions


def _named(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


def legs(server: SimServer) -> list[Received]:
    """What an engine was asked to generate, in order."""
    return [one for one in server.engine.received if one.path in (CHAT, COMPLETIONS)]


def fault(server: SimServer, **what: Any) -> None:
    """Script a fault of an engine's next matching request."""
    server.engine.faults.add(Fault(**what))


def carries_handle(received: Received) -> bool:
    params = received.body.get("kv_transfer_params") or {}
    return bool(params.get("do_remote_decode") and params.get("remote_block_ids"))


def settings_for(prefills: Sequence[str], decodes: Sequence[str], **options: Any) -> Settings:
    """Settings of a router that is quick to stop, and patient on a busy machine. Probing is left to the
    test, and nothing that was measured makes a turn go another way than the last one."""
    defaults: dict[str, Any] = {
        "drain_s": 2,
        "probe_interval_s": 3600,
        "connect_timeout_s": 30,
        "policy": "sticky",
        "stay_max_tokens": 0,
    }
    return Settings(prefill=tuple(prefills), decode=tuple(decodes), **{**defaults, **options})


@asynccontextmanager
async def http_pool(
    engine: EngineConfig = STOCK_33,
    *,
    prefill: Sequence[EngineConfig] | None = None,
    decode: Sequence[EngineConfig] | None = None,
    **options: Any,
) -> AsyncIterator[HttpPool]:
    """One P and one D of a kind, or those given, behind a router that has probed them. ``options`` are
    settings."""
    prefill, decode = prefill or (engine,), decode or (engine,)
    async with sim_servers([*prefill, *decode]) as servers:
        prefills, decodes = servers[: len(prefill)], servers[len(prefill) :]
        async with router_of(prefills, decodes, **options) as pool:
            yield pool


@asynccontextmanager
async def router_of(
    prefills: Sequence[SimServer], decodes: Sequence[SimServer], **options: Any
) -> AsyncIterator[HttpPool]:
    """A router in front of engines that are there."""
    origins = [server.origin for server in prefills], [server.origin for server in decodes]
    async with (
        router_at(*origins, **options) as (router, origin),
        direct_client(origin) as http,
    ):
        pool = HttpPool(router, origin, list(prefills), list(decodes), http)
        router.context.facts.subscribe(pool.facts.append)
        yield pool


@asynccontextmanager
async def router_at(
    prefills: Sequence[str], decodes: Sequence[str], **options: Any
) -> AsyncIterator[tuple[Router, str]]:
    """A router in front of these origins, and its own origin; it has probed them once."""
    settings = settings_for(prefills, decodes, **options)
    router = build(settings)
    async with serving(settings, router) as origin:
        fleet = router.context.fleet
        async with asyncio.timeout(PATIENCE_S):
            while not all(node.state is State.READY for node in fleet.snapshot.nodes):
                await fleet.refresh(router.context.upstream)
        yield router, origin


@asynccontextmanager
async def router_process(
    prefills: Sequence[str], decodes: Sequence[str], *flags: str
) -> AsyncIterator[tuple[Process, str]]:
    """``boomerang serve`` in a process of its own, ready for turns, and its origin."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    pools = [
        *(word for origin in prefills for word in ("--prefill", origin)),
        *(word for origin in decodes for word in ("--decode", origin)),
    ]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "router", "serve", "--port", str(port), "--log-level", "error"),
        *("--probe-interval-s", "0.5", "--connect-timeout-s", "30"),  # patient on a busy machine
        *(*pools, *flags),
        cwd=Path(__file__).parent.parent.parent,
        env={"PATH": os.environ.get("PATH", "")},
    )
    origin = f"http://127.0.0.1:{port}"
    try:
        async with direct_client(origin) as http, asyncio.timeout(2 * PATIENCE_S):
            while not await _is_ready(http):
                assert process.returncode is None, "the router did not start"
                await asyncio.sleep(0.05)
        yield process, origin
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _is_ready(http: httpx.AsyncClient) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return (await http.get("/ready")).status_code == 200
    return False


# -- what answers look like ------------------------------------------------------------------------------

_OWN = re.compile(rb'("id":")(?:chatcmpl|cmpl)-(?!tool-)[^"]+|("created":)\d+')
_CACHED = re.compile(rb'("cached_tokens":)\d+')


def comparable(raw: bytes) -> bytes:
    """An answer's bytes without what two answers to one request differ in: ids, dates, cache hits."""
    return _CACHED.sub(rb"\g<1>0", _OWN.sub(rb"\1\2", raw))


def events(raw: bytes) -> list[Any]:
    """The events of a stream with LF line ends: JSON, or the text that is none."""
    found: list[Any] = []
    for block in raw.decode().split("\n\n"):
        if block:
            assert block.startswith("data: "), block
            data = block.removeprefix("data: ")
            found.append(data if data == "[DONE]" else json.loads(data))
    return found


def error_of(answer: httpx.Response) -> dict[str, Any]:
    """The error of an answer in OpenAI's shape, with its status. Raises AssertionError."""
    assert answer.headers["content-type"] == "application/json"
    (error,) = answer.json().values()
    assert set(error) == {"message", "type", "param", "code"}
    return {**error, "status": answer.status_code}


async def second_turn(pool: HttpPool, text: str = "hello") -> Body:
    """A conversation whose first turn left a handle; its second turn."""
    body = opening(text)
    return continued(body, await pool.turn(body))


async def alone(body: Body, engine: EngineConfig = NO_CACHE_P) -> bytes:
    """What an engine says that nobody disturbs."""
    async with sim_servers([engine]) as (server,), direct_client(server.origin) as http:
        return comparable((await http.post(CHAT, json=body)).content)


async def assert_right(
    pool: HttpPool, answer: httpx.Response, body: Body, engine: EngineConfig = NO_CACHE_P
) -> None:
    """The client has the answer of an undisturbed engine. Raises AssertionError."""
    assert answer.status_code == 200, answer.text
    assert comparable(answer.content) == await alone(body, engine)
    await pool.idle()
    pool.sound()
