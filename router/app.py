"""The only place that wires things together: settings in, a router and its tasks out."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from starlette.routing import Route

from router import __version__
from router.check.observed import Assumed
from router.check.quick import quick
from router.engines.httptools_upstream import HttptoolsUpstream
from router.engines.upstream import Upstream
from router.fleet.admission import Admission, AdmissionLimits
from router.fleet.discovery.reconcile import Reconciler
from router.fleet.doubts import Doubts
from router.fleet.node import Node, State
from router.http.admin import NodeRoutes, admin_application
from router.http.conversations import ConversationRoutes
from router.http.explain import ExplainRoute
from router.http.listener import listen, origin_of, serve_on
from router.http.openai import OpenTurns
from router.http.page import OPEN, PageRoutes
from router.ledger.gaps import Gaps
from router.ledger.store import LedgerStats, LedgerUnavailable
from router.page.view import Fixed, View
from router.setting_values import MEMORY
from router.settings import Settings
from router.sources import SETTINGS_SOURCE, fleet_of, settings_nodes, sources_of
from router.stores import store_of
from router.supervise import every, supervised
from router.telemetry import logs, shared_metrics
from router.telemetry.facts import Facts, NodeChanged
from router.telemetry.live import Live
from router.telemetry.metrics import Metrics, StateCollector, build_info
from router.telemetry.pin_metrics import PinCollector
from router.telemetry.shared_metrics import SharedMetrics
from router.turn.context import Context, RelaySettings
from router.turn.handle import Lifetime
from router.turn.release import Releases
from router.turn.releasing import Releasing
from router.turn.sharing import SHARE_EVERY_S, Sharing
from router.turn.spans import Tracing

SWEEP_EVERY_S = 1.0
WRITE_METRICS_EVERY_S = 1.0
SHARED_SIZES_SWEEPS = 15
"""Sweeps between two looks at the sizes of a shared store, which every router of it takes."""
LOOK_AT_SHARED_EVERY_S = 1.0
"""How often each router looks at what handles pin, where that is kept in a shared store."""
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
        policy=settings.policy,
        stay_max_tokens=settings.stay_max_tokens,
        connect_s=settings.connect_timeout_s,
        prefill_s=settings.prefill_timeout_s,
        pull_s=settings.pull_timeout_s,
        first_token_s=settings.first_token_timeout_s,
        decode_s=settings.decode_timeout_s,
        idle_s=settings.idle_timeout_s,
        client_s=settings.client_timeout_s,
        expose_params=settings.expose_params,
        explain_headers=settings.explain_headers,
        prefill_lease_s=settings.prefill_lease_s,
        admission_wait_s=settings.admission_wait_s,
        rewrite_remote_host=settings.rewrite_remote_host,
        one_shot=settings.one_shot,
        api_key=key,
    )


def assumed(settings: Settings) -> Assumed:
    """What a check takes engines to do, where they do not tell."""
    return Assumed(
        settings.decode_ttl_s,
        settings.decode_ttl_is_set,
        settings.prefill_lease_s,
        settings.reuse_threshold_tokens,
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
    reconciler: Reconciler
    releasing: Releasing
    live: Live
    sharing: Sharing | None = None
    """Set where several routers share the ledger."""
    draining: bool = False
    admin_listener: socket.socket | None = None
    """Where the admin API listens; made when it is first served, if it was not before."""
    sweeps: int = 0
    close_spans: Callable[[], None] | None = None
    """Sends what is left of spans, for a bounded time; set where turns are traced."""
    shared: SharedMetrics | None = None
    """Set where several workers answer scrapes for each other."""

    async def sweep(self) -> None:
        """Drop what has expired, and take the sizes that a scrape shows."""
        sweeps = self.sweeps
        self.sweeps += 1
        # Of a shared store that does not answer facts tell already; the last sizes stay.
        with contextlib.suppress(LedgerUnavailable):
            await self.context.ledger.sweep()
            if self.settings.store == MEMORY or sweeps % SHARED_SIZES_SWEEPS == 0:
                self.ledger_stats = await self.context.ledger.stats()

    def scrape(self) -> bytes:
        """The metrics, in the text format; those of all workers where there are several."""
        return generate_latest(self.registry) if self.shared is None else self.shared.scrape()

    async def nodes_known(self) -> None:
        """Until every node has been probed."""
        fleet = self.context.fleet
        # A snapshot has no event to wait for.
        while not (nodes := fleet.snapshot.nodes) or any(_unknown(node) for node in nodes):  # noqa: ASYNC110
            await asyncio.sleep(ANNOUNCE_POLL_S)

    async def announce(self) -> None:
        """Once every node has been probed, say in the log what mode each pair is in and what is amiss."""
        fleet = self.context.fleet
        await self.nodes_known()
        settings = self.settings
        wanted = [node for node in fleet.snapshot.nodes if node.state is not State.DRAINING]
        told = quick(wanted, mode=settings.verify, assumed=assumed(settings))
        for pair in told.pairs[:PAIRS_ANNOUNCED]:
            why = f" ({pair.reason})" if pair.reason else ""
            LOG.info("pair %s > %s: verify=%s%s", pair.prefill, pair.decode, pair.verify, why)
        for hint in told.hints:
            LOG.warning("%s", hint)
        for finding in told.findings:
            LOG.warning("%s: %s: %s; %s", finding.subject, finding.check, finding.seen, finding.advice)
        await asyncio.Event().wait()  # once is enough, and a supervised task that ends is started again

    def listen_for_admin(self) -> socket.socket:
        """The admin API's socket. Raises OSError where its address cannot be had."""
        if self.admin_listener is None or self.admin_listener.fileno() < 0:
            self.admin_listener = listen(self.settings.admin_host, self.settings.admin_port or 0)
        return self.admin_listener

    def admin_routes(self, page: PageRoutes) -> list[Route]:
        """The routes of the admin listener."""
        context, settings = self.context, self.settings
        routes = NodeRoutes(context.fleet, context.doubts, context.now).routes()
        if context.pins is not None:
            routes += ConversationRoutes(context.pins, context.now).routes()
        routes += ExplainRoute(context, settings.identity_header, settings.max_body_bytes).routes()
        return [*routes, *page.routes()]

    async def administer(self) -> None:
        """Serve the admin API until cancelled."""
        listener = self.listen_for_admin()
        LOG.info("admin API on %s", origin_of(listener))
        page = PageRoutes(self.view())
        routes = self.admin_routes(page)
        await serve_on(listener, admin_application(routes, self.settings.admin_secret, OPEN), page.close)

    def view(self) -> View:
        """What the live page shows of this router."""
        settings, context = self.settings, self.context
        return View(
            Fixed(settings.verify, assumed(settings), settings.pin_budget, settings.store != MEMORY),
            context,
            self.live,
            pins=self.releasing.state,
            open_turns=lambda: self.open_turns.count,
            waiting_turns=lambda: context.admission.waiting,
            draining=lambda: self.draining,
        )

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
            "release": self.releasing.run,
        }
        if self.sharing is not None:
            tasks["share"] = every(SHARE_EVERY_S, self.sharing.step)
        if self.shared is not None:
            tasks["metrics"] = every(WRITE_METRICS_EVERY_S, self.shared.write)
        for source in sources_of(self.settings):
            tasks[source.name] = partial(source.run, self.reconciler.listing(source.name))
        if self.settings.admin_port is not None:
            tasks["admin"] = self.administer
        try:
            async with supervised(tasks, context.facts):
                yield
        finally:
            await context.ledger.close()
            await context.upstream.close()
            if self.close_spans is not None:
                await asyncio.to_thread(self.close_spans)


def _unknown(node: Node) -> bool:
    """Whether no probe of a node has ended yet."""
    return node.state is State.STARTING and not node.reason


def _client(settings: Settings) -> Upstream:
    if settings.engine_client == "aiohttp":
        # Not the default, and a tenth of a second of start-up.
        from router.engines.aiohttp_upstream import AiohttpUpstream  # noqa: PLC0415

        return AiohttpUpstream(keepalive_s=settings.engine_keepalive_s)
    return HttptoolsUpstream(keepalive_s=settings.engine_keepalive_s)


def build(settings: Settings, *, upstream: Upstream | None = None) -> Router:
    """A router for ``settings``. ``upstream`` replaces the HTTP client, for tests."""
    facts = Facts(on_error=lambda error: LOG.error("a subscriber of facts failed: %r", error))
    registry = CollectorRegistry()
    key = EngineKey(settings)
    metrics = Metrics(registry)
    store = store_of(settings, facts, metrics.ledger_call)
    releases = Releases(store.now)
    if store.pins is not None:
        store.pins.on_left = releases.left
    admission = Admission(
        AdmissionLimits(
            turns=settings.max_turns,
            tenant_turns=settings.max_turns_per_tenant,
            node_turns=settings.max_turns_per_node,
            waiting=settings.max_waiting,
        )
    )
    context = Context(
        upstream=upstream or _client(settings),
        fleet=fleet_of(settings, facts=facts, key=key, now=store.now),
        ledger=store.ledger,
        facts=facts,
        doubts=Doubts(),
        admission=admission,
        settings=relay_settings(settings, key),
        now=store.now,
        releases=releases,
        gaps=Gaps(settings.decode_ttl_s, shared=store.board is not None),
        tracing=Tracing(settings.otlp_sample_ratio) if settings.otlp_endpoint else None,
        pins=store.pins,
    )
    releasing = Releasing(
        context,
        store.pins,
        settings.pin_budget,
        settings.release_per_s,
        look_every_s=0.0 if settings.store == MEMORY else LOOK_AT_SHARED_EVERY_S,
    )
    reconciler = Reconciler(context.fleet, facts)
    reconciler.are(SETTINGS_SOURCE, settings_nodes(settings))
    router = Router(
        settings,
        context,
        registry,
        OpenTurns(),
        LedgerStats(0, 0, 0, 0, 0, 0, 0),
        key,
        reconciler,
        releasing,
        Live(store.now),
        Sharing(context, store.board) if store.board is not None else None,
    )
    facts.subscribe(metrics)
    facts.subscribe(logs.FactLog())
    if settings.otlp_endpoint:
        from router.telemetry import tracing  # noqa: PLC0415 - of an extra

        sender = tracing.sender(
            settings.otlp_endpoint, settings.otlp_service_name, __version__, metrics.spans
        )
        facts.subscribe(sender)
        router.close_spans = sender.close
    if settings.admin_port is not None:
        facts.subscribe(router.live)
    # A node that has come back may have room for those who wait.
    facts.subscribe(lambda _: admission.look(), NodeChanged)
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    state = StateCollector(
        lambda: context.fleet.snapshot,
        lambda: router.ledger_stats,
        lambda: router.open_turns.count,
        lambda: admission.waiting,
        store.servers_up,
    )
    registry.register(state)
    pins = PinCollector(releasing.state, lambda: len(context.releases), context.gaps)
    registry.register(pins)
    if settings.workers > 1 and shared_metrics.shared():
        router.shared = SharedMetrics((state, pins, ProcessCollector(registry=None)))
    build_info(registry, __version__, settings.verify)
    return router
