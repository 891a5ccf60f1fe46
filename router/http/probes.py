"""What ``/live``, ``/ready`` and ``/health`` answer, as pure functions of the nodes' states.

``/live`` asks whether the process serves at all, and never about engines: restarting the router mends none of
them. ``/ready`` asks whether a turn can be served now. ``/health`` tells an operator why, or why not.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice, product
from typing import Literal

from router import __version__
from router.fleet.node import Node, Role
from router.http.schemas import Body, Health, Live, NodeHealth, PairHealth, Ready

MAX_PAIRS = 256
"""Pairs listed one by one; a fleet of 100 by 100 nodes has 10,000, and a probe has to stay small."""


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """An HTTP status and a JSON body."""

    status: int
    body: bytes


def live() -> ProbeAnswer:
    return _answer(200, Live(version=__version__))


def ready(nodes: Iterable[Node], *, draining: bool) -> ProbeAnswer:
    """200 where at least one node of each role may get turns and the router is not draining; else 503.

    Nodes whose breaker is open are a last resort, and still serve: see ``Pool.ready``.
    """
    reasons = _reasons(tuple(nodes), draining=draining)
    return _answer(
        503 if reasons else 200, Ready(status=_status(reasons, draining=draining), reasons=reasons)
    )


def health(
    nodes: Iterable[Node],
    *,
    mode: str,
    draining: bool,
    cooling: Collection[tuple[str, str]] = (),
) -> ProbeAnswer:
    """Status as of ``ready``; the body tells nodes, verification of each pair, and hints.

    ``mode`` is the setting ``verify``; ``cooling`` holds pairs (prefill, decode) that get no handles for now.
    """
    nodes = tuple(nodes)
    reasons = _reasons(nodes, draining=draining)
    prefill, decode = _of(nodes, Role.PREFILL), _of(nodes, Role.DECODE)
    counted: Counter[str] = Counter()
    listed: list[PairHealth] = []
    for p, d in product(prefill, decode):
        verify, reason = _verify(p, d, mode=mode, cooling=cooling)
        counted[verify] += 1
        if len(listed) < MAX_PAIRS:
            listed.append(PairHealth(prefill=p.key, decode=d.key, verify=verify, reason=reason))
    body = Health(
        status=_status(reasons, draining=draining),
        reasons=reasons,
        version=__version__,
        verify=dict(sorted(counted.items())),
        nodes=tuple(_node(node) for node in nodes),
        pairs=tuple(listed),
        hints=hints(nodes, mode=mode),
    )
    return _answer(503 if reasons else 200, body)


def hints(nodes: Iterable[Node], *, mode: str) -> tuple[str, ...]:
    """What the engines' own facts say about reuse that cannot work, or costs more than it should."""
    nodes = tuple(nodes)
    prefill, decode = _of(nodes, Role.PREFILL), _of(nodes, Role.DECODE)
    found: list[str] = []
    apart = [node.key for node in prefill if node.engine.prefill_params is False]
    if apart:
        found.append(
            f"{_names(apart)}: prefill answers carry no kv_transfer_params, so prompts are computed twice;"
            " start prefill and decode nodes with a KV connector"
        )
    if mode == "off":
        return tuple(found)
    pushing = [node.key for node in nodes if node.engine.push_mode]
    if pushing:
        found.append(
            f"{_names(pushing)}: the connector is in push mode, and its handles cannot be reused;"
            " start the engine with a pulling connector"
        )
    silent = [node.key for node in decode if node.engine.whole_handle is False]
    if silent:
        found.append(
            f"{_names(silent)}: answers carry no handle, so nothing comes back; turn bidirectional_kv_xfer on"
        )
    blind = [
        node.key
        for node in decode
        if node.engine.stream_handle is False and node.engine.whole_handle is not False
    ]
    if blind:
        found.append(
            f"{_names(blind)}: streamed answers carry no handle, yet their blocks stay pinned; upgrade to"
            " vLLM 0.33, install the plugin, or turn bidirectional_kv_xfer off"
        )
    sizes = {node.engine.block_size for node in (*prefill, *decode)} - {None}
    if len(sizes) > 1:
        found.append(
            "nodes differ in block size ("
            + ", ".join(str(size) for size in sorted(size for size in sizes if size))
            + "): a handle between them is used whole or not at all, never cut"
        )
    served = {
        role: {model for node in side for model in node.engine.models}
        for role, side in ((Role.PREFILL, prefill), (Role.DECODE, decode))
    }
    if served[Role.PREFILL] and served[Role.DECODE] and not served[Role.PREFILL] & served[Role.DECODE]:
        found.append("no model is served by both a prefill and a decode node: no turn can be split")
    return tuple(found)


def _of(nodes: Sequence[Node], role: Role) -> tuple[Node, ...]:
    return tuple(node for node in nodes if node.role is role)


def _reasons(nodes: Sequence[Node], *, draining: bool) -> tuple[str, ...]:
    reasons = ["the router is draining"] if draining else []
    for role in Role:
        side = _of(nodes, role)
        if not any(node.serves for node in side):
            states = Counter(node.state.value for node in side)
            told = ", ".join(f"{count} {state}" for state, count in sorted(states.items())) or "none known"
            why = next((f"; {node.key}: {node.reason}" for node in side if node.reason), "")
            reasons.append(f"no {role} node is ready ({told}{why})")
    return tuple(reasons)


def _status(reasons: Sequence[str], *, draining: bool) -> Literal["ready", "not_ready", "draining"]:
    if draining:
        return "draining"
    return "not_ready" if reasons else "ready"


def _verify(
    prefill: Node, decode: Node, *, mode: str, cooling: Collection[tuple[str, str]]
) -> tuple[str, str]:
    """How handles of a pair are verified, and why not better."""
    if mode == "off":
        return "off", "verify is off"
    if prefill.engine.push_mode or decode.engine.push_mode:
        return "off", "the connector is in push mode"
    if (prefill.key, decode.key) in cooling:
        return "off", "a pull failed; it is tried again in a while"
    if mode in ("router", "lineage"):
        return mode, "set by verify"
    if decode.engine.stamps and prefill.engine.verifies:
        return "engine", ""
    lacking = (
        "the decode node does not stamp" if not decode.engine.stamps else "the prefill node does not verify"
    )
    return ("off" if mode == "engine" else "router"), f"{lacking}, as far as answers have told"


def _node(node: Node) -> NodeHealth:
    engine = node.engine
    return NodeHealth(
        node=node.key,
        origin=node.origin,
        role=node.role.value,
        state=node.state.value,
        reason=node.reason,
        version=engine.version,
        models=engine.models,
        in_flight=node.in_flight,
        running=engine.running,
        waiting=engine.waiting,
        kv_usage=engine.kv_usage,
    )


def _names(keys: Sequence[str]) -> str:
    shown = ", ".join(islice(keys, 3))
    return shown if len(keys) <= 3 else f"{shown} and {len(keys) - 3} more"


def _answer(status: int, body: Body) -> ProbeAnswer:
    return ProbeAnswer(status, body.model_dump_json().encode())
