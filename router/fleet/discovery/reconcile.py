"""Makes a fleet follow what its sources list."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Protocol

from router.fleet.node import Node
from router.fleet.pool import Fleet
from router.telemetry.facts import DiscoveryFailed, Facts, NodesListed

MAX_NODES: Final = 4096
"""Of one source. More is most likely a selector that matches too much."""


class Listing(Protocol):
    """What a source tells, at every change."""

    def are(self, nodes: Iterable[Node]) -> None:
        """These are all the nodes that the source knows of."""

    def failed(self, why: str) -> None:
        """The source cannot be read now; what it listed last stands."""


class Source(Protocol):
    """One way to find nodes."""

    @property
    def name(self) -> str:
        """What people call it: a setting and its value, without secrets."""

    async def run(self, listing: Listing) -> None:
        """Tell ``listing`` at once and at every change, until cancelled. Raises nothing that can be told."""


@dataclass(slots=True)
class Reconciler:
    """Joins what several sources list. A node stays as long as one of them lists it.

    Only differences are applied: what an operator has added or removed by hand is not put back in order
    behind their back, until the source itself changes.
    """

    fleet: Fleet
    facts: Facts
    _listed: dict[str, dict[str, Node]] = field(default_factory=dict)
    _failing: dict[str, str] = field(default_factory=dict)

    def listing(self, source: str) -> Listing:
        """Where the source of this name tells."""
        return _Listing(self, source)

    def are(self, source: str, nodes: Iterable[Node]) -> None:
        """A source lists these nodes now."""
        listed = {node.key: node for node in nodes}
        if len(listed) > MAX_NODES:
            self.failed(source, f"{len(listed)} nodes are more than {MAX_NODES}")
            return
        recovered = self._failing.pop(source, None) is not None
        before = self._listed.get(source)
        self._listed[source] = listed
        if recovered or before is None or before.keys() != listed.keys():
            self.facts.publish(NodesListed(source, len(listed)))
        for key, node in listed.items():
            if before is None or before.get(key) != node:
                self.fleet.add(node)
        for key in (before or {}).keys() - listed.keys():
            if not any(key in others for others in self._listed.values()):
                self.fleet.leave(key, f"{source} does not list it any more")

    def failed(self, source: str, why: str) -> None:
        """A source cannot be read; said once for each reason."""
        if self._failing.get(source) != why:
            self._failing[source] = why
            self.facts.publish(DiscoveryFailed(source, why))


@dataclass(frozen=True, slots=True)
class _Listing:
    reconciler: Reconciler
    source: str

    def are(self, nodes: Iterable[Node]) -> None:
        self.reconciler.are(self.source, nodes)

    def failed(self, why: str) -> None:
        self.reconciler.failed(self.source, why)
