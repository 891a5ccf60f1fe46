"""Metrics of what handles pin, as it is at the moment of a scrape."""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from router.ledger.gaps import Gaps

RETURN_WITHIN_S: Final = 480.0
"""vLLM's default time to live of a decode node's blocks: the span that ``return_probability`` is about."""


class NodePins(Protocol):
    """What ``router.turn.releasing`` tells of one decode node."""

    @property
    def node(self) -> str: ...
    @property
    def tokens(self) -> int: ...
    @property
    def handles(self) -> int: ...
    @property
    def share(self) -> float | None: ...


class PinCollector(Collector):
    """``queued`` is how many handles wait to be released."""

    def __init__(self, pins: Callable[[], Sequence[NodePins]], queued: Callable[[], int], gaps: Gaps) -> None:
        self._pins, self._queued, self._gaps = pins, queued, gaps

    def collect(self) -> list[Metric]:
        """Called by prometheus-client at each scrape."""
        tokens = _gauge("pinned_tokens", "Tokens that handles pin on a decode node.", "node")
        handles = _gauge("pinned_handles", "Handles that wait for a decode node's next turn.", "node")
        share = _gauge("pinned_share", "Share of a decode node's KV that handles pin, 0 to 1.", "node")
        for pins in self._pins():
            tokens.add_metric((pins.node,), float(pins.tokens))
            handles.add_metric((pins.node,), float(pins.handles))
            if pins.share is not None:
                share.add_metric((pins.node,), pins.share)
        queued = _gauge("release_queue", "Handles that wait to be released.")
        queued.add_metric((), float(self._queued()))
        chance = _gauge(
            "return_probability",
            "Chance that a conversation goes on within 480 s of its last turn, by how that ended and how long"
            " it has been silent.",
            "finish",
            "silent_s",
        )
        for finish, curve in self._gaps.curves(RETURN_WITHIN_S).items():
            for silent_s, probability in curve.items():
                chance.add_metric((finish.value or "other", f"{silent_s:g}"), probability)
        return [tokens, handles, share, queued, chance]


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"boomerang_{name}", text, labels=labels)
