"""What a turn's legs teach about how fast its nodes are: from a leg that ended to what ``Load`` is told."""

from router.fleet.load import Load
from router.turn.context import Context
from router.turn.plan import Kind, Plan, Situation, Verify
from router.turn.prefill import Prefilled


def learn_prefill(context: Context, situation: Situation, plan: Plan, prefilled: Prefilled) -> None:
    """What a prefill leg taught of P, and of how many bytes make a token."""
    load, node, estimate, timing = context.load, plan.prefill, plan.estimate, prefilled.timing
    prompt, reused = prefilled.prompt_tokens, prefilled.reused_tokens
    if node is None or estimate is None or timing is None or prompt is None:
        return
    if situation.sizes_bytes and not situation.media_depth:
        load.sized(
            situation.request.model,
            prompt_bytes=situation.sizes_bytes[-1],
            prompt_tokens=prompt,
            now_s=timing.ended_s,
        )
    if reused is None:
        return
    # Under a salt of ours nothing of its own cache is found.
    held = 0 if prefilled.salt is not None else int(estimate.held_tokens)
    moved = 0
    if plan.kind is Kind.COLD:
        load.kept(node, expected_tokens=held, cached_tokens=reused, now_s=timing.ended_s)
    else:
        moved = reused - min(held, reused)
        if moved < situation.threshold_tokens:
            moved = 0
    load.prefilled(timing, computed_tokens=prompt - reused, moved_tokens=moved)


def learn_verify(context: Context, plan: Plan, seconds: float) -> None:
    """How long the router took to compare a prompt."""
    if plan.verify is Verify.ROUTER and plan.estimate is not None:
        tokens = int(plan.estimate.prompt_tokens)
        context.load.verified(tokens=tokens, seconds=seconds, now_s=context.now())


def learn_first_byte(
    load: Load, plan: Plan, prefilled: Prefilled | None, *, seconds: float, legs: int, now_s: float
) -> None:
    """What the time to a decode leg's first byte taught of D, which had ``legs`` others open."""
    key, estimate = plan.decode.key, plan.estimate
    if estimate is None:
        return
    if plan.kind is Kind.STAY:
        load.stayed(
            key, computed_tokens=int(estimate.compute_tokens), seconds=seconds, legs=legs, now_s=now_s
        )
    elif prefilled is not None and prefilled.params is not None:
        unforeseen = (prefilled.prompt_tokens or estimate.prompt_tokens) - estimate.prompt_tokens
        tokens = max(int(estimate.deliver_tokens + unforeseen), 1)
        load.delivered(key, tokens=tokens, seconds=seconds, legs=legs, now_s=now_s)


def learn_stay(context: Context, plan: Plan, cached_tokens: int) -> None:
    """How much of a conversation D still had in its own cache, as it reports."""
    if plan.kind is Kind.STAY and plan.estimate is not None:
        expected = int(plan.estimate.held_tokens)
        context.load.kept(
            plan.decode, expected_tokens=expected, cached_tokens=cached_tokens, now_s=context.now()
        )
