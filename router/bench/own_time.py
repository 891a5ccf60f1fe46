"""The chain's own time: what the router, sockets and HTTP take beside the engines, and making room for it.

A published time to first token holds such a part; a profile made of it (``published.calibrated``) puts all of
it into the engines. So turns without transfer are played first, for calibration alone: what they take beyond
their engines' profile is the chain's own time on this machine. It is taken out of the part that the time to
first token without transfer gives, the delivery, and where that is too little, out of the prefill. Then turns
without transfer take what is published of them, and turns with transfer are predicted with the same profile.
Nothing with transfer on is measured or read for this.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from router.bench.published import Line, line, predicted_ms
from router.bench.replay import Request
from router.sim.profiles import Profile

SHORTEST_CONVERSATIONS: Final = 3
"""Calibrating conversations of the shortest prompts, where a millisecond counts most; of the longest, one."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Mean milliseconds to the first token at a mean prompt length, without transfer."""

    prompt_tokens: int
    first_token_ms: float
    engines_ms: float
    """What the engines simulated of it."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """What a machine's own time was, and the profile that makes room for it."""

    measured: tuple[Measured, ...]
    own: Line
    profile: Profile
    left: Line
    """What could not be taken out: on so slow a machine, turns without transfer take so much too long."""

    @property
    def times_ms(self) -> dict[str, float]:
        """The times of the profile that differ from what it was made of, by name."""
        names = ("prefill_ms", "prefill_ms_per_token", "delivery_ms", "delivery_ms_per_token")
        return {name: getattr(self.profile, name) for name in names}


def calibration(made: Profile, played_with: Profile, requests: Sequence[Request]) -> Calibration:
    """From turns that were played on engines with ``played_with``: room in the profile ``made``.

    Raises ValueError where a request was not without transfer, or where there is none.
    """
    if not requests or any(request.transfer != "off" for request in requests):
        raise ValueError("calibration takes turns without transfer, and nothing else")
    lengths = sorted({request.mean_prompt_tokens for request in requests})
    measured = tuple(
        _measured(played_with, length, [one for one in requests if one.mean_prompt_tokens == length])
        for length in lengths
    )
    own = _own(measured)
    delivery_ms, short_ms = _less(made.delivery_ms, own.fixed_ms)
    prefill_ms, left_ms = _less(made.prefill_ms, short_ms)
    delivery_each, short_each = _less(made.delivery_ms_per_token, own.per_token_ms)
    prefill_each, left_each = _less(made.prefill_ms_per_token, short_each)
    room = replace(
        made,
        prefill_ms=prefill_ms,
        prefill_ms_per_token=prefill_each,
        delivery_ms=delivery_ms,
        delivery_ms_per_token=delivery_each,
    )
    return Calibration(measured, own, room, Line(left_ms, left_each))


def _measured(profile: Profile, length: int, requests: Sequence[Request]) -> Measured:
    engines_ms = predicted_ms(profile, [request.prompt_tokens for request in requests], reuse=False)
    took_ms = [request.first_token_ms for request in requests]
    return Measured(length, statistics.mean(took_ms), statistics.mean(engines_ms))


def _own(measured: Sequence[Measured]) -> Line:
    """A line through both lengths; level where it would fall, as longer prompts are not less work."""
    over = [(one.prompt_tokens, max(one.first_token_ms - one.engines_ms, 0.0)) for one in measured]
    first, last = over[0], over[-1]
    if last[1] <= first[1]:
        return Line((first[1] + last[1]) / 2, 0.0)
    return line(first, last)


def _less(available: float, taken: float) -> tuple[float, float]:
    """What remains, never less than nothing, and how much of ``taken`` was not there."""
    return max(available - taken, 0.0), max(taken - available, 0.0)


def told(name: str, made: Profile, found: Calibration) -> str:
    """A model's calibration, for people."""
    fitted = found.profile
    lines = [
        f"{name}, calibrated on turns without transfer: the router, sockets and HTTP take "
        f"{_line(found.own)} of their own here.",
        f"So much less is simulated. P to D and first step: "
        f"{_line(Line(fitted.delivery_ms, fitted.delivery_ms_per_token))}; "
        f"prefill: {_line(Line(fitted.prefill_ms, fitted.prefill_ms_per_token))} "
        f"(instead of {_line(Line(made.delivery_ms, made.delivery_ms_per_token))}; "
        f"{_line(Line(made.prefill_ms, made.prefill_ms_per_token))}).",
    ]
    if found.left != Line(0.0, 0.0):
        lines.append(
            f"This machine is too slow: {_line(found.left)} of it could not be taken out, so every time is "
            "too long."
        )
    return "\n".join(lines)


def _line(told: Line) -> str:
    return f"{told.fixed_ms:.1f} ms + {told.per_token_ms * 1e3:.2f} µs a token"
