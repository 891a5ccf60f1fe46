"""The quick part of a check: what probes alone tell, for a router that starts. Pure, and sends nothing.

How a pair's handles are verified, and the hints, are those of ``/health``.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from router.check.findings import Finding, Verdict
from router.check.node_rules import judge_node, judge_probed_pair
from router.check.observed import Assumed, PairSeen
from router.fleet.node import Node
from router.http import probes
from router.http.schemas import Health


@dataclass(frozen=True, slots=True)
class PairMode:
    """How a pair's handles are verified, as far as it is known, and why not better."""

    prefill: str
    decode: str
    verify: str
    reason: str


@dataclass(frozen=True, slots=True)
class Quick:
    """What is known without a turn."""

    pairs: tuple[PairMode, ...]
    """At most ``probes.MAX_PAIRS``."""
    hints: tuple[str, ...]
    findings: tuple[Finding, ...]
    """What is not ok, of nodes and of the pairs."""


def quick(
    nodes: Iterable[Node],
    *,
    mode: str,
    assumed: Assumed,
    cooling: Collection[tuple[str, str]] = (),
) -> Quick:
    """What the probes of these nodes tell. ``mode`` is the setting ``verify``."""
    nodes = tuple(nodes)
    health = Health.model_validate_json(probes.health(nodes, mode=mode, draining=False, cooling=cooling).body)
    by_key = {node.key: node for node in nodes}
    found = [each for node in nodes for each in judge_node(node, assumed)]
    for pair in health.pairs:
        seen = PairSeen(by_key[pair.prefill], by_key[pair.decode])
        if seen.is_reachable:
            found += judge_probed_pair(seen.prefill, seen.decode, seen.subject)
    return Quick(
        pairs=tuple(PairMode(pair.prefill, pair.decode, pair.verify, pair.reason) for pair in health.pairs),
        hints=health.hints,
        findings=tuple(each for each in found if each.verdict in (Verdict.WARNING, Verdict.ERROR)),
    )
