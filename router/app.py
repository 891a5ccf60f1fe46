"""The only place that wires things together: settings in, an ASGI application and its tasks out."""

import asyncio
import contextlib
import gc
import logging
import math
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import uvicorn
from fastapi import FastAPI
from fastapi.responses import Response
from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.routing import Route

from router import __version__, errors
from router.check.observed import Assumed
from router.check.quick import quick
from router.engines.aiohttp_upstream import AiohttpUpstream
from router.engines.upstream import Upstream
from router.fleet.doubts import Doubts
from router.fleet.node import Node, State
from router.fleet.pool import Fleet, Probe
from router.fleet.probe import Probed, Prober
from router.http import probes
from router.http.models import ModelsRoute
from router.http.openai import PATHS, InferenceRoute, OpenTurns
from router.http.protocol import Protocol
from router.ledger.memory import MemoryLedger
from router.ledger.store import LedgerStats
from router.settings import Settings
from router.supervise import every, supervised
from router.telemetry import logs
from router.telemetry.facts import Facts
from router.telemetry.metrics import Metrics, StateCollector, build_info
from router.turn.context import Context, RelaySettings
from router.turn.handle import Lifetime
from router.turn.relay import Relay

SWEEP_EVERY_S = 1.0
ANNOUNCE_POLL_S = 0.1
PAIRS_ANNOUNCED = 16
"""Pairs named in the log at the start; ``/health`` lists more, and counts all."""
READ_KEY_EVERY_S = 1.0
LOG = logging.getLogger("router")


def relay_settings(settings: Settings, key: Callable[[], str | None]) -> RelaySettings:
    """The part of the settings that shapes turns. ``key`` gives the engines' key as it is now."""
    return RelaySettings(
        lifetime=Lifetime(settings.decode_ttl_s, settings.deadline_margin_s, settings.decode_ttl_is_set),
        verify=settings.verify,
        answer_tokens=settings.answer_tokens,
        threshold_tokens=settings.reuse_threshold_tokens,
        take_share=settings.take_share,
        connect_s=settings.connect_timeout_s,
        prefill_s=settings.prefill_timeout_s,
        pull_s=settings.pull_timeout_s,
        first_token_s=settings.first_token_timeout_s,
        decode_s=settings.decode_timeout_s,
        idle_s=settings.idle_timeout_s,
        expose_params=settings.expose_params,
        explain_headers=settings.explain_headers,
        prefill_lease_s=settings.prefill_lease_s,
        rewrite_remote_host=settings.rewrite_remote_host,
        api_key=key,
    )


class EngineKey:
    """The engines' key, read again now and then so that it can be rotated; the last good one stays."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._key = settings.engine_api_key()

    def __call__(self) -> str | None:
        return self._key

    async def refresh(self) -> None:
        """Read the file again. Raises OSError and ValueError, and keeps the old key."""
        self._key = self._settings.engine_api_key()


@dataclass(slots=True)
class Router:
    """A wired router. ``draining`` makes ``/ready`` answer 503."""

    settings: Settings
    context: Context
    registry: CollectorRegistry
    open_turns: OpenTurns
    ledger_stats: LedgerStats
    key: EngineKey
    draining: bool = False

    async def sweep(self) -> None:
        """Drop what has expired, and take the sizes that a scrape shows."""
        await self.context.ledger.sweep()
        self.ledger_stats = await self.context.ledger.stats()

    async def announce(self) -> None:
        """Once every node has been probed, say in the log what mode each pair is in and what is amiss."""
        fleet = self.context.fleet
        # A snapshot has no event to wait for.
        while any(node.state is State.STARTING and not node.reason for node in fleet.snapshot.nodes):  # noqa: ASYNC110
            await asyncio.sleep(ANNOUNCE_POLL_S)
        settings = self.settings
        assumed = Assumed(
            settings.decode_ttl_s,
            settings.decode_ttl_is_set,
            settings.prefill_lease_s,
            settings.reuse_threshold_tokens,
        )
        told = quick(fleet.snapshot.nodes, mode=settings.verify, assumed=assumed)
        for pair in told.pairs[:PAIRS_ANNOUNCED]:
            why = f" ({pair.reason})" if pair.reason else ""
            LOG.info("pair %s > %s: verify=%s%s", pair.prefill, pair.decode, pair.verify, why)
        for hint in told.hints:
            LOG.warning("%s", hint)
        for finding in told.findings:
            LOG.warning("%s: %s: %s; %s", finding.subject, finding.check, finding.seen, finding.advice)
        await asyncio.Event().wait()  # once is enough, and a supervised task that ends is started again

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Background tasks run inside; connections are closed at the end."""
        context = self.context

        async def probe() -> None:
            await context.fleet.run(context.upstream, interval_s=self.settings.probe_interval_s)

        tasks = {
            "probe": probe,
            "sweep": every(SWEEP_EVERY_S, self.sweep),
            "announce": self.announce,
            "engine_key": every(READ_KEY_EVERY_S, self.key.refresh),
        }
        try:
            async with supervised(tasks, context.facts):
                yield
        finally:
            await context.ledger.close()
            await context.upstream.close()


def _probe_with(key: EngineKey) -> Probe:
    """Probes show the engines' key as it is now: with one set, vLLM answers nothing below /v1 without it."""

    async def probe(upstream: Upstream, node: Node) -> Probed:
        held = key()
        headers = (("authorization", f"Bearer {held}"),) if held is not None else ()
        return await Prober(headers=headers)(upstream, node)

    return probe


def build(settings: Settings, *, upstream: Upstream | None = None) -> Router:
    """A router for ``settings``. ``upstream`` replaces the HTTP client, for tests."""
    facts = Facts(on_error=lambda error: LOG.error("a subscriber of facts failed: %r", error))
    registry = CollectorRegistry()
    key = EngineKey(settings)
    context = Context(
        upstream=upstream or AiohttpUpstream(keepalive_s=settings.engine_keepalive_s),
        fleet=Fleet.of(settings.prefill, settings.decode, facts=facts, probe=_probe_with(key)),
        ledger=MemoryLedger(
            max_branches=settings.max_branches,
            max_bytes=settings.max_ledger_bytes,
            trace_ttl_s=settings.trace_ttl_s,
            now=time.monotonic,
        ),
        facts=facts,
        doubts=Doubts(),
        settings=relay_settings(settings, key),
        now=time.monotonic,
    )
    router = Router(settings, context, registry, OpenTurns(), LedgerStats(0, 0, 0, 0, 0, 0, 0), key)
    facts.subscribe(Metrics(registry))
    facts.subscribe(logs.FactLog())
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    registry.register(
        StateCollector(
            lambda: context.fleet.snapshot, lambda: router.ledger_stats, lambda: router.open_turns.count
        )
    )
    build_info(registry, __version__, settings.verify)
    return router


def application(router: Router) -> FastAPI:
    """The ASGI application: inference routes as plain ASGI, the rest as FastAPI routes."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with router.running():
            yield

    app = FastAPI(
        title="Boomerang",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        # A redirect would name another scheme or host than the client came by, and lose what it sent.
        redirect_slashes=False,
    )
    settings, context = router.settings, router.context
    relay = Relay(context)
    for path, endpoint in PATHS.items():
        route = InferenceRoute(
            relay, endpoint, router.open_turns, settings.max_body_bytes, settings.identity_header
        )
        app.router.routes.append(Route(path, route, methods=["POST"]))
    app.router.routes.append(Route("/v1/models", ModelsRoute(context).get, methods=["GET"]))
    _add_probes(app, router)
    app.add_exception_handler(HTTPException, _refuse)
    app.add_exception_handler(Exception, _refuse)
    return app


def _add_probes(app: FastAPI, router: Router) -> None:
    fleet = router.context.fleet

    @app.get("/live")
    async def live() -> Response:
        return _response(probes.live())

    @app.get("/ready")
    async def ready() -> Response:
        return _response(probes.ready(fleet.snapshot.nodes, draining=router.draining))

    @app.get("/health")
    async def health() -> Response:
        cooling = router.context.doubts.cooling(router.context.now())
        return _response(
            probes.health(
                fleet.snapshot.nodes, mode=router.settings.verify, draining=router.draining, cooling=cooling
            )
        )

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(generate_latest(router.registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)


def _response(answer: probes.ProbeAnswer) -> Response:
    return Response(answer.body, answer.status, media_type="application/json")


async def _refuse(request: HttpRequest, error: Exception) -> Response:
    """The framework's own refusals, and faults of the router outside of a turn, in OpenAI's shape."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    path, method = request.url.path, request.method
    told: errors.RequestError
    if status == 500:
        told = errors.InternalError()
    elif status == 405:
        told = errors.MethodNotAllowed(f"{path} does not take {method}")
    elif status == 404:
        told = errors.NotFound(f"there is no route {path}")
    else:
        told = errors.BadRequest("the request cannot be read")
    headers = dict(errors.error_headers(told))
    if isinstance(error, HTTPException) and error.headers:
        headers |= dict(error.headers)
    return Response(errors.openai_error(told), errors.error_row(told).status, headers)


class _Server(uvicorn.Server):
    """Tells the router at once when it is to stop, so that ``/ready`` can say so on open connections.

    A second signal, whichever, ends without waiting for open turns.
    """

    def __init__(self, config: uvicorn.Config, router: Router) -> None:
        super().__init__(config)
        self._router = router

    def handle_exit(self, sig: int, frame: Any) -> None:
        self._router.draining = True
        self.force_exit = self.force_exit or self.should_exit
        super().handle_exit(sig, frame)


def server_config(settings: Settings, router: Router) -> uvicorn.Config:
    """How the router is served: what stands between its ASGI application and a socket."""
    return uvicorn.Config(
        application(router),
        host=settings.host,
        port=settings.port,
        loop="uvloop",
        http=Protocol,
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_keep_alive=math.ceil(settings.keepalive_s),
        timeout_graceful_shutdown=math.ceil(settings.drain_s),
    )


def serve(settings: Settings) -> int:
    """Run the router until it is stopped; the process's exit code."""
    logs.set_up(settings.log_format, settings.log_level)
    router = build(settings)
    LOG.info(
        "boomerang %s: verify=%s store=%s prefill=%s decode=%s",
        __version__,
        settings.verify,
        settings.store,
        ",".join(settings.prefill),
        ",".join(settings.decode),
    )
    server = _Server(server_config(settings, router), router)
    # What is loaded by now stays: without it a full collection of a large ledger is shorter.
    gc.collect()
    gc.freeze()
    server.run()
    return 0 if server.started else 1
