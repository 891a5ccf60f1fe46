"""What a request would do now, and every other way it could go: told without running anything.

The ledger has no other way to be asked than ``find``, which takes the branch's handle. It goes back at once,
before anything else is awaited: a turn that comes in between finds none, and goes cold.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from router.fleet.fit import Line
from router.fleet.node import Node, Role
from router.ledger.store import Found
from router.turn.context import Context
from router.turn.custody import Custody
from router.turn.members import InvalidRequest
from router.turn.plan import Situation
from router.turn.request import Endpoint, Request, read_request
from router.turn.situate import Known, look_up, situate
from router.turn.weigh import choose, sizes_of, weigh

TenantOf = Callable[[Sequence[tuple[str, str]]], bytes | None]
"""The tenant by a request's headers, names in lower case; see ``router.http.identity``."""

ENDPOINTS = {"/v1/chat/completions": Endpoint.CHAT, "/v1/completions": Endpoint.COMPLETIONS}
"""What is split; any other path is one node's."""


class Asked(msgspec.Struct, forbid_unknown_fields=True):
    """The body of ``POST /admin/explain``: a client's request as it would come."""

    body: msgspec.Raw
    path: str = "/v1/chat/completions"
    headers: dict[str, str] = {}
    """Those that count: the credential or identity header, a session id."""


async def explain_asked(context: Context, document: bytes, tenant_of: TenantOf) -> dict[str, Any]:
    """``explain`` for the body of an admin request. Raises InvalidRequest for one that cannot be read."""
    try:
        asked = msgspec.json.decode(document, type=Asked)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"not a request to explain: {error}") from None
    headers = tuple((name.lower(), value) for name, value in asked.headers.items())
    endpoint = ENDPOINTS.get(asked.path, Endpoint.OTHER)
    request = read_request(endpoint, asked.path, headers, bytes(asked.body), turn_id="explained")
    return await explain(context, request, tenant_of(headers))


async def explain(context: Context, request: Request, tenant: bytes | None) -> dict[str, Any]:
    """What ``request`` would do now, as a JSON object: nothing is sent, and nothing is used up."""
    known = await look_up(context, request, tenant)
    # What does not go back is a cold turn later, and no reason to tell nothing now.
    await Custody(known.found, context.ledger, context.facts, context.releases).close()
    situation = situate(context, request, known)
    plan, sizes = choose(situation), sizes_of(situation)
    return {
        "endpoint": request.endpoint,
        "model": request.model,
        "conversation": request.conversation,
        "verify": situation.mode,
        "policy": situation.policy,
        "found": _found(known, situation),
        "tokens": {
            "prompt": round(sizes.prompt),
            "append": round(sizes.append),
            "held_by_prefill": round(sizes.prefill_held),
            "held_by_decode": round(sizes.decode_held),
            "readable": round(sizes.readable),
        },
        "plan": None
        if plan is None
        else {
            "kind": plan.kind,
            "reason": plan.reason,
            "prefill": plan.prefill.key if plan.prefill is not None else None,
            "decode": plan.decode.key,
            "verify": plan.verify,
            "estimate_s": _seconds(plan.estimate.seconds) if plan.estimate is not None else None,
        },
        "alternatives": [
            {
                "kind": one.kind,
                "reason": one.reason,
                "prefill": one.prefill,
                "decode": one.decode,
                "estimate_s": _seconds(one.estimate_s),
                "price_s": _seconds(one.price_s),
                "why_not": one.why_not,
            }
            for one in weigh(situation)
        ],
        "nodes": [_node(node, situation) for node in context.fleet.snapshot.nodes],
    }


def _found(known: Known, situation: Situation) -> dict[str, Any] | None:
    found: Found | None = known.found
    if found is None:
        return {"cold_reason": known.cold_reason} if known.cold_reason else None
    handle, trace = found.handle, found.trace
    return {
        "relation": found.relation,
        "depth": found.depth,
        "boundaries": len(known.lineage.keys),
        "turns": found.turns,
        "computed_by": trace.prefill,
        "answered_by": trace.decode,
        "prompt_tokens": trace.prompt_tokens,
        "handle": None
        if handle is None
        else {
            "decode": handle.decode,
            "tokens": handle.tokens,
            "stamped": handle.stamped,
            "ends_in_s": _seconds(handle.deadline_s - situation.now_s),
        },
        "absence": found.absence,
    }


def _node(node: Node, situation: Situation) -> dict[str, Any]:
    """What was measured of a node, and whether this turn may go to it."""
    told: dict[str, Any] = {"node": node.key, "role": node.role, "state": node.state}
    if node.role is Role.PREFILL:
        load = situation.loads.prefill(node)
        return told | {
            "may_serve": node.key in _keys(situation.prefills),
            "queue_s": _seconds(load.queue_s),
            "queue_tokens": round(load.queue_tokens),
            "compute": _line(load.compute),
            "read": _line(load.move),
            "kept_share": round(load.kept_share, 3),
            "measured": load.is_measured,
        }
    decode = situation.loads.decode(node)
    return told | {
        "may_serve": node.key in _keys(situation.decodes),
        "legs": decode.legs,
        "slowdown": round(decode.slowdown, 3),
        "kv_usage": node.engine.kv_usage,
        "deliver": _line(decode.deliver),
        "compute": _line(decode.compute),
        "kept_share": round(decode.kept_share, 3),
    }


def _keys(nodes: Sequence[Node]) -> frozenset[str]:
    return frozenset(node.key for node in nodes)


def _line(line: Line) -> Mapping[str, float]:
    return {"fixed_ms": round(line.fixed_s * 1e3, 3), "ms_per_1000_tokens": round(line.token_s * 1e6, 3)}


def _seconds(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
