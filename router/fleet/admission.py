"""Who may run now, and who waits. Pure: no loop, no clock; whoever waits is told through its ``wake``.

A turn takes its place before anything of it is sent, and keeps it until it has ended, so that nothing ever
waits between its legs. What limits it: turns in all, turns of one tenant, and turns on one node.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Final

_NOBODY: Final = b""


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """How many turns run at the same time; None is "no limit"."""

    turns: int
    tenant_turns: int | None = None
    node_turns: int | None = None
    """Turns whose plan names a node; a node's own ``limit`` counts instead where it has one."""
    waiting: int = 0
    """How many turns may wait for a place."""


class Full(Exception):
    """There is no place, and none to wait in."""


class TenantFull(Full):
    """The tenant itself has as many turns running and waiting as it may."""


@dataclass(slots=True, eq=False)
class Place:
    """A turn's place. ``fits`` says whether nodes that it could run on have room now."""

    tenant: bytes | None
    fits: Callable[[], bool]
    wake: Callable[[], None]
    """Called once, when a turn that had to wait may run."""
    admitted: bool = False
    nodes: frozenset[str] = frozenset()


@dataclass(slots=True)
class Admission:
    """The places of a router. One event loop only; every method is O(1) but for a look through the waiting.

    A free place goes round the tenants that wait, each in the order of its own turns: a tenant with a
    thousand turns in the queue delays another by one turn, not by a thousand.
    """

    limits: AdmissionLimits
    running: int = 0
    waiting: int = 0
    _by_tenant: Counter[bytes] = field(default_factory=Counter)
    _on_node: Counter[str] = field(default_factory=Counter)
    _queues: OrderedDict[bytes, deque[Place]] = field(default_factory=OrderedDict)

    def has_room(self, key: str, limit: int | None) -> bool:
        """Whether one more turn may go to a node, ``limit`` being the node's own."""
        most = limit if limit is not None else self.limits.node_turns
        return most is None or self._on_node[key] < most

    def enter(self, place: Place) -> bool:
        """Whether the turn may run at once; else it waits, and ``place.wake`` will be called.

        Raises TenantFull, and Full where as many wait as may. Whatever comes of it, ``leave`` ends it.
        """
        tenant = place.tenant or _NOBODY
        # Whoever comes later does not overtake those who wait for the same.
        if not self.waiting and self._may_run(place):
            self._admit(place)
            return True
        most, own = self.limits.tenant_turns, self._queues.get(tenant, ())
        if most is not None and self._by_tenant[tenant] + len(own) >= most:
            raise TenantFull(f"{most} turns of this tenant are running")
        if self.waiting >= self.limits.waiting:
            raise Full(f"{self.running} turns are running and {self.waiting} wait")
        self._queues.setdefault(tenant, deque()).append(place)
        self.waiting += 1
        self._look(entering=place)
        return place.admitted

    def move(self, place: Place, nodes: Collection[str]) -> None:
        """The turn's plan names these nodes now."""
        if not place.admitted:
            return
        before, place.nodes = place.nodes, frozenset(nodes)
        for key in place.nodes - before:
            self._on_node[key] += 1
        for key in before - place.nodes:
            self._give(self._on_node, key)
        if before - place.nodes:
            self.look()

    def leave(self, place: Place) -> None:
        """The turn has ended, or waits no more. Safe to call again."""
        if place.admitted:
            self.move(place, ())
            place.admitted = False
            self.running -= 1
            self._give(self._by_tenant, place.tenant or _NOBODY)
        else:
            self._withdraw(place)
        self.look()

    def look(self) -> None:
        """Let those run who may: after a turn has left, and after nodes have changed."""
        self._look()

    def _look(self, entering: Place | None = None) -> None:
        while self.waiting and (place := self._next()) is not None:
            self._withdraw(place)
            self._admit(place)
            if place is not entering:
                place.wake()

    def _next(self) -> Place | None:
        if self.running >= self.limits.turns:
            return None
        for tenant, queue in self._queues.items():
            for place in queue:
                if self._may_run(place):
                    self._queues.move_to_end(tenant)
                    return place
        return None

    def _may_run(self, place: Place) -> bool:
        most = self.limits.tenant_turns
        if self.running >= self.limits.turns:
            return False
        if most is not None and self._by_tenant[place.tenant or _NOBODY] >= most:
            return False
        return place.fits()

    def _admit(self, place: Place) -> None:
        place.admitted = True
        self.running += 1
        self._by_tenant[place.tenant or _NOBODY] += 1

    def _withdraw(self, place: Place) -> None:
        tenant = place.tenant or _NOBODY
        queue = self._queues.get(tenant)
        if queue is None or place not in queue:
            return
        queue.remove(place)
        self.waiting -= 1
        if not queue:
            del self._queues[tenant]

    @staticmethod
    def _give(counts: Counter[Any], key: str | bytes) -> None:
        counts[key] -= 1
        if not counts[key]:
            del counts[key]
