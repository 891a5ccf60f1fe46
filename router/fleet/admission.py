"""Who may run now, and who waits. Pure: no loop, no clock; whoever waits is told through its ``wake``.

A turn takes its place before anything of it is sent, and keeps it until it has ended, so that nothing ever
waits between its legs. What limits it: turns in all, turns of one tenant, and turns on one node.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Hashable
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
    """A turn's place. ``free``: how many more turns the nodes could take that it may run on; None: any."""

    tenant: bytes | None
    kind: Hashable
    """Turns of one kind may run on the same nodes."""
    free: Callable[[], int | None]
    wake: Callable[[], None]
    """Called once, when a turn that had to wait may run."""
    admitted: bool = False
    planned: bool = False
    """Its plan has named nodes."""
    nodes: frozenset[str] = frozenset()


@dataclass(slots=True)
class Admission:
    """The places of a router. One event loop only.

    A free place goes round the tenants that wait, each in the order of its own turns: a tenant with a
    thousand turns in the queue delays another by one turn, not by a thousand. Between its admission and its
    plan a turn counts on no node yet, and is counted against all of them.
    """

    limits: AdmissionLimits
    running: int = 0
    waiting: int = 0
    _unplanned: int = 0
    _by_tenant: Counter[bytes] = field(default_factory=Counter)
    _on_node: Counter[str] = field(default_factory=Counter)
    _queues: OrderedDict[bytes, deque[Place]] = field(default_factory=OrderedDict)
    _looking: bool = False
    _look_again: bool = False

    def room(self, key: str, limit: int | None) -> int | None:
        """How many more turns may go to a node, ``limit`` being its own; None where nothing limits it."""
        most = limit if limit is not None else self.limits.node_turns
        return None if most is None else max(most - self._on_node[key], 0)

    def enter(self, place: Place) -> bool:
        """Whether the turn may run at once; else it waits, and ``place.wake`` will be called.

        Raises TenantFull, and Full where as many wait as may. Whatever comes of it, ``leave`` ends it.
        """
        tenant = place.tenant or _NOBODY
        # Whoever comes later does not overtake those who wait for the same.
        if not self.waiting and self._may_run(place, {}):
            self._admit(place)
            return True
        most, own = self.limits.tenant_turns, self._queues.get(tenant, ())
        if most is not None and self._by_tenant[tenant] + len(own) >= most:
            raise TenantFull(f"{most} turns of this tenant are running or waiting")
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
        for key in place.nodes:
            if key not in before:
                self._on_node[key] += 1
        for key in before:
            if key not in place.nodes:
                self._give(self._on_node, key)
        is_first = not place.planned and self._plan(place)
        if self.waiting and (is_first or before - place.nodes):
            self.look()

    def leave(self, place: Place) -> None:
        """The turn has ended, or waits no more. Safe to call again."""
        if place.admitted:
            if not place.planned:
                self._plan(place)
            for key in place.nodes:
                self._give(self._on_node, key)
            place.admitted, place.nodes = False, frozenset()
            self.running -= 1
            self._give(self._by_tenant, place.tenant or _NOBODY)
        else:
            self._withdraw(place)
        if self.waiting:
            self.look()

    def look(self) -> None:
        """Let those run who may: after a turn has left, and after nodes have changed."""
        self._look()

    def _look(self, entering: Place | None = None) -> None:
        if self._looking:
            # To ask for free nodes lets time pass for them, and whoever is told of a change looks here.
            self._look_again = True
            return
        self._looking = True
        try:
            while True:
                self._look_again = False
                while self.waiting and (place := self._next()) is not None:
                    self._withdraw(place)
                    self._admit(place)
                    if place is not entering:
                        place.wake()
                if not self._look_again:
                    return
        finally:
            self._looking = False

    def _next(self) -> Place | None:
        if self.running >= self.limits.turns:
            return None
        seen: dict[Hashable, bool] = {}
        for tenant, queue in self._queues.items():
            for place in queue:
                if self._may_run(place, seen):
                    self._queues.move_to_end(tenant)
                    return place
        return None

    def _may_run(self, place: Place, seen: dict[Hashable, bool]) -> bool:
        """``seen`` keeps which kinds fit: a look through a thousand that wait asks once for each kind."""
        if place.kind not in seen:
            free = place.free()
            seen[place.kind] = free is None or free > self._unplanned
        most = self.limits.tenant_turns
        if not seen[place.kind] or self.running >= self.limits.turns:
            return False
        return most is None or self._by_tenant[place.tenant or _NOBODY] < most

    def _admit(self, place: Place) -> None:
        place.admitted = True
        self.running += 1
        self._unplanned += 1
        self._by_tenant[place.tenant or _NOBODY] += 1

    def _plan(self, place: Place) -> bool:
        """Whether the turn had named no nodes until now."""
        if place.planned:
            return False
        place.planned = True
        self._unplanned -= 1
        return True

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
