"""Comparisons that both the turns and the rules make. Pure."""

from __future__ import annotations

from array import array

from router.check.observed import LegSeen, TurnSeen
from router.fleet.node import Engine


def sizes_differ(prefill: Engine, decode: Engine) -> bool:
    return None not in (prefill.block_size, decode.block_size) and prefill.block_size != decode.block_size


def has_fallen(before: float, after: float, share: float) -> bool:
    """Whether KV usage fell by what was released; half of it is enough, as usage is rounded and moves."""
    return after <= before - share / 2


def parting(turn: TurnSeen, reference: TurnSeen) -> int | None:
    """At which token of the answer two turns part; None where they agree, or one is not known.

    P's own token counts as the answer's first: D's caches cannot hide there what P has read.
    """
    own, expected = _first_token(turn.prefill), _first_token(reference.prefill)
    if None not in (own, expected) and own != expected:
        return 0
    got, wanted = answered(turn), answered(reference)
    if got is None or wanted is None or got == wanted:
        return None
    pairs = enumerate(zip(got, wanted, strict=False))
    return next((at for at, (one, other) in pairs if one != other), min(len(got), len(wanted)))


def _first_token(leg: LegSeen) -> int | None:
    ids = leg.answer.answer_token_ids if leg.answer is not None else None
    return ids[0] if ids else None


def answered(turn: TurnSeen) -> array[int] | None:
    decode = turn.decode
    return decode.answer.answer_token_ids if decode is not None and decode.answer is not None else None
