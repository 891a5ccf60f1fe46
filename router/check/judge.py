"""Observations in, findings out: every rule about every node and pair, and what only the pool shows. Pure."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from router.check.findings import Finding, Judged, error, finding, ok, skipped
from router.check.node_rules import NODE_RULES, PROBED_PAIR_RULES, judge_node, judge_probed_pair
from router.check.observed import Assumed, PairSeen, PoolSeen
from router.check.reuse_rules import REUSE_RULES
from router.check.turn_rules import TURN_RULES, base_id

POOL: Final = "pool"

PLAYED_RULES: Final[Mapping[str, Callable[[PairSeen, Assumed], Judged | None]]] = {
    **TURN_RULES,
    **REUSE_RULES,
}

CHECKS: Final = (*NODE_RULES, *PROBED_PAIR_RULES, *PLAYED_RULES, "engine_ids")
"""The names of all rows."""


def judge(seen: PoolSeen, assumed: Assumed) -> tuple[Finding, ...]:
    """All findings, in the order in which they are read: nodes, pairs, the pool."""
    found: list[Finding] = []
    for node in seen.nodes:
        found += judge_node(node, assumed)
    for pair in seen.pairs:
        found += judge_pair(pair, assumed)
    distinct = engine_ids(seen.pairs)
    if distinct is not None:
        found.append(finding("engine_ids", POOL, distinct))
    return tuple(found)


def judge_pair(seen: PairSeen, assumed: Assumed) -> list[Finding]:
    """Every rule about a pair. What was not reached is skipped, and says why."""
    found = judge_probed_pair(seen.prefill, seen.decode, seen.subject) if seen.is_reachable else []
    if seen.first is None:
        # One row for a pair that no turn was tried with: what stopped it has a row of its own.
        return [*found, finding("connector", seen.subject, skipped(seen.stopped))]
    for name, rule in PLAYED_RULES.items():
        judged = rule(seen, assumed)
        found.append(finding(name, seen.subject, judged or skipped(seen.stopped or "not looked at")))
    return found


def engine_ids(pairs: Iterable[PairSeen]) -> Judged | None:
    """Whether every engine of the pool has an id of its own; None where fewer than two told theirs."""
    origins: dict[str, set[str]] = defaultdict(set)
    for pair in pairs:
        if pair.first is None:
            continue
        told = ((pair.prefill.origin, pair.first.prefill.params), (pair.decode.origin, pair.handle))
        for origin, params in told:
            if params is not None and params.read.engine_id:
                origins[base_id(params.read.engine_id)].add(origin)
    if len({origin for each in origins.values() for origin in each}) < 2:
        return None
    shared = {name: sorted(each) for name, each in origins.items() if len(each) > 1}
    if not shared:
        return ok(f"{len(origins)} different ones")
    return error(
        "; ".join(f"{' and '.join(each)} call themselves {name}" for name, each in sorted(shared.items())),
        "give each engine its own engine_id, or none: one node's blocks are read as the other's",
    )
