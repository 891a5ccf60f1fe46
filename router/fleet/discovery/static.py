"""Nodes from flags and settings: known at the start, and never changed."""

from collections.abc import Sequence
from dataclasses import dataclass

from router.fleet.node import Node, Role, node_of


def static_nodes(prefill: Sequence[str], decode: Sequence[str]) -> tuple[Node, ...]:
    """The nodes of these addresses, ``ORIGIN[@RANK]``. Raises ValueError for one that is none."""
    return (
        *(node_of(address, Role.PREFILL) for address in prefill),
        *(node_of(address, Role.DECODE) for address in decode),
    )


@dataclass(frozen=True, slots=True)
class Addresses:
    """What settings say of where nodes are: addresses that stand, and names to look up again and again."""

    fixed: tuple[str, ...]
    names: tuple[str, ...]

    @classmethod
    def of(cls, addresses: Sequence[str]) -> "Addresses":
        names = tuple(address for address in addresses if address.startswith("dns://"))
        return cls(tuple(address for address in addresses if address not in names), names)
