"""All nodes: an immutable snapshot for decisions, and the one holder that moves it on.

A decision takes a snapshot and never sees a half-changed fleet. Everything that changes a node goes through
``Fleet``, on the event loop's thread.
"""

import asyncio
import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Protocol
from urllib.parse import urlsplit

from router.engines.upstream import Upstream
from router.fleet.node import Engine, Node, Role, State, process_of
from router.fleet.probe import Fault, Probed, Prober, forget, restarted, updated
from router.telemetry.facts import Facts, NodeChanged, TaskFailed

FAILURES_TO_EJECT = 2
"""Failed probes in a row after which a node gets no new turns; one good probe brings it back."""


@dataclass(frozen=True, slots=True)
class Pool:
    """The nodes at one moment, by key."""

    by_key: Mapping[str, Node] = field(default_factory=lambda: MappingProxyType({}))

    @classmethod
    def of(cls, nodes: Iterable[Node]) -> "Pool":
        return cls(MappingProxyType({node.key: node for node in nodes}))

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All of them, in the order in which they were added."""
        return tuple(self.by_key.values())

    def get(self, key: str) -> Node | None:
        return self.by_key.get(key)

    def ready(self, role: Role, model: str = "") -> tuple[Node, ...]:
        """Nodes that may get a turn for ``model``; a node whose models are not known serves any."""
        return tuple(
            node
            for node in self.by_key.values()
            if node.role is role
            and node.state is State.READY
            and (not model or not node.engine.models or model in node.engine.models)
        )

    def with_node(self, node: Node) -> "Pool":
        """The same pool with one node replaced, or added."""
        return Pool(MappingProxyType({**self.by_key, node.key: node}))

    def without(self, key: str) -> "Pool":
        """The same pool without one node; the same if it has no such node."""
        return Pool.of(node for node in self.by_key.values() if node.key != key)


class Probe(Protocol):
    async def __call__(self, upstream: Upstream, node: Node) -> Probed:
        """Probe one node; failures are values."""


def node_of(origin: str, role: Role) -> Node:
    """A node that nothing is known of yet. Its key is role and address, unique in a fleet.

    Raises ValueError where ``origin`` is not ``http(s)://HOST[:PORT]``.
    """
    parts = urlsplit(origin)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/"):
        raise ValueError(f"not an origin, as in http://HOST:PORT: {origin!r}")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    return Node(f"{role.value[0]}:{host}:{port}", origin.rstrip("/"), role)


class Fleet:
    """Holds the current snapshot, counts open legs, and keeps probing. One event loop only."""

    def __init__(self, nodes: Iterable[Node], *, probe: Probe, facts: Facts) -> None:
        self._pool = Pool.of(nodes)
        self._probe, self._facts = probe, facts
        self._legs: dict[str, int] = {}
        self._failures: dict[str, int] = {}
        self._refused: set[str] = set()
        """Nodes that did not even listen since they were ready: most likely another process comes back."""
        self._probing: set[str] = set()

    @classmethod
    def of(
        cls, prefill: Iterable[str], decode: Iterable[str], *, facts: Facts, probe: Probe | None = None
    ) -> "Fleet":
        """A fleet of these origins. Raises ValueError on one that is none."""
        nodes = [node_of(origin, Role.PREFILL) for origin in prefill]
        nodes += [node_of(origin, Role.DECODE) for origin in decode]
        return cls(nodes, probe=probe if probe is not None else Prober(), facts=facts)

    @property
    def snapshot(self) -> Pool:
        """The fleet as it is now; the value never changes afterwards."""
        return self._pool

    @contextlib.contextmanager
    def leg(self, key: str) -> Iterator[None]:
        """Count a leg on a node for as long as it is open, however it ends."""
        self._count(key, +1)
        try:
            yield
        finally:
            self._count(key, -1)

    def process(self, key: str) -> str | None:
        """The engine process that is known to be behind a node *now*.

        A plan's own node may be older than what its turn has learned: the leg that went wrong may have been
        the first that a new process answered.
        """
        node = self._pool.get(key)
        return process_of(node.engine.engine_id) if node is not None else None

    def learn(self, key: str, **facts: Any) -> None:
        """Take over what an answer told of the engine behind a node; see ``Engine`` for the names.

        None tells nothing. A new ``engine_id`` is a new process: what an earlier one taught is forgotten
        first. Raises TypeError for a name that ``Engine`` does not have.
        """
        node = self._pool.get(key)
        if node is None:
            return
        engine, told = node.engine, {name: value for name, value in facts.items() if value is not None}
        new_process = _another_process(engine.engine_id, told.get("engine_id"))
        if new_process:
            engine = forget(engine)
        learned = replace(engine, **told)
        if learned == node.engine:
            return
        self._pool = self._pool.with_node(replace(node, engine=learned))
        if new_process:
            self._facts.publish(NodeChanged(key, node.role, node.state, "another engine id"))

    def add(self, node: Node) -> None:
        """Take a node in, or replace the one with its key."""
        self._set(replace(node, in_flight=self._legs.get(node.key, 0)))

    def remove(self, key: str) -> None:
        """Forget a node. Legs that are open on it run on."""
        self._pool = self._pool.without(key)
        self._failures.pop(key, None)
        self._refused.discard(key)

    def mark(self, key: str, state: State, reason: str) -> None:
        """Put a node in a state, as for draining. Probes do not take ``DRAINING`` and ``GONE`` back."""
        node = self._pool.get(key)
        if node is not None:
            self._set(replace(node, state=state, reason=reason))

    async def run(self, upstream: Upstream, *, interval_s: float) -> None:
        """Probe every node at once, and then every ``interval_s`` seconds, until cancelled. Never raises.

        A node whose probe still runs is left alone, so that a slow one holds up no other.
        """
        async with asyncio.TaskGroup() as group:
            while True:
                for node in self._pool.nodes:
                    if node.key not in self._probing:
                        self._probing.add(node.key)
                        group.create_task(self._refresh(upstream, node.key), name=f"probe {node.key}")
                await asyncio.sleep(interval_s)

    async def refresh(self, upstream: Upstream) -> None:
        """Probe every node once."""
        await asyncio.gather(*(self._refresh(upstream, node.key) for node in self._pool.nodes))

    async def _refresh(self, upstream: Upstream, key: str) -> None:
        try:
            node = self._pool.get(key)
            if node is not None and node.state is not State.GONE:
                self._take(key, await self._probe(upstream, node))
        except Exception as error:
            self._facts.publish(TaskFailed("probe", f"{key}: {type(error).__name__}: {error}"))
        finally:
            self._probing.discard(key)

    def _take(self, key: str, probed: Probed) -> None:
        node = self._pool.get(key)
        if node is None:
            return
        if probed.state is State.READY:
            self._take_good(node, probed)
        else:
            self._take_failed(node, probed)

    def _take_good(self, node: Node, probed: Probed) -> None:
        known, seen = node.engine, probed.seen
        new_process = restarted(known, seen)
        if node.key in self._refused and not new_process:
            # Who did not even listen has most likely ended; what it had shown is to be shown again.
            new_process, known = True, forget(known)
        self._failures.pop(node.key, None)
        self._refused.discard(node.key)
        reason = node.reason if node.state is State.READY else ""
        if new_process:
            started = f"{seen.started_at_s:.0f}" if seen.started_at_s is not None else "an unknown time"
            reason = f"another process, started at {started}"
        # What turns have learned while the probe ran is in the live node, and stays.
        self._set(_with_state(replace(node, engine=updated(known, seen)), State.READY, reason))

    def _take_failed(self, node: Node, probed: Probed) -> None:
        failures = self._failures[node.key] = self._failures.get(node.key, 0) + 1
        if probed.fault is Fault.REFUSED and node.state is not State.STARTING:
            self._refused.add(node.key)
        known = replace(node, engine=updated(node.engine, Engine()))
        if node.state is State.READY and failures < FAILURES_TO_EJECT:
            self._set(known)
        else:
            self._set(_with_state(known, probed.state, probed.reason))

    def _count(self, key: str, by: int) -> None:
        legs = self._legs[key] = self._legs.get(key, 0) + by
        if legs == 0:
            del self._legs[key]
        node = self._pool.get(key)
        if node is not None:
            self._pool = self._pool.with_node(replace(node, in_flight=legs))

    def _set(self, node: Node) -> None:
        before = self._pool.get(node.key)
        self._pool = self._pool.with_node(node)
        if before is None or (before.state, before.reason) != (node.state, node.reason):
            self._facts.publish(NodeChanged(node.key, node.role, node.state, node.reason))


def _with_state(node: Node, state: State, reason: str) -> Node:
    """The node in a state that a probe found; what an operator or discovery has decided stands."""
    if node.state in (State.DRAINING, State.GONE):
        return node
    return replace(node, state=state, reason=reason)


def _another_process(known: str | None, told: str | None) -> bool:
    """Whether two engine ids are known, and of different processes."""
    return None not in (known, told) and process_of(known) != process_of(told)
