"""What a plan is made of: the nodes that may serve, what the ledger found, what was measured."""

from collections.abc import Sequence

from router.fleet.node import Node, Role
from router.fleet.snapshot import Pool
from router.ledger.store import Found, LedgerUnavailable, Query, Relation
from router.telemetry.facts import LedgerFailed
from router.turn.admit import limits_nodes, with_room
from router.turn.context import Context
from router.turn.lineage import Lineage, lineage_of
from router.turn.plan import Reason, Situation, Verify
from router.turn.request import Request
from router.values import value


@value
class Known:
    """What is known of a request's history. ``cold_reason`` is set where nothing is to be reused, and why."""

    lineage: Lineage
    found: Found | None
    cold_reason: str
    remembers: bool
    """Whether the turn may use and leave behind anything."""


async def look_up(context: Context, request: Request, tenant: bytes | None) -> Known:
    """Find the request's branch, and take its handle: whoever calls has to use it or give it back."""
    lineage = lineage_of(request.endpoint, request.members, tenant or b"", context.prefixes)
    if not _remembers(context, request, tenant, lineage):
        return Known(lineage, None, Reason.NO_IDENTITY if tenant is None else "", remembers=False)
    query = Query(
        lineage.keys,
        lineage.sizes_bytes,
        lineage.own_depth,
        request.conversation,
        context.settings.take_share,
    )
    try:
        return Known(lineage, await context.ledger.find(query), "", remembers=True)
    except LedgerUnavailable as error:
        context.facts.publish(LedgerFailed("find", str(error), asked=error.asked))
        return Known(lineage, None, Reason.LEDGER_DOWN, remembers=True)


def learn_gap(context: Context, found: Found | None) -> None:
    """A conversation has gone on: how long it was silent tells what to expect of others."""
    if found is not None and found.relation is not Relation.FORK:
        now_s = context.now()
        context.gaps.went_on(found.trace.finish, now_s - found.trace.computed_at_s, now_s)


def _remembers(context: Context, request: Request, tenant: bytes | None, lineage: Lineage) -> bool:
    return (
        tenant is not None
        and request.unsplit is None
        and context.settings.verify != Verify.OFF
        and bool(lineage.keys)
    )


def may_serve(pool: Pool, role: Role, model: str) -> Sequence[Node]:
    """The nodes of a role that a turn for ``model`` may go to now.

    A model that no node serves goes to any: the engine says best that there is no such model, and one that
    was loaded since the last probe is served.
    """
    ready = pool.ready(role, model)
    if ready:
        return ready
    nodes = [node for node in pool.nodes if node.role is role]
    if any(not node.engine.models or model in node.engine.models for node in nodes):
        return ready
    return pool.ready(role)


def situate(context: Context, request: Request, known: Known) -> Situation:
    """The situation of a turn as it is now."""
    pool, model, now_s = context.fleet.snapshot, request.model, context.now()
    settings = context.settings
    prefills, decodes = may_serve(pool, Role.PREFILL, model), may_serve(pool, Role.DECODE, model)
    if limits_nodes(context):
        prefills, decodes = with_room(context.admission, prefills), with_room(context.admission, decodes)
    return Situation(
        request=request,
        media_depth=known.lineage.media_depth,
        shape=known.lineage.shape,
        sizes_bytes=known.lineage.sizes_bytes,
        prefills=prefills,
        decodes=decodes,
        readable=pool.readable(Role.DECODE),
        found=known.found,
        mode=settings.verify,
        cooling=context.doubts.cooling(now_s),
        mistrusted=context.doubts.mistrusts(model, now_s),
        cold_reason=known.cold_reason,
        loads=context.load.snapshot(pool.nodes, model, now_s),
        policy=settings.policy,
        turn=context.load.next_turn(),
        threshold_tokens=settings.threshold_tokens,
        stay_max_tokens=settings.stay_max_tokens,
        now_s=now_s,
    )
