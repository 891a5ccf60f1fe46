"""Policies for people who want less than a plan: which node serves, by a simple rule. Pure.

All of them read what a handle offers; they differ in which nodes a turn goes to.
"""

from bisect import bisect_right
from collections.abc import Sequence
from enum import StrEnum
from itertools import accumulate
from typing import Final

from router.fleet.node import Node

_EVEN: Final = 0.6180339887498949
"""Multiples of the golden section, less their whole part, fall evenly between 0 and 1."""


class Policy(StrEnum):
    PLANNED = "planned"
    """Whatever is estimated to be fastest."""
    ROUND_ROBIN = "round_robin"
    LEAST_LOAD = "least_load"
    """The fewest open legs."""
    STICKY = "sticky"
    """The node that served the last turn, as long as it is there; else the fewest open legs."""


def pick(policy: str, nodes: Sequence[Node], *, last: str | None, turn: int) -> Node | None:
    """The node of a role for a turn. ``last`` served the branch's last turn; ``turn`` counts up.

    None where there are no nodes.
    """
    if not nodes:
        return None
    at = turn_of(nodes, turn)
    if policy == Policy.ROUND_ROBIN:
        return nodes[at]
    if policy == Policy.STICKY:
        stuck = next((node for node in nodes if node.key == last), None)
        if stuck is not None:
            return stuck
    return min((*nodes[at:], *nodes[:at]), key=lambda node: node.in_flight / node.weight)


def turn_of(nodes: Sequence[Node], turn: int) -> int:
    """Whose turn it is, as an index: each node's share of turns is that of its weight, evenly spread."""
    if len(nodes) == 1:
        return 0
    weights = [node.weight for node in nodes]
    if min(weights) == max(weights):
        return turn % len(nodes)
    ends = list(accumulate(weights))
    return min(bisect_right(ends, turn * _EVEN % 1.0 * ends[-1]), len(nodes) - 1)
