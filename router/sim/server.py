"""Simulated engines on a port: a bare ASGI application under uvicorn.

A client that leaves aborts its request at once, as vLLM does. A scripted cut breaks the connection for real:
uvicorn offers no way to do that, so the application takes the transport of the response it is writing.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import socket
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any, Final, Self, cast

import uvicorn
import uvloop
from uvicorn._types import ASGIReceiveCallable, ASGISendCallable, HTTPScope, Scope

from router.sim import api, control
from router.sim.clock import Clock
from router.sim.config import EngineConfig
from router.sim.engine import SimEngine
from router.sim.fabric import Fabric, HttpFabric
from router.sim.profiles import PROFILES, Profile
from router.sim.reply import Reply
from router.sim.sequence import ConnectionCut
from router.sim.template import TemplateOptions

_TIMES: Final = tuple(
    field.name for field in fields(Profile) if field.name not in {"output_ms_per_token", "concurrency"}
)

App = Callable[[Scope, ASGIReceiveCallable, ASGISendCallable], Coroutine[Any, Any, None]]


def application(engine: SimEngine) -> App:
    """The ASGI application of an engine."""

    async def app(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        if scope["type"] != "http":
            return
        body = await _read(receive)
        if body is None:
            return
        work = asyncio.ensure_future(_answer(engine, scope, body, send))
        leaving = asyncio.ensure_future(_left(receive))
        dying = asyncio.ensure_future(engine.died.wait())
        try:
            await asyncio.wait({work, leaving, dying}, return_when=asyncio.FIRST_COMPLETED)
            own_restart = work.done() or scope["path"].startswith("/sim/")
            if dying.done() and not own_restart:
                _cut(send)
            if own_restart and not leaving.done():
                await work
        except ConnectionCut:
            _cut(send)
        finally:
            for task in (work, leaving, dying):
                task.cancel()
            await asyncio.gather(work, leaving, dying, return_exceptions=True)

    return app


async def _read(receive: ASGIReceiveCallable) -> bytes | None:
    """A request's body; None where the client left before its end."""
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        parts.append(message["body"])
        if not message.get("more_body"):
            return b"".join(parts)


async def _left(receive: ASGIReceiveCallable) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _answer(engine: SimEngine, scope: HTTPScope, body: bytes, send: ASGISendCallable) -> None:
    method, path = scope["method"], scope["path"]
    if path.startswith("/sim/"):
        reply = control.handle(engine, method, path, body)
    else:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        reply = await api.handle(engine, method, path, headers, body)
    try:
        await _write(reply, send)
    finally:
        await reply.aclose()


async def _write(reply: Reply, send: ASGISendCallable) -> None:
    headers = [(name.encode(), value.encode()) for name, value in reply.headers]
    if reply.events is None:
        headers.append((b"content-length", str(len(reply.body)).encode()))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers, "trailers": False})
    if reply.events is not None:
        async for event in reply.events:
            await send({"type": "http.response.body", "body": event, "more_body": True})
    await send({"type": "http.response.body", "body": reply.body, "more_body": False})


def _cut(send: ASGISendCallable) -> None:
    """Break the connection that a response is written to."""
    transport = getattr(getattr(send, "__self__", None), "transport", None)
    if transport is not None:
        cast(asyncio.Transport, transport).abort()


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers, which tells when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class SimServer:
    """A simulated engine on a loopback port, in the running event loop; an async context manager.

    ``origin`` and ``engine`` are there from the start of the context on. Its engines reach each other over
    HTTP, so several servers, also in several processes, make a pool.
    """

    def __init__(
        self,
        config: EngineConfig | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        fabric: Fabric | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._fabric = fabric or HttpFabric()
        self._socket = socket.create_server((host, port))
        # asyncio sets this only where a socket names its protocol; without it each answer waits 40 ms.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.port: int = self._socket.getsockname()[1]
        reachable = "127.0.0.1" if host in ("", "0.0.0.0") else host  # noqa: S104 - compared, not bound
        self.origin = f"http://{reachable}:{self.port}"
        self.engine = SimEngine(config, fabric=self._fabric, clock=clock)
        if fabric is None and self.engine.config.side_channel is None:
            self.engine.address = (reachable, self.port)
        self._server = _Server(
            uvicorn.Config(
                cast(Any, application(self.engine)),
                lifespan="off",
                log_level="critical",
                access_log=False,
                timeout_keep_alive=self.engine.config.keep_alive_s,
                timeout_graceful_shutdown=1,
                ws="none",
            )
        )
        self._serving: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._serving = asyncio.ensure_future(self._server.serve(sockets=[self._socket]))
        listening = asyncio.ensure_future(self._server.listening.wait())
        await asyncio.wait({self._serving, listening}, return_when=asyncio.FIRST_COMPLETED)
        listening.cancel()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.should_exit = self._server.force_exit = True
        if self._serving is not None:
            await self._serving
        await self._fabric.close()
        self._socket.close()

    async def closed(self) -> None:
        """Wait until the server ends."""
        if self._serving is not None:
            await self._serving


async def serve(config: EngineConfig, host: str, port: int) -> None:
    """Serve a simulated engine until the task is cancelled. Raises OSError for a port that is taken."""
    async with SimServer(config, host=host, port=port) as server:
        print(f"simulated engine ({config.role}, vLLM {config.version}) on {server.origin}", flush=True)
        await server.closed()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``boomerang sim``."""
    usual = EngineConfig()

    def value(name: str, kind: Callable[[str], Any], default: object, text: str) -> None:
        parser.add_argument(name, type=kind, default=default, help=f"{text} (default: {default})")

    def choice(name: str, choices: Sequence[str], default: str, text: str, dest: str | None = None) -> None:
        text = f"{text} (default: {default})"
        parser.add_argument(name, choices=choices, default=default, help=text, dest=dest)

    def switch(name: str, text: str) -> None:
        parser.add_argument(name, action="store_true", help=text)

    choice("--role", ("prefill", "decode", "both"), "both", "what the node is for")
    value("--host", str, "127.0.0.1", "address to listen on")
    parser.add_argument("--port", type=int, required=True, help="port to listen on; 0 for any free one")
    choice("--profile", sorted(PROFILES), "qwen3-32b", "how long computing and reading take")
    value("--time-scale", float, 1.0, "how many times as slow as the profile")
    parser.add_argument(
        "--output-ms", type=float, help="milliseconds of each further output token, instead of the profile's"
    )
    parser.add_argument(
        "--time",
        type=_time,
        action="append",
        default=[],
        metavar="NAME=MS",
        help=f"one of the profile's times, instead of its own ({', '.join(_TIMES)}); repeat for more",
    )
    choice("--version", ("0.32.0", "0.33.0"), "0.33.0", "the vLLM that it speaks like", dest="engine_version")
    value("--model", str, usual.model, "the served model's name")
    switch("--plugin", "with the engine-mode plugin")
    value("--block-size", int, usual.block_size, "tokens in a KV block")
    value("--num-blocks", int, usual.num_blocks, "KV blocks that it has")
    value("--ttl", float, usual.ttl_s, "seconds a handle lives")
    choice("--render", ("open", "403"), "403", "whether the render route answers")
    switch("--reasoning", "the model thinks before it answers")
    switch("--keep-reasoning", "the template strips no reasoning")
    value("--retokenise", float, 0.0, "share of tokens that re-encode differently")
    value("--tool-rate", float, 0.5, "share of questions that call a tool")
    switch("--no-bidirectional", "without bidirectional KV transfer")
    switch("--no-prefix-cache", "without a prefix cache of its own")


def _time(told: str) -> tuple[str, float]:
    """``NAME=MS``, as the command line has it. Raises ArgumentTypeError."""
    name, _, written = told.partition("=")
    try:
        milliseconds = float(written)
    except ValueError:
        milliseconds = math.nan
    if name not in _TIMES or not 0 <= milliseconds < math.inf:
        raise argparse.ArgumentTypeError(
            f"{told!r} is not NAME=MS with 0 ms or more and one of {', '.join(_TIMES)}"
        )
    return name, milliseconds


def configured(arguments: argparse.Namespace) -> EngineConfig:
    """The engine that the options describe."""
    profile = replace(PROFILES[arguments.profile], **dict(arguments.time)).scaled(arguments.time_scale)
    if arguments.output_ms is not None:
        profile = replace(profile, output_ms_per_token=arguments.output_ms)
    return EngineConfig(
        role=arguments.role,
        profile=profile,
        version=arguments.engine_version,
        model=arguments.model,
        plugin=arguments.plugin,
        block_size=arguments.block_size,
        num_blocks=arguments.num_blocks,
        ttl_s=arguments.ttl,
        render=arguments.render,
        reasoning=arguments.reasoning,
        template=TemplateOptions(strip_reasoning=not arguments.keep_reasoning),
        retokenise=arguments.retokenise,
        tool_rate=arguments.tool_rate,
        bidirectional=not arguments.no_bidirectional,
        prefix_cache=not arguments.no_prefix_cache,
    )


def run(arguments: argparse.Namespace) -> int:
    """Serve until interrupted; the exit status."""
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(configured(arguments), arguments.host, arguments.port))
    except KeyboardInterrupt:
        return 0
    except OSError as error:
        print(f"cannot listen on {arguments.host}:{arguments.port}: {error.strerror}")
        return 1
    return 0
