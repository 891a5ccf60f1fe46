"""The prefill leg: P computes or reads the prompt, and says where D finds its KV.

Only one thing matters in P's answer: that it ended sanely, with params. Its single sampled token is thrown
away, because the decode leg's prompt has to be the identical one.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import NamedTuple

from router.engines import nixl
from router.engines.upstream import Answer, Call, NeverSent, UpstreamError
from router.fleet.leg import Leg
from router.fleet.load import PRIOR_LEG_TOKENS, PrefillLeg
from router.fleet.node import Node
from router.telemetry.facts import LegFault, Outcome, PromptMismatch
from router.turn import reading, tap
from router.turn.context import Context
from router.turn.custody import Custody
from router.turn.digest import chain
from router.turn.fault import Faulty, fault_of
from router.turn.legs import engine_headers, prefill_body
from router.turn.plan import Kind, Plan, Verify
from router.turn.record import Record
from router.turn.refusal import Refused
from router.turn.request import Request
from router.turn.reuse import Reuse
from router.turn.riding import Ride
from router.turn.waiting import WhileExpected
from router.values import value

_LIFT_IDS = tap.TapSettings(lift_token_ids=True)


@value
class Prefilled:
    """What the prefill leg left for the decode leg."""

    params: bytes | None
    """P's, as they came; None where P gave none, and D then computes the prompt itself."""
    prompt_ids: array[int] | None
    reused_tokens: int | None
    verified_tokens: int | None
    salt: str | None
    prompt_tokens: int | None = None
    """As P counts them."""
    timing: PrefillLeg | None = None


class Use(NamedTuple):
    """What became of a handle, as ``Custody.tell`` takes it."""

    outcome: Outcome
    tokens: int
    detail: str


class PrefillFailed(Faulty):
    """P was reached and did not do its part. ``cause`` is the error of ours, or None for P's own answer."""

    def __init__(
        self, message: str, answer: Answer | None = None, cause: UpstreamError | None = None
    ) -> None:
        if cause is not None:
            fault = fault_of(cause)
        else:
            fault = LegFault.NONSENSE if answer is None else LegFault.STATUS
        super().__init__(message, fault)
        self.answer, self.cause = answer, cause


class PromptDiffers(Faulty):
    """P did not prove, or read otherwise, the tokens that its handle was cut to: its KV may be wrong."""

    def __init__(self, message: str) -> None:
        super().__init__(message, LegFault.PROMPT_DIFFERS)


def wants_prompt_ids(context: Context, request: Request, plan: Plan) -> bool:
    """Whether P is asked for the prompt's ids: to compare them now, or to know what D will hold."""
    if plan.verify is Verify.ROUTER:
        return True
    return may_leave_handle(context, request, plan) and not engine_verified(plan)


def engine_verified(plan: Plan) -> bool:
    """Whether this pair of engines stamps and verifies by itself, so that nobody else needs the tokens."""
    return (
        plan.prefill is not None
        and plan.prefill.engine.verifies is True
        and plan.decode.engine.stamps is True
    )


def asks_handle(plan: Plan) -> bool:
    """Whether a turn that stays on D asks for a handle: D's plugin gives one, a stock engine does not."""
    return plan.kind is Kind.STAY and plan.decode.engine.stamps is True


def may_leave_handle(context: Context, request: Request, plan: Plan) -> bool:
    """Whether this turn can leave a handle that the router itself would have to verify."""
    if context.settings.verify not in ("auto", Verify.ROUTER):
        return False
    return not (request.stream and plan.decode.engine.stream_handle is False)


async def prefill(
    context: Context,
    record: Record,
    plan: Plan,
    reuse: Reuse,
    custody: Custody,
    *,
    salt: str | None,
    meanwhile: Callable[[], None] | None = None,
) -> Prefilled:
    """Run one prefill leg; ``meanwhile`` as in its ``Call``.

    Raises NeverSent (nothing was sent, the handle is still in custody), Refused (P's 4xx), PrefillFailed,
    and PromptDiffers. After any but the first the handle, if one was sent, is used up.
    """
    request, node, settings = record.request, plan.prefill, context.settings
    if node is None:
        raise ValueError("a plan without a prefill node has no prefill leg")
    body = prefill_body(
        request, reuse.params, want_token_ids=wants_prompt_ids(context, request, plan), salt=salt
    )
    leg_id = record.leg_id("p")
    span = record.span("prefill", node.key, leg_id)
    headers = engine_headers(
        request.headers,
        leg_id=leg_id,
        api_key=settings.api_key(),
        rank=node.rank,
        traceparent=span.traceparent,
    )
    overdue_s = settings.pull_s if reuse.tokens else settings.prefill_s
    call = Call("POST", request.target, headers, body, settings.limits(overdue_s), meanwhile)
    if reuse.carries_handle:
        custody.sent()
    if reuse.tokens and plan.verify is Verify.ENGINE:
        context.doubts.unconfirmed(node.origin)
    try:
        queued = plan.estimate.compute_tokens if plan.estimate is not None else PRIOR_LEG_TOKENS
        with span, context.fleet.leg(node.key, with_handle=reuse.carries_handle) as leg:
            with (
                context.load.prefilling(node.key, queued, context.now) as timing,
                Ride(context, reuse.along) as ride,
                WhileExpected(leg),
            ):
                answer = await context.upstream.send(node.origin, call)
                span.answered(answer.status)
                leg.answered(answer.status, answer.headers)
                ride.answered(answer.status)
            return _judged(context, record, plan, reuse, leg, answer=answer, timing=timing, salt=salt)
    except NeverSent:
        if reuse.carries_handle:
            custody.returned()
        raise
    except UpstreamError as error:
        raise PrefillFailed(str(error), cause=error) from error


def _judged(
    context: Context,
    record: Record,
    plan: Plan,
    reuse: Reuse,
    leg: Leg,
    *,
    answer: Answer,
    timing: PrefillLeg,
    salt: str | None,
) -> Prefilled:
    """What P's answer comes to. Raises Refused, PrefillFailed and PromptDiffers."""
    node = plan.prefill
    assert node is not None  # noqa: S101 - the leg went to it
    if 400 <= answer.status < 500:
        raise Refused("prefill", node.key, answer)
    if answer.status != 200:
        raise PrefillFailed(f"status {answer.status}", answer=answer)
    if reuse.carries_handle:
        context.releases.prove(node.key, context.fleet.process(node.key))
    try:
        return _read(
            context, record.request.model, node, plan, reuse, answer=answer, salt=salt, timing=timing
        )
    except PrefillFailed as failed:
        leg.failed(str(failed))  # a status of 200 is no sign of health where no answer comes with it
        raise


def _read(
    context: Context,
    model: str,
    node: Node,
    plan: Plan,
    reuse: Reuse,
    *,
    answer: Answer,
    salt: str | None,
    timing: PrefillLeg,
) -> Prefilled:
    try:
        lifted = tap.read(answer.body, _LIFT_IDS)
    except ValueError as error:
        raise PrefillFailed(f"an answer that is no JSON object: {error}") from None
    if lifted.error is not None or lifted.unreadable:
        raise PrefillFailed("an answer that is no completion")
    if lifted.unsound_finish is not None:
        raise PrefillFailed(f"finish reason {lifted.unsound_finish}")
    params, sent = None, lifted.params
    if lifted.params is None:
        context.fleet.learn(node.key, prefill_params=False)
    else:
        try:
            params = nixl.read(lifted.params)
        except nixl.NotParams as error:
            raise PrefillFailed(str(error)) from None
        context.fleet.learn(
            node.key,
            engine_id=params.engine_id or None,
            prefill_params=True,
            push_mode=params.push_mode,
            verifies=params.verified_tokens is not None,
        )
        if context.settings.rewrite_remote_host:
            sent = nixl.reachable(lifted.params, origin=node.origin)
    verifies = params is not None and params.verified_tokens is not None
    stopped = params is not None and node.engine.verifies is True and not verifies
    if stopped or not context.doubts.confirm(node.origin, verifies=verifies):
        # Another process, or the same without its plugin: it may have read a handle that nobody verified.
        raise PromptDiffers(f"{node.key} does not verify handles any more")
    if plan.verify is Verify.ROUTER:
        _compare(context, model, node, reuse, lifted.prompt_token_ids)
    return Prefilled(
        params=sent,
        prompt_ids=lifted.prompt_token_ids,
        reused_tokens=params.reused_tokens if params is not None else None,
        verified_tokens=params.verified_tokens if params is not None else None,
        salt=salt,
        prompt_tokens=_prompt_tokens(lifted),
        timing=timing,
    )


def _prompt_tokens(answer: reading.Answer) -> int | None:
    if answer.prompt_token_ids is not None:
        return len(answer.prompt_token_ids)
    return answer.usage.prompt_tokens if answer.usage is not None else None


def _compare(context: Context, model: str, node: Node, reuse: Reuse, prompt_ids: array[int] | None) -> None:
    """Raise PromptDiffers if P may have read KV that is not its prompt's."""
    if not reuse.tokens or reuse.expected is None:
        return
    read = chain(prompt_ids) if prompt_ids is not None else None
    if read == reuse.expected:
        return
    context.doubts.mistrust(model, context.now())
    context.facts.publish(PromptMismatch(model, node.key, reuse.tokens))
    if read is None or not read.agrees(reuse.expected, reuse.tokens):
        raise PromptDiffers(f"{node.key} read another prompt than was verified")


def use_of(plan: Plan, reuse: Reuse, prefilled: Prefilled) -> Use | None:
    """What became of the handle that a prefill leg carried; None where it carried none."""
    handle = plan.handle
    if handle is None:
        return Use(Outcome.RELEASED, reuse.released_tokens, plan.reason) if reuse.carries_handle else None
    if plan.verify is Verify.ENGINE:
        verified = prefilled.verified_tokens or 0
        if not verified:
            return Use(Outcome.DIVERGED, handle.tokens, plan.verify)
        return Use(Outcome.USED if verified >= handle.tokens else Outcome.CUT, verified, plan.verify)
    return Use(Outcome.USED if reuse.whole else Outcome.CUT, reuse.tokens, plan.verify)
