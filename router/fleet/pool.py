"""All nodes: an immutable snapshot for decisions, and the one holder that moves it on.

A decision takes a snapshot and never sees a half-changed fleet. Everything that changes a node goes through
``Fleet``, on the event loop's thread.
"""

import asyncio
import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Protocol
from urllib.parse import urlsplit

from router.engines.upstream import Upstream
from router.fleet.node import Engine, Node, Role, State
from router.telemetry.facts import Facts, NodeChanged, TaskFailed

FAILURES_TO_EJECT = 2
"""Failed probes in a row after which a node gets no new turns; one good probe brings it back."""


@dataclass(frozen=True, slots=True)
class Pool:
    """The nodes at one moment."""

    nodes: tuple[Node, ...] = ()
    _by_key: dict[str, Node] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, nodes: Iterable[Node]) -> "Pool":
        listed = tuple(nodes)
        return cls(listed, {node.key: node for node in listed})

    def get(self, key: str) -> Node | None:
        return self._by_key.get(key)

    def ready(self, role: Role, model: str = "") -> tuple[Node, ...]:
        """Nodes that may get a turn for ``model``; a node whose models are not known serves any."""
        return tuple(
            node
            for node in self.nodes
            if node.role is role
            and node.state is State.READY
            and (not model or not node.engine.models or model in node.engine.models)
        )

    def with_node(self, node: Node) -> "Pool":
        """The same pool with one node replaced, or added."""
        if node.key in self._by_key:
            return Pool.of(node if known.key == node.key else known for known in self.nodes)
        return Pool.of((*self.nodes, node))


@dataclass(frozen=True, slots=True)
class Probed:
    """What one probe of a node found. ``engine`` is what is known of it now."""

    state: State
    reason: str
    engine: Engine


class Probe(Protocol):
    async def __call__(self, upstream: Upstream, node: Node) -> Probed: ...


def node_of(origin: str, role: Role) -> Node:
    """A node that nothing is known of yet. Its key is role and address, unique in a fleet."""
    parts = urlsplit(origin)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    return Node(f"{role.value[0]}:{host}:{port}", origin.rstrip("/"), role)


class Fleet:
    """Holds the current snapshot, and counts open legs. One event loop only."""

    def __init__(self, nodes: Iterable[Node], *, probe: Probe, facts: Facts) -> None:
        self._pool = Pool.of(nodes)
        self._legs: dict[str, int] = {}
        self._failures: dict[str, int] = {}
        self._probe, self._facts = probe, facts

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

    def _count(self, key: str, by: int) -> None:
        node = self._pool.get(key)
        if node is not None:
            self._pool = self._pool.with_node(replace(node, in_flight=node.in_flight + by))

    def learn(self, key: str, **facts: Any) -> None:
        """Take over what an answer told of the engine behind a node; see ``Engine`` for the names.

        A new ``engine_id`` is a new process: what an earlier one taught is forgotten first.
        """
        node = self._pool.get(key)
        if node is None:
            return
        engine, told = node.engine, {name: value for name, value in facts.items() if value is not None}
        restarted = engine.engine_id is not None and told.get("engine_id", engine.engine_id) != engine.engine_id
        if restarted:
            engine = forget(engine)
        learned = replace(engine, **told)
        if learned != node.engine:
            self._pool = self._pool.with_node(replace(node, engine=learned))

    async def run(self, upstream: Upstream, *, interval_s: float) -> None:
        """Probe every node at once, and then every ``interval_s`` seconds, until cancelled. Never raises."""
        while True:
            await self.refresh(upstream)
            await asyncio.sleep(interval_s)

    async def refresh(self, upstream: Upstream) -> None:
        """Probe every node once."""
        await asyncio.gather(*(self._refresh(upstream, node.key) for node in self._pool.nodes))

    async def _refresh(self, upstream: Upstream, key: str) -> None:
        node = self._pool.get(key)
        if node is None:
            return
        try:
            probed = await self._probe(upstream, node)
        except Exception as error:
            self._facts.publish(TaskFailed("probe", f"{key}: {type(error).__name__}: {error}"))
            return
        self._take(key, node.engine, probed)

    def _take(self, key: str, before: Engine, probed: Probed) -> None:
        node = self._pool.get(key)
        if node is None or node.state in (State.DRAINING, State.GONE):
            return
        failed = probed.state is not State.READY
        self._failures[key] = self._failures.get(key, 0) + 1 if failed else 0
        state, reason = probed.state, probed.reason
        if failed and node.state is State.READY and self._failures[key] < FAILURES_TO_EJECT:
            state, reason = node.state, node.reason
        # What turns have learned while the probe ran stays, unless the probe saw another process.
        changes = {
            name: getattr(probed.engine, name)
            for name in Engine.__dataclass_fields__
            if getattr(probed.engine, name) != getattr(before, name)
        }
        self._pool = self._pool.with_node(
            replace(node, state=state, reason=reason, engine=replace(node.engine, **changes))
        )
        if (state, reason) != (node.state, node.reason):
            self._facts.publish(NodeChanged(key, node.role, state, reason))


def forget(engine: Engine) -> Engine:
    """What stays known of a node whose process is a new one: nothing that the old one taught."""
    return Engine(models=engine.models, block_size=engine.block_size, prefix_cache=engine.prefix_cache)


