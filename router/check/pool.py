"""Checks a whole pool: probes its nodes, then plays each pair, one after another."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from router.check.exchange import Engines, authorization
from router.check.observed import Assumed, PairSeen, PoolSeen
from router.check.pair import play
from router.engines.upstream import Limits, Upstream
from router.fleet.node import Node, Role, State
from router.fleet.pool import node_of
from router.fleet.probe import Prober

CONNECT_S = 10.0
_MAX_METRICS_BYTES = 8_388_608


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be checked. ``model`` is empty for the first that both nodes of a pair serve."""

    prefill: Sequence[str]
    decode: Sequence[str]
    model: str = ""
    api_key: str | None = None
    timeout_s: float = 30.0
    assumed: Assumed = field(default_factory=Assumed)


async def look(upstream: Upstream, asked: Asked, *, tell: Callable[[str], None] | None = None) -> PoolSeen:
    """Look at every node and pair. ``tell`` hears what is being done. Raises only CancelledError."""
    limit_s = asked.timeout_s
    limits = Limits(min(CONNECT_S, limit_s), limit_s, limit_s, _MAX_METRICS_BYTES)
    prober = Prober(limits=limits, probe_s=2 * limit_s, headers=authorization(asked.api_key))
    named = [node_of(origin, Role.PREFILL) for origin in asked.prefill]
    named += [node_of(origin, Role.DECODE) for origin in asked.decode]
    nodes = await asyncio.gather(*(_probed(prober, upstream, node) for node in named))
    engines = Engines(
        upstream,
        api_key=asked.api_key,
        timeout_s=asked.timeout_s,
        connect_s=min(CONNECT_S, asked.timeout_s),
        now=time.monotonic,
    )
    pairs = []
    for prefill in (node for node in nodes if node.role is Role.PREFILL):
        for decode in (node for node in nodes if node.role is Role.DECODE):
            seen = _unplayable(prefill, decode, asked.model)
            if not seen.stopped:
                if tell is not None:
                    tell(f"checking {seen.subject}")
                seen = await play(engines, prefill, decode, model=seen.model, assumed=asked.assumed)
            pairs.append(seen)
    return PoolSeen(tuple(nodes), tuple(pairs))


async def _probed(prober: Prober, upstream: Upstream, node: Node) -> Node:
    probed = await prober(upstream, node)
    return replace(node, state=probed.state, reason=probed.reason, engine=probed.seen)


def _unplayable(prefill: Node, decode: Node, model: str) -> PairSeen:
    """The pair before its turns: with a model, or with the reason why there are none."""
    away = [node.key for node in (prefill, decode) if node.state is not State.READY]
    if away:
        return PairSeen(prefill, decode, stopped=f"{' and '.join(away)} cannot be reached")
    ours, theirs = prefill.engine.models, decode.engine.models
    if model:
        lacking = [
            node.key for node in (prefill, decode) if node.engine.models and model not in node.engine.models
        ]
        if lacking:
            return PairSeen(prefill, decode, stopped=f"{' and '.join(lacking)} does not serve {model}")
        return PairSeen(prefill, decode, model)
    common = next((name for name in ours if name in theirs), "")
    if not common:
        return PairSeen(prefill, decode, stopped="no model is served by both nodes")
    return PairSeen(prefill, decode, common)
