"""Every metric of the router, in one place: names, units, buckets, help. A subscriber to facts.

Labels come from bounded sets: plans, reasons, outcomes, roles, node keys. Never ids, models or tenants.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Generic, TypeVar

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
    RequestRefused,
    SpanOutcome,
    StoreChanged,
    TaskFailed,
    TurnEnded,
    UsageAfterRelease,
)
from router.telemetry.shared_metrics import shared
from router.telemetry.tally import Tally, TurnKind

# The buckets of vLLM's own time_to_first_token_seconds and e2e_request_latency_seconds (vllm/v1/metrics), so
# that both can be laid over each other.
TTFT_BUCKETS_S: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
TURN_BUCKETS_S: Final = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
    960.0, 1920.0, 7680.0,
)  # fmt: skip
RATIO_BUCKETS: Final = (0.1, 0.25, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0, 10.0)
GAP_BUCKETS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 30.0, 60.0)
CALL_BUCKETS_S: Final = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)

_M = TypeVar("_M", Counter, Histogram)


class _Series(Generic[_M]):
    """A metric's series by the values of its labels.

    Each is asked of prometheus-client once, which checks names and takes a lock every time.
    """

    __slots__ = ("_known", "_metric")

    def __init__(self, metric: _M) -> None:
        self._metric: _M = metric
        self._known: dict[tuple[str, ...], _M] = {}

    def of(self, *values: str) -> _M:
        series = self._known.get(values)
        if series is None:
            series = self._known[values] = self._metric.labels(*values) if values else self._metric
        return series

    def forget(self, node: str) -> None:
        """Drop all series of a node."""
        self._metric.remove_by_labels({"node": node})
        self._known.clear()


class Metrics(Collector):
    """Counts facts. ``registry`` is the router's own, so that two routers in one process do not mix.

    Turns and handles wait (``router.telemetry.tally``) until the registry is read. Where processes share
    their figures they do not: any of them may be asked for all, and what one counted that is killed stays.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._tally, self._waits = Tally(), not shared()
        registry.register(self)  # before all series, so that it comes first when they are read

        def counter(name: str, text: str, *labels: str) -> _Series[Counter]:
            return _Series(Counter(f"boomerang_{name}", text, labels, registry=registry))

        def histogram(name: str, text: str, buckets: Sequence[float], *labels: str) -> _Series[Histogram]:
            made = Histogram(f"boomerang_{name}", text, labels, buckets=buckets, registry=registry)
            return _Series(made)

        self._turns = counter(
            "turns", "Turns by plan, reason and who ended them.", "plan", "reason", "ended_by"
        )
        self._answers = counter("answers", "Turns by endpoint and HTTP status sent.", "endpoint", "status")
        self._refusals = counter("refusals", "Requests that did not become a turn.", "code")
        self._departures = counter("client_departures", "Clients that left, by phase of the turn.", "phase")
        self._prompt_tokens = counter("prompt_tokens", "Prompt tokens of turns, where known.", "plan")
        self._reused_tokens = counter("reused_tokens", "Prompt tokens that no engine computed again.", "plan")
        self._moved_tokens = counter(
            "moved_tokens", "Of the reused tokens, about those that came back from a decode node.", "plan"
        )
        self._completion_tokens = counter(
            "completion_tokens", "Tokens of answers, where the engine or the router counted them.", "plan"
        )
        self._first_byte = histogram(
            "time_to_first_byte_seconds",
            "From the request to the first byte of its answer: of a streamed one, its first token.",
            TTFT_BUCKETS_S,
            "plan",
            "stream",
        )
        self._turn_s = histogram(
            "turn_seconds", "From the request to the end of its turn.", TURN_BUCKETS_S, "plan"
        )
        self._wait = histogram(
            "admission_wait_seconds", "How long turns that had to wait for a place waited.", TTFT_BUCKETS_S
        )
        self._verify = histogram(
            "verify_seconds", "Time taken to compare a handle with the prompt in the router.", TTFT_BUCKETS_S
        )
        self._prefill = histogram("prefill_leg_seconds", "Duration of prefill legs.", TTFT_BUCKETS_S, "plan")
        self._gap = histogram(
            "prefill_decode_gap_seconds", "From the end of the prefill leg to the decode leg.", GAP_BUCKETS_S
        )
        self._decode = histogram(
            "decode_leg_seconds",
            "From the sending of the decode leg to its turn's end.",
            TURN_BUCKETS_S,
            "plan",
        )
        self._estimates = histogram(
            "estimate_ratio",
            "Time to the first byte of streamed turns, over what their plan was estimated to take.",
            RATIO_BUCKETS,
            "plan",
        )
        self._handles = counter("handles", "What became of handles.", "outcome", "detail")
        self._handle_tokens = counter("handle_tokens", "Tokens behind those handles.", "outcome")
        self._divergences = counter(
            "divergences",
            "Handles whose tokens were not all the prompt's, by where they part from it.",
            "parted",
            "outcome",
        )
        self._leg_failures = counter(
            "leg_failures",
            "Legs that failed, and what the turn did.",
            "role",
            "node",
            "action",
            "with_handle",
        )
        self._leg_faults = counter("leg_faults", "Legs that failed, by what they failed of.", "role", "fault")
        self._mismatches = counter(
            "prompt_mismatches", "Prompts a prefill node read otherwise than verified.", "node"
        )
        self._ledger_failures = counter("ledger_failures", "Turns that the ledger failed.", "operation")
        self._ledger_calls = histogram(
            "ledger_call_seconds",
            "How long a call of a shared store was waited for, whatever came of it.",
            CALL_BUCKETS_S,
            "operation",
        )
        self._store_changes = counter(
            "store_changes", "Times a shared store's server was given up, or answered again.", "state"
        )
        self._node_changes = counter("node_changes", "Times a node came to a state.", "role", "state")
        self._ejections = counter(
            "node_ejections",
            "Times a node was ejected, by why: its probes or its breaker.",
            "role",
            "node",
            "why",
        )
        self._discovery_failures = counter(
            "discovery_failures", "Times that a source of nodes began to fail, or failed otherwise.", "source"
        )
        self._release_checks = counter(
            "release_checks",
            "Whether a decode node's own KV usage fell after handles were released on it.",
            "node",
            "usage",
        )
        self._spans = counter(
            "spans", "Spans for the collector: sent, given up, or dropped as too many waited.", "outcome"
        )
        self._task_failures = counter("task_failures", "Background tasks that raised.", "task")

    def __call__(self, fact: Fact) -> None:
        """Count one fact."""
        match fact:
            case TurnEnded():
                self._turn(fact)
            case HandleFact():
                self._tally.handle(fact)
                if not self._waits:
                    self.pour()
            case RequestRefused():
                self._refusals.of(fact.code).inc()
            case LegFailed():
                self._leg_failures.of(fact.role, fact.node, fact.action, _yes(fact.with_handle)).inc()
                self._leg_faults.of(fact.role, fact.fault).inc()
            case PromptMismatch():
                self._mismatches.of(fact.node).inc()
            case LedgerFailed():
                self._ledger_failures.of(fact.operation).inc()
            case NodeChanged():
                self._node(fact)
            case DiscoveryFailed():
                self._discovery_failures.of(fact.source).inc()
            case StoreChanged():
                self._store_changes.of("up" if fact.up else "down").inc()
            case UsageAfterRelease():
                self._release_checks.of(
                    fact.node, "fell" if fact.after < fact.before else "did_not_fall"
                ).inc()
            case TaskFailed():
                self._task_failures.of(fact.task).inc()
            case _:
                pass

    def ledger_call(self, operation: str, seconds: float) -> None:
        """Count one call of a shared store."""
        self._ledger_calls.of(operation).observe(seconds)

    def spans(self, outcome: SpanOutcome, spans: int) -> None:
        """Count spans; from any thread."""
        self._spans.of(outcome).inc(spans)

    def _node(self, fact: NodeChanged) -> None:
        """Count a node's change.

        Nodes come and go under new addresses: one that is gone leaves no series behind. Where processes share
        their figures, prometheus-client cannot take any back.
        """
        self._node_changes.of(fact.role, fact.state).inc()
        if fact.ejection:
            self._ejections.of(fact.role, fact.node, fact.ejection).inc()
        if fact.state == State.GONE and not shared():
            for metric in (self._leg_failures, self._mismatches, self._ejections, self._release_checks):
                metric.forget(fact.node)

    def collect(self) -> list[Metric]:
        """Called at each scrape, before the series are read: tell them what was only added up so far."""
        self.pour()
        return []

    def pour(self) -> None:
        """Tell the series of all turns and handles until now."""
        tally, self._tally = self._tally, Tally()
        for kind, turns in tally.turns.items():
            self._tell(kind, turns)
        for (outcome, detail, parted), handles in tally.handles.items():
            self._handles.of(outcome, detail).inc(handles.handles)
            self._handle_tokens.of(outcome).inc(handles.tokens)
            if parted is not None:
                self._divergences.of(parted, outcome).inc(handles.handles)

    def _turn(self, turn: TurnEnded) -> None:
        if turn.ended_by is EndedBy.CLIENT:
            self._departures.of(turn.phase).inc()
        if self._tally.turn(turn) or not self._waits:
            self.pour()

    def _tell(self, kind: TurnKind, turns: Sequence[TurnEnded]) -> None:
        plan, reason, ended_by, endpoint, status, stream = kind
        self._turns.of(plan, reason, ended_by).inc(len(turns))
        self._answers.of(endpoint, str(status)).inc(len(turns))
        told = [turn for turn in turns if turn.prompt_tokens]
        if told:
            self._prompt_tokens.of(plan).inc(sum(turn.prompt_tokens or 0 for turn in told))
            # Of a prompt whose length nobody told there is no share either.
            self._reused_tokens.of(plan).inc(sum(turn.reused_tokens or 0 for turn in told))
            self._moved_tokens.of(plan).inc(sum(turn.moved_tokens or 0 for turn in told))
        completion_tokens = sum(turn.completion_tokens or 0 for turn in turns)
        if completion_tokens:
            self._completion_tokens.of(plan).inc(completion_tokens)
        _observe(self._first_byte, (plan, _yes(stream)), [turn.first_byte_s for turn in turns])
        _observe(self._turn_s, (plan,), [turn.total_s for turn in turns])
        _observe(self._wait, (), [turn.waited_s for turn in turns])
        _observe(self._verify, (), [turn.verify_s for turn in turns])
        _observe(self._gap, (), [turn.gap_s for turn in turns])
        _observe(self._prefill, (plan,), [turn.prefill_s for turn in turns])
        _observe(self._decode, (plan,), [turn.decode_s for turn in turns])
        _observe(self._estimates, (plan,), [turn.estimate_ratio for turn in turns])


def _observe(histogram: _Series[Histogram], labels: tuple[str, ...], values: Sequence[float | None]) -> None:
    """Tell a histogram of those values that there are; it has no series for what was never seen."""
    known = [value for value in values if value is not None]
    if known:
        observe = histogram.of(*labels).observe
        for value in known:
            observe(value)


def _yes(said: bool) -> str:  # noqa: FBT001 - the value of a label
    return "yes" if said else "no"


class StateCollector(Collector):
    """What is true at the moment of a scrape: nodes, open legs, the ledger's size."""

    def __init__(
        self,
        pool: Callable[[], Pool],
        ledger: Callable[[], LedgerStats],
        open_turns: Callable[[], int],
        waiting_turns: Callable[[], int],
        servers_up: Callable[[], Mapping[str, bool]] = dict,
    ) -> None:
        self._pool, self._ledger, self._servers_up = pool, ledger, servers_up
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
        store = _gauge(
            "store_up", "Whether a shared store's server is asked: 1, or 0 while it fails.", ("server",)
        )
        for server, up in self._servers_up().items():
            store.add_metric((server,), float(up))
        return [
            state,
            circuit,
            legs,
            store,
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
