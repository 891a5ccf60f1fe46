"""All nodes at one moment: a value that decisions are made on. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from router.fleet.node import Node, Role, State

_MAX_KNOWN: Final = 16
"""Of models, which clients name as they like."""


@dataclass(frozen=True, slots=True)
class Pool:
    """The nodes at one moment, by key."""

    by_key: Mapping[str, Node] = field(default_factory=lambda: MappingProxyType({}))
    _ready: dict[tuple[Role, str], tuple[Node, ...]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """What ``ready`` has told already: admission and plan ask the same of one moment."""

    @classmethod
    def of(cls, nodes: Iterable[Node]) -> "Pool":
        return cls(MappingProxyType({node.key: node for node in nodes}))

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All of them, in the order in which they were added."""
        return tuple(self.by_key.values())

    def get(self, key: str) -> Node | None:
        return self.by_key.get(key)

    def by_origin(self) -> list[tuple[str, list[str]]]:
        """The keys of nodes that one engine stands behind, by its origin."""
        found: dict[str, list[str]] = {}
        for node in self.by_key.values():
            found.setdefault(node.origin, []).append(node.key)
        return list(found.items())

    def ready(self, role: Role, model: str = "") -> tuple[Node, ...]:
        """Nodes that may get a turn for ``model``; a node whose models are not known serves any.

        Nodes that said they are busy are left out while another can have the turn. Where none is ready, the
        last resort are nodes whose probes are good and whose breaker is open: a request that fails on every
        node may open all breakers, and is not to take the pool away from all others.
        """
        known = self._ready.get((role, model))
        if known is not None:
            return known
        ready: list[Node] = []
        busy: list[Node] = []
        last_resort: list[Node] = []
        for node in self.by_key.values():
            if node.role is not role:
                continue
            models = node.engine.models
            if model and models and model not in models:
                continue
            if node.state is State.READY:
                (ready if node.busy_until_s is None else busy).append(node)
            elif node.serves:
                last_resort.append(node)
        found = tuple(ready or busy or last_resort)
        if len(self._ready) < _MAX_KNOWN:
            self._ready[role, model] = found
        return found

    def readable(self, role: Role) -> tuple[Node, ...]:
        """Nodes that what they hold may be read from, whether or not they may get new turns.

        A node that drains, is busy or has an open breaker still has its KV, and answers its peers.
        """
        return tuple(
            [
                node
                for node in self.by_key.values()
                if node.role is role and (node.reachable or node.state is State.READY)
            ]
        )

    def with_node(self, node: Node) -> "Pool":
        """The same pool with one node replaced, or added."""
        return Pool(MappingProxyType({**self.by_key, node.key: node}))

    def without(self, key: str) -> "Pool":
        """The same pool without one node; the same if it has no such node."""
        return Pool.of(node for node in self.by_key.values() if node.key != key)
