"""From a handle that was found to what the prefill leg carries: verify, cut, release, or nothing."""

from __future__ import annotations

from array import array

from router.engines import nixl
from router.engines.upstream import Call, UpstreamError
from router.fleet.node import Node
from router.ledger.store import Handle
from router.turn import render
from router.turn.context import Context
from router.turn.digest import Digests, chain
from router.turn.handle import Sendable, Uncut, fit
from router.turn.legs import engine_headers
from router.turn.plan import Plan, Reason, Situation, Verify, proof_limit
from router.turn.record import Record
from router.turn.release import Due
from router.values import value

_NO_RENDER_STATUS = frozenset({403, 404, 405, 501})
"""What an engine answers that has no such route. Not 401: that speaks of one caller, not of the engine."""
_OK = 200


@value
class Reuse:
    """What goes into the prefill leg. ``tokens`` is how many P can read with ``params``."""

    params: bytes = nixl.COLD_PARAMS
    tokens: int = 0
    whole: bool = False
    expected: Digests | None = None
    """The prompt as it was rendered for the comparison; P has to have read the same."""
    released_tokens: int = 0
    """Of a handle that only rides along to be freed: how many tokens D held for it."""
    along: Due | None = None
    """Another conversation's handle that only rides along."""

    @property
    def carries_handle(self) -> bool:
        """Whether ``params`` are a handle, be it only to be freed."""
        return self.params is not nixl.COLD_PARAMS


async def prepare(context: Context, record: Record, situation: Situation, plan: Plan) -> Reuse | str:
    """What P is given for ``plan``'s handle, or the reason why it gets nothing of it.

    In ``engine`` mode P verifies by itself and gets the handle as it is; in ``router`` mode the prompt is
    rendered on P and compared here.
    """
    handle, node = plan.handle, plan.prefill
    if handle is None or node is None:
        return Reuse()
    if plan.verify is Verify.ROUTER:
        return await _verified(context, record, situation, handle, node)
    return Reuse(handle.params, handle.tokens, whole=True)


async def _verified(
    context: Context, record: Record, situation: Situation, handle: Handle, node: Node
) -> Reuse | str:
    held = handle.held
    ids = await _prompt_ids(context, record, situation, node)
    if ids is None or held is None:
        return Reason.UNVERIFIABLE
    fitted = fit(
        handle,
        proven_tokens=min(held.common(ids), proof_limit(situation, handle)),
        prompt_tokens=len(ids),
        prefill_block=node.engine.block_size,
        decode_block=_block_size(situation, handle),
        threshold_tokens=context.settings.threshold_tokens,
    )
    if isinstance(fitted, Sendable):
        return Reuse(fitted.params, fitted.tokens, fitted.whole, chain(ids))
    return Uncut(fitted)


def _block_size(situation: Situation, handle: Handle) -> int | None:
    holder = situation.holder(handle)
    return None if holder is None else holder.engine.block_size


async def _prompt_ids(
    context: Context, record: Record, situation: Situation, node: Node
) -> array[int] | None:
    """The request's token ids as P would read them; None where they cannot be had."""
    request = situation.request
    ids = render.own_ids(request)
    if ids is not None:
        return ids
    if node.engine.render is not False:
        status, answer = await _ask(context, record, node, render.by_render(request))
        if status == _OK:
            context.fleet.learn(node.key, render=True)
            return _ids(answer)
        if status not in _NO_RENDER_STATUS:
            return None  # P refuses the request, or is not there: the prefill leg will tell
        context.fleet.learn(node.key, render=False)
    ask = render.by_tokenize(request, media=situation.media_depth > 0)
    if ask is None:
        return None
    status, answer = await _ask(context, record, node, ask)
    return _ids(answer) if status == _OK else None


def _ids(answer: bytes) -> array[int] | None:
    try:
        return render.ids_of(answer)
    except render.Unrendered:
        return None


async def _ask(context: Context, record: Record, node: Node, ask: render.Render) -> tuple[int, bytes]:
    settings = context.settings
    leg_id = record.leg_id("r")
    span = record.span("render", node.key, leg_id)
    headers = engine_headers(
        record.request.headers, leg_id=leg_id, api_key=settings.api_key(), traceparent=span.traceparent
    )
    call = Call("POST", ask.path, headers, ask.body, settings.limits(settings.verify_s))
    try:
        with span:
            answer = await context.upstream.send(node.origin, call)
            span.answered(answer.status)
    except UpstreamError:
        return 0, b""
    return answer.status, answer.body


def release_along(handle: Handle) -> Reuse:
    """Send a handle that is of no use along with a cold leg, so that D frees its blocks."""
    return Reuse(nixl.released(handle.params), released_tokens=handle.tokens)


def take_along(due: Due) -> Reuse:
    """Send another conversation's handle along with a cold leg that has none of its own."""
    return Reuse(nixl.released(due.handle.params), along=due)
