"""P's decision about a handle, before anything is read. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from boomerang_vllm import clock, cut
from boomerang_vllm.digest import STAMP_FIELD, NotAStamp, Stamp, from_wire

BLOCK_FIELD = "block_size"
"""In the stamp: D's tokens per block."""


@dataclass(frozen=True)
class Rules:
    """What a prefill node allows."""

    can_read: bool
    """Whether this P would ever begin a read. vLLM counts on one also where not, and waits for ever."""
    takes_unstamped: bool
    drops_expired: bool


@dataclass(frozen=True)
class Outcome:
    """What to do with the handle, and what to say of it."""

    verified_tokens: int
    edits: Mapping[str, Any]
    """Members to replace."""
    reason: str


def check(
    params: Mapping[str, Any],
    *,
    prompt_tokens: int,
    proven: Callable[[Stamp, Mapping[str, Any]], int],
    side: cut.Side,
    rules: Rules,
    now: clock.Clock,
) -> Outcome:
    """Decide. ``proven`` says how many leading tokens of the prompt are those that a stamp speaks of."""
    try:
        held = cut.claim(params)
    except cut.Malformed as error:
        return Outcome(0, cut.nothing(None), f"malformed: {error}")
    if not rules.can_read:
        return Outcome(0, cut.nothing(held), "this node cannot read from a decode node")
    if held.is_empty:
        return Outcome(0, {}, "nothing to read")
    wire = params.get(STAMP_FIELD)
    if wire is None:
        if rules.takes_unstamped:
            return Outcome(0, {}, "no stamp, taken as it is")
        return Outcome(0, cut.nothing(held), "no stamp, refused")
    try:
        stamp = from_wire(wire)
    except NotAStamp as error:
        return Outcome(0, cut.nothing(held), f"broken stamp: {error}")
    if rules.drops_expired and clock.is_over(params, wire, now):
        # An empty list: D is told nothing, as it has freed the blocks by itself or is about to.
        return Outcome(0, {"remote_num_tokens": 0, "remote_block_ids": []}, "expired")
    block = wire.get(BLOCK_FIELD)
    tokens = cut.shorten(
        held,
        side,
        proven_tokens=proven(stamp, wire),
        prompt_tokens=prompt_tokens,
        remote_block_tokens=block if type(block) is int else None,
    )
    reason = "whole" if tokens == held.tokens else "cut" if tokens else "another prompt"
    return Outcome(tokens, cut.members(held, side, tokens), reason)
