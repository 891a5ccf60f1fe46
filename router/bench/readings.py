"""What else the published figures can be read to say, and what they hold that no calibration of ours can see.

All of it is arithmetic on the published rows: no engine, no router, no sockets.
"""

import statistics
from dataclasses import dataclass

from router.bench.published import (
    ANSWER_TOKENS,
    QUESTION_TOKENS,
    REQUESTS,
    Model,
    calibrated,
    held_tokens,
    predicted_ms,
    prompt_lengths,
)

COMMON_TOKENS = 500
"""What the published tool puts before every conversation."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What transfer on is predicted to take at both ends of a model's sweep, under one reading."""

    name: str
    prompt_tokens: tuple[int, int]
    predicted_ms: tuple[float, float]
    published_ms: tuple[float, float]


def readings(model: Model) -> tuple[Reading, ...]:
    """The reading that is replayed, first, and two others."""
    ends = model.ends("ttft", "on")
    lengths = (ends[0].prompt_tokens, ends[1].prompt_tokens)
    published = (ends[0].milliseconds, ends[1].milliseconds)
    own = calibrated(model)
    every = [predicted_ms(own, prompt_lengths(length), reuse=True) for length in lengths]
    # The published script sets how much text a conversation begins with.
    beyond = COMMON_TOKENS + QUESTION_TOKENS + (QUESTION_TOKENS + ANSWER_TOKENS) * (REQUESTS - 1) // 2
    longer = calibrated(model, longer_tokens=beyond)
    begun = [predicted_ms(longer, prompt_lengths(length + beyond), reuse=True) for length in lengths]
    told = (
        ("all requests; lengths are those of the prompts (replayed)", every),
        ("only requests that reuse; lengths are those of the prompts", [times[1:] for times in every]),
        ("all requests; lengths are those of what conversations begin with", begun),
    )
    return tuple(
        Reading(name, lengths, (statistics.mean(times[0]), statistics.mean(times[1])), published)
        for name, times in told
    )


@dataclass(frozen=True, slots=True)
class Unseen:
    """What the published prefills with transfer take beyond their transfer and their new tokens."""

    at_ends_ms: tuple[float, float]
    us_per_token: float
    """By how much it grows per token of the prompt, in microseconds."""


def unseen(model: Model) -> Unseen:
    """The published prefill with transfer on, less what a reusing prefill is predicted to take."""
    profile, ends = calibrated(model), model.ends("prefill_total", "on")
    rest = []
    for end in ends:
        held = held_tokens(end.prompt_tokens)
        known_s = profile.transfer_s(held) + profile.prefill_s(end.prompt_tokens - held)
        rest.append(end.milliseconds - known_s * 1e3)
    grown_tokens = ends[1].prompt_tokens - ends[0].prompt_tokens
    return Unseen((rest[0], rest[1]), (rest[1] - rest[0]) * 1e3 / grown_tokens)
