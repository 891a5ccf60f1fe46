"""Every metric of the router, in one place: names, units, buckets, help. A subscriber to facts.

Labels come from bounded sets: plans, reasons, outcomes, roles, node keys. Never ids, models or tenants.
"""

from collections.abc import Callable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from router.fleet.node import State
from router.fleet.pool import Pool
from router.ledger.store import LedgerStats
from router.telemetry.facts import (
    DiscoveryFailed,
    EndedBy,
    Fact,
    HandleFact,
    LedgerFailed,
    LegFailed,
    NodeChanged,
    PromptMismatch,
    StoreChanged,
    TaskFailed,
    TurnEnded,
    UsageAfterRelease,
)
from router.telemetry.shared_metrics import shared

# The buckets of vLLM's own time_to_first_token_seconds, so that both can be laid over each other.
TTFT_BUCKETS_S: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
RATIO_BUCKETS: Final = (0.1, 0.25, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0, 10.0)
GAP_BUCKETS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 30.0, 60.0)


class Metrics:
    """Counts facts. ``registry`` is the router's own, so that two routers in one process do not mix."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"boomerang_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(f"boomerang_{name}", text, labels, buckets=buckets, registry=registry)

        self.turns = counter(
            "turns", "Turns by plan, reason and who ended them.", "plan", "reason", "ended_by"
        )
        self.answers = counter("answers", "Turns by endpoint and HTTP status sent.", "endpoint", "status")
        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens of finished turns.", "plan")
        self.reused_tokens = counter("reused_tokens", "Prompt tokens that no engine computed again.", "plan")
        self.first_byte = histogram(
            "time_to_first_byte_seconds",
            "From the request to the first byte of its answer.",
            TTFT_BUCKETS_S,
            "plan",
        )
        self.prefill = histogram("prefill_leg_seconds", "Duration of prefill legs.", TTFT_BUCKETS_S, "plan")
        self.verify = histogram(
            "verify_seconds", "Time taken to compare a handle with the prompt in the router.", TTFT_BUCKETS_S
        )
        self.gap = histogram(
            "prefill_decode_gap_seconds", "From the end of the prefill leg to the decode leg.", GAP_BUCKETS_S
        )
        self.estimates = histogram(
            "estimate_ratio",
            "Time to the first byte of streamed turns, over what their plan was estimated to take.",
            RATIO_BUCKETS,
            "plan",
        )
        self.handles = counter("handles", "What became of handles.", "outcome", "detail")
        self.handle_tokens = counter("handle_tokens", "Tokens behind those handles.", "outcome")
        self.leg_failures = counter(
            "leg_failures",
            "Legs that failed, and what the turn did.",
            "role",
            "node",
            "action",
            "with_handle",
        )
        self.departures = counter("client_departures", "Clients that left, by phase of the turn.", "phase")
        self.mismatches = counter(
            "prompt_mismatches", "Prompts a prefill node read otherwise than verified.", "node"
        )
        self.ledger_failures = counter("ledger_failures", "Turns that the ledger failed.", "operation")
        self.node_changes = counter("node_changes", "Times a node came to a state.", "role", "state")
        self.discovery_failures = counter(
            "discovery_failures", "Times that a source of nodes began to fail, or failed otherwise.", "source"
        )
        self.store_changes = counter(
            "store_changes", "Times a shared store's server was given up, or answered again.", "state"
        )
        self.release_checks = counter(
            "release_checks",
            "Whether a decode node's own KV usage fell after handles were released on it.",
            "node",
            "usage",
        )
        self.task_failures = counter("task_failures", "Background tasks that raised.", "task")

    def __call__(self, fact: Fact) -> None:
        """Count one fact."""
        match fact:
            case TurnEnded():
                self._turn(fact)
            case HandleFact():
                self.handles.labels(fact.outcome, fact.detail).inc()
                self.handle_tokens.labels(fact.outcome).inc(fact.tokens)
            case LegFailed():
                with_handle = "yes" if fact.with_handle else "no"
                self.leg_failures.labels(fact.role, fact.node, fact.action, with_handle).inc()
            case PromptMismatch():
                self.mismatches.labels(fact.node).inc()
            case LedgerFailed():
                self.ledger_failures.labels(fact.operation).inc()
            case NodeChanged():
                self.node_changes.labels(fact.role, fact.state).inc()
                if fact.state == State.GONE:
                    self._forget(fact.node)
            case DiscoveryFailed():
                self.discovery_failures.labels(fact.source).inc()
            case StoreChanged():
                self.store_changes.labels("up" if fact.up else "down").inc()
            case UsageAfterRelease():
                fell = "fell" if fact.after < fact.before else "did_not_fall"
                self.release_checks.labels(fact.node, fell).inc()
            case TaskFailed():
                self.task_failures.labels(fact.task).inc()
            case _:
                pass

    def _forget(self, node: str) -> None:
        """Nodes come and go under new addresses: one that is gone leaves no series behind.

        Where processes share their figures, prometheus-client cannot take any back.
        """
        if not shared():
            for metric in (self.leg_failures, self.mismatches):
                metric.remove_by_labels({"node": node})

    def _turn(self, turn: TurnEnded) -> None:
        self.turns.labels(turn.plan, turn.reason, turn.ended_by).inc()
        self.answers.labels(turn.endpoint, str(turn.status)).inc()
        if turn.ended_by is EndedBy.CLIENT:
            self.departures.labels(turn.phase).inc()
        if turn.prompt_tokens:
            self.prompt_tokens.labels(turn.plan).inc(turn.prompt_tokens)
        if turn.reused_tokens:
            self.reused_tokens.labels(turn.plan).inc(turn.reused_tokens)
        for histogram, value in ((self.verify, turn.verify_s), (self.gap, turn.gap_s)):
            if value is not None:
                histogram.observe(value)
        timed = (
            (self.first_byte, turn.first_byte_s),
            (self.prefill, turn.prefill_s),
            (self.estimates, turn.estimate_ratio),
        )
        for by_plan, value in timed:
            if value is not None:
                by_plan.labels(turn.plan).observe(value)


class StateCollector(Collector):
    """What is true at the moment of a scrape: nodes, open legs, the ledger's size."""

    def __init__(
        self,
        pool: Callable[[], Pool],
        ledger: Callable[[], LedgerStats],
        open_turns: Callable[[], int],
        waiting_turns: Callable[[], int],
    ) -> None:
        self._pool, self._ledger = pool, ledger
        self._open_turns, self._waiting_turns = open_turns, waiting_turns

    def collect(self) -> list[Metric]:
        """Called by prometheus-client at each scrape."""
        nodes = self._pool().nodes
        state = _gauge("node_state", "1 for the state that a node is in.", ("role", "node", "state"))
        circuit = _gauge("node_breaker", "1 for where a node's breaker is.", ("role", "node", "circuit"))
        legs = _gauge("open_legs", "Legs of this router that are open on a node.", ("role", "node"))
        for node in nodes:
            state.add_metric((node.role, node.key, node.state), 1.0)
            circuit.add_metric((node.role, node.key, node.circuit), 1.0)
            legs.add_metric((node.role, node.key), float(node.in_flight))
        return [
            state,
            circuit,
            legs,
            _value("open_turns", "Turns that are open: running, or waiting for a place.", self._open_turns()),
            _value("waiting_turns", "Turns that wait for a place.", self._waiting_turns()),
            *_ledger(self._ledger()),
        ]


def _gauge(name: str, text: str, labels: tuple[str, ...]) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"boomerang_{name}", text, labels=labels)


def _value(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"boomerang_{name}", text, value=value)


def _ledger(stats: LedgerStats) -> list[Metric]:
    now = {
        "ledger_branches": ("Branches that the ledger knows.", stats.branches),
        "ledger_boundaries": ("Boundaries that lead to branches.", stats.boundaries),
        "ledger_handles": ("Handles that wait in the ledger.", stats.handles),
        "ledger_bytes": ("Memory that the ledger takes, estimated.", stats.size_bytes),
    }
    since_start = {
        "ledger_expired_handles": ("Handles that nobody came back for in time.", stats.expired_handles),
        "ledger_evicted_handles": ("Handles dropped to make room.", stats.evicted_handles),
        "ledger_evicted_branches": (
            "Branches dropped to make room, or for their age.",
            stats.evicted_branches,
        ),
    }
    gauges = [_value(name, text, float(value)) for name, (text, value) in now.items()]
    counters = [
        CounterMetricFamily(f"boomerang_{name}", text, value=float(value))
        for name, (text, value) in since_start.items()
    ]
    if not stats.measured:  # what is not counted is not shown as none
        unmeasured = {"boomerang_ledger_boundaries", "boomerang_ledger_bytes"}
        gauges = [gauge for gauge in gauges if gauge.name not in unmeasured]
    return [*gauges, *counters]


def build_info(registry: CollectorRegistry, version: str, verify: str) -> None:
    """A constant gauge that names version and mode."""
    info = Gauge(
        "boomerang_build_info",
        "Version and mode of the router.",
        ("version", "verify"),
        registry=registry,
        multiprocess_mode="livemax",
    )
    info.labels(version, verify).set(1)
