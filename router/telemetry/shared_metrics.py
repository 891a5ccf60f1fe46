"""Metrics of several processes on one port: any of them answers a scrape for all.

prometheus-client keeps counters and histograms of each process in a file, and adds them up. What is true at
the moment of a scrape (open turns, states of nodes) has no file of its own: each process writes it down every
second as gauges, and here is how those of several processes become one. Gauges of a process that ended are
dropped; what it counted stays.
"""

from collections.abc import Sequence
from typing import Any, Final, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest, values
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.registry import Collector

Mode = Literal["livesum", "livemax", "livemin"]

MODES: Final[dict[str, Mode]] = {
    # Each process has its own view of these, of the same thing: a node that one sees as ready and another as
    # down shows both.
    "boomerang_node_state": "livemax",
    "boomerang_node_breaker": "livemax",
    # One that cannot reach the store is news, also where others can.
    "boomerang_store_up": "livemin",
    "boomerang_ledger_branches": "livemax",
    "boomerang_ledger_handles": "livemax",
    "boomerang_pinned_tokens": "livemax",
    "boomerang_pinned_handles": "livemax",
    "boomerang_pinned_share": "livemax",
    "boomerang_return_probability": "livemax",
    "process_start_time_seconds": "livemin",
    "process_max_fds": "livemin",
    "process_virtual_memory_bytes": "livesum",
}
"""How a gauge of several processes becomes one; ``livesum`` where nothing is said."""

forget = mark_process_dead
"""Drops the gauges of a process that has ended."""


def shared() -> bool:
    """Whether this process keeps its metrics in files: ``PROMETHEUS_MULTIPROC_DIR`` was set in time."""
    return bool(getattr(values.ValueClass, "_multiprocess", False))


class SharedMetrics:
    """Writes down what ``collectors`` tell of this process, and answers scrapes for all."""

    def __init__(self, collectors: Sequence[Collector]) -> None:
        self._collectors = collectors
        self._registry = CollectorRegistry()
        self._gauges: dict[str, Gauge] = {}
        self._counters: dict[str, Counter] = {}
        self._told: dict[tuple[str, tuple[str, ...]], float] = {}
        """The last value of each series, by name and label values."""

    async def write(self) -> None:
        """Write down what is true now."""
        present: set[tuple[str, tuple[str, ...]]] = set()
        for collector in self._collectors:
            for family in collector.collect():
                for sample in family.samples:
                    labels = tuple(sorted(sample.labels))
                    series = (family.name, tuple(sample.labels[name] for name in labels))
                    present.add(series)
                    self._set(family, labels, series, sample.value)
        for series in self._told.keys() - present:
            if series[0] in self._gauges and self._told[series]:
                self._child(self._gauges[series[0]], series[1]).set(0)
                self._told[series] = 0.0

    def scrape(self) -> bytes:
        """The metrics of all processes, in the text format."""
        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry)

    def _set(
        self, family: Any, labels: tuple[str, ...], series: tuple[str, tuple[str, ...]], value: float
    ) -> None:
        name = family.name
        before = self._told.get(series, 0.0)
        self._told[series] = value
        if family.type == "counter":
            counter = self._counters.get(name)
            if counter is None:
                counter = Counter(name, family.documentation, labels, registry=self._registry)
                self._counters[name] = counter
            self._child(counter, series[1]).inc(max(value - before, 0.0))
            return
        gauge = self._gauges.get(name)
        if gauge is None:
            mode = MODES.get(name, "livesum")
            gauge = Gauge(name, family.documentation, labels, registry=self._registry, multiprocess_mode=mode)
            self._gauges[name] = gauge
        self._child(gauge, series[1]).set(value)

    @staticmethod
    def _child(metric: Any, label_values: tuple[str, ...]) -> Any:
        return metric.labels(*label_values) if label_values else metric
