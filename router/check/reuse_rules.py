"""What the second turn tells: was the KV moved, and was it the right one. Pure."""

from collections.abc import Callable, Mapping
from typing import Final

from router.check.compare import has_fallen
from router.check.findings import Judged, error, ok, skipped, warning
from router.check.observed import Assumed, PairSeen
from router.check.turn_rules import BOTH_WAYS, failed_advice

EPSILON: Final = 0.125
"""Log-probabilities closer than this are one rounding apart: bfloat16 logits between 16 and 32 have steps of
an eighth. Computing a prompt in other pieces, as a pull does, rounds otherwise."""

_UNFIT: Final = {
    "block_size": "the block sizes of the two nodes differ, or are not known",
    "kv_groups": "the model has more than one group of KV layers, and only part of the handle is proven",
    "context_parallel": "decode context parallelism is on, and only part of the handle is proven",
    "block_count": "the handle's blocks do not fit its tokens",
    "too_short": "the first turn was shorter than the threshold",
}


def bidirectional_prefill(seen: PairSeen, _: Assumed) -> Judged | None:
    if seen.second is None:
        return None
    leg = seen.second.turn.prefill
    if leg.is_good:
        return ok("P answers a prefill leg that carries a handle")
    if not leg.timed_out:
        return skipped("the leg failed in another way; see reuse")
    waited = f"no answer within {leg.ended_s - leg.began_s:.0f} s"
    if seen.second.serves_others:
        return error(
            f"P hangs on a handle ({waited}) and serves others",
            f"start P with {BOTH_WAYS}, too; a slow engine needs a longer --timeout-s",
        )
    return error(f"P answers nothing any more ({waited})", failed_advice(leg))


def reuse(seen: PairSeen, _: Assumed) -> Judged | None:
    if seen.unfit:
        return error(
            f"the handle cannot be used: {_UNFIT.get(seen.unfit, seen.unfit)}",
            "start both nodes with the same model, --block-size and parallel layout",
        )
    if seen.second is None:
        return None
    leg, sent = seen.second.turn.prefill, seen.second.sent_tokens
    if leg.timed_out:
        return skipped("P hangs; see bidirectional_prefill")
    if not leg.is_good:
        return error(
            f"the prefill leg with the handle: {leg.fault}",
            "P cannot read from D: look at P's log for NIXL, and at the rows side_channel and versions_equal",
        )
    if leg.params is None or leg.params.read.reused_tokens is None:
        return warning(
            "P does not tell how many tokens it reused",
            "this connector has no remote_prefill_cached_tokens: upgrade P to see what reuse saves",
        )
    reused, verified = leg.params.read.reused_tokens, leg.params.read.verified_tokens
    text = f"{reused} of {seen.second.prompt_tokens} prompt tokens not computed again"
    if seen.second.by_engine:
        if not verified:
            return error(
                "P verified nothing of a handle that is right",
                "install the same version of the plugin on both nodes, and look at P's log",
            )
        if reused < verified or reused <= seen.second.local_tokens:
            return error(f"{text}, of {verified} verified", "P ignored the handle: look at its log")
        return ok(f"{text}, {verified} verified by P")
    if reused < sent and verified is not None:
        return error(
            f"{text}; the handle had {sent}, and no stamp",
            "P's plugin refuses handles without a stamp: install the plugin (boomerang-vllm) on D, too",
        )
    if reused < sent:
        return error(
            f"{text}; the handle had {sent}",
            "P ignored the handle: is kv_recompute_threshold on P larger than the router's"
            " reuse_threshold_tokens, or the handle incomplete?",
        )
    return ok(text)


def answer(seen: PairSeen, _: Assumed) -> Judged | None:
    if seen.second is None or seen.reference is None:
        return None
    turn, reference = seen.second.turn, seen.reference
    for leg in (turn.prefill, turn.decode, reference.prefill, reference.decode):
        if leg is None or not leg.is_good or leg.answer is None or not leg.answer.answer_token_ids:
            return skipped(
                "a leg brought no tokens to compare" + (f": {leg.fault}" if leg and leg.fault else "")
            )
    if seen.divergence is None:
        return ok("the same tokens as computed without reuse")
    at, gap = seen.divergence.at, seen.divergence.gap
    if not seen.divergence.reproducible:
        return warning(
            f"differs from token {at} on, but so do two answers without reuse",
            "the engines do not answer alike twice at temperature 0; look again with no other load on them",
        )
    if gap is not None and gap < EPSILON:
        return warning(
            f"differs from token {at} on, where two tokens are as likely (within {gap:.3f}): rounding",
            "run the check again; it is an error if it differs each time",
        )
    return error(
        f"WRONG: differs from token {at} on from what is computed without reuse",
        "do not reuse KV here (verify: off) until it is found out: compare weights, dtype, --kv-cache-dtype,"
        " parallel layout and versions of the two nodes",
    )


def release(seen: PairSeen, _: Assumed) -> Judged | None:
    found = seen.release
    if found is None:
        return None
    if seen.second is not None and seen.second.turn.prefill.timed_out:
        return warning(
            f"a P that hangs on handles frees none: {found.handles} stay on D",
            "nothing to do: D frees them at the end of its TTL",
        )
    if found.fault:
        return warning(f"a release leg failed: {found.fault}", "D keeps what it holds until its TTL is over")
    if found.before is None or found.after is None or found.pinned_share is None:
        return skipped("/metrics of D does not tell its KV usage")
    text = f"KV usage of D {_share(found.before)} -> {_share(found.after)} after {found.waited_s:.1f} s"
    if has_fallen(found.before, found.after, found.pinned_share):
        return ok(text)
    if found.is_busy:
        return skipped(f"{text}, but others use D: that proves nothing")
    return warning(
        f"{text}, while {_share(found.pinned_share)} were released",
        "P does not tell D: look at the side channel from P to D, and at P's bidirectional_kv_xfer; until"
        " then D keeps what is not reused for its whole TTL",
    )


def _share(of_one: float) -> str:
    """Three digits that count: a check holds a few blocks of thousands."""
    return f"{of_one * 100:.3g}%"


REUSE_RULES: Final[Mapping[str, Callable[[PairSeen, Assumed], Judged | None]]] = {
    "bidirectional_prefill": bidirectional_prefill,
    "reuse": reuse,
    "answer": answer,
    "release": release,
}
