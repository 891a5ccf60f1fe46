"""The published figures of KV transfer back to the prefill node, and what can be learned from half of them.

The figures are those of "Improve TTFT for Multi-Turn Agentic Workloads with Bi-Directional KV Transfer in
vLLM" (vLLM blog, 12 October 2026): one prefill and one decode node with eight H200 each over EFA, P's prefix
cache off. ``published.csv`` holds the end points that its text gives in numbers.

Profiles are made from the rows without transfer and from the transfer itself, each a line through its two
points (``calibrated``). The rows with transfer on are never read for that: they are what is predicted.
"""

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Final, Literal, cast

from router.sim.profiles import Profile

Quantity = Literal["ttft", "prefill_total", "kv_transfer"]
Transfer = Literal["off", "on"]

SOURCE: Final = (
    "vllm-project/vllm-project.github.io, "
    "_posts/2026-10-12-bidirectional-kvxfer-multiturn-agentic-workload.md"
)
REQUESTS: Final = 5
"""Requests of a conversation: "10-turn conversations", of which the tool counts questions and answers."""
QUESTION_TOKENS: Final = 150
ANSWER_TOKENS: Final = 300


@dataclass(frozen=True, slots=True)
class Point:
    """A published mean, in milliseconds, at a prompt length."""

    quantity: Quantity
    transfer: Transfer
    prompt_tokens: int
    milliseconds: float


@dataclass(frozen=True, slots=True)
class Model:
    """What is published of one model, and at which prompt lengths it is replayed."""

    name: str
    profile: str
    """The name of its profile among the simulated engines'."""
    lengths_tokens: tuple[int, ...]
    points: tuple[Point, ...]

    def ends(self, quantity: Quantity, transfer: Transfer) -> tuple[Point, Point]:
        """The published points of a quantity at the shortest and the longest prompt."""
        found = [point for point in self.points if (point.quantity, point.transfer) == (quantity, transfer)]
        first, last = sorted(found, key=lambda point: point.prompt_tokens)
        return first, last

    def published_ms(self, transfer: Transfer, prompt_tokens: int) -> float | None:
        """The published time to first token at a length; None where the source gives no number."""
        return next(
            (
                point.milliseconds
                for point in self.points
                if (point.quantity, point.transfer, point.prompt_tokens) == ("ttft", transfer, prompt_tokens)
            ),
            None,
        )


_LENGTHS: Final = {
    "Qwen3-32B": ("qwen3-32b", (2_000, 4_000, 8_000, 12_000, 16_000, 20_000, 24_000)),
    "GLM-5-FP8": ("glm-5-fp8", (2_000, 4_000, 8_000, 12_000, 16_000, 20_000)),
}
"""The sweep of the published script."""


def models() -> tuple[Model, ...]:
    """All that is published, in the order of the source."""
    text = files("router.bench").joinpath("published.csv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(text.splitlines()))
    return tuple(
        Model(name, profile, lengths, tuple(_point(row) for row in rows if row["model"] == name))
        for name, (profile, lengths) in _LENGTHS.items()
    )


def _point(row: dict[str, str]) -> Point:
    return Point(
        cast(Quantity, row["quantity"]),
        cast(Transfer, row["transfer"]),
        int(row["prompt_tokens"]),
        float(row["milliseconds"]),
    )


@dataclass(frozen=True, slots=True)
class Line:
    """Milliseconds over tokens."""

    fixed_ms: float
    per_token_ms: float

    def at(self, tokens: float) -> float:
        return self.fixed_ms + self.per_token_ms * tokens


def line(first: tuple[float, float], last: tuple[float, float]) -> Line:
    """The line through two points of (tokens, milliseconds).

    Where it would begin below zero, which no duration does, the line from zero through the far point.
    """
    per_token_ms = (last[1] - first[1]) / (last[0] - first[0])
    fixed_ms = first[1] - per_token_ms * first[0]
    return Line(fixed_ms, per_token_ms) if fixed_ms >= 0 else Line(0.0, last[1] / last[0])


def calibrated(model: Model, *, longer_tokens: int = 0) -> Profile:
    """A profile from what is published without transfer, and of the transfer itself.

    ``longer_tokens``: how much longer the prompts were than the length by which they are published.

    * prefill: the total prefill without transfer;
    * transfer from D to P: the published KV transfer;
    * delivery, from P to D and D's first step: what the time to first token without transfer has over the
      prefill.
    """
    prefill_ends = model.ends("prefill_total", "off")
    prefill = _through(prefill_ends, longer_tokens)
    transfer = _through(model.ends("kv_transfer", "on"), longer_tokens)
    over = [
        replace(first, milliseconds=first.milliseconds - total.milliseconds)
        for first, total in zip(model.ends("ttft", "off"), prefill_ends, strict=True)
    ]
    delivery = _through((over[0], over[1]), longer_tokens)
    return Profile(
        prefill_ms=prefill.fixed_ms,
        prefill_ms_per_token=prefill.per_token_ms,
        transfer_ms=transfer.fixed_ms,
        transfer_ms_per_token=transfer.per_token_ms,
        delivery_ms=delivery.fixed_ms,
        delivery_ms_per_token=delivery.per_token_ms,
    )


def _through(ends: tuple[Point, Point], longer_tokens: int) -> Line:
    first, last = ((point.prompt_tokens + longer_tokens, point.milliseconds) for point in ends)
    return line(first, last)


def prompt_lengths(mean_tokens: int, requests: int = REQUESTS) -> tuple[int, ...]:
    """The prompts of a conversation whose mean length is ``mean_tokens``, as it grows.

    Each request has a question and the answer before it more than the last one.
    """
    step = QUESTION_TOKENS + ANSWER_TOKENS
    first = mean_tokens - step * (requests - 1) // 2
    return tuple(first + step * number for number in range(requests))


def held_tokens(prompt_tokens: int) -> int:
    """What D holds of the turn before: its prompt and its answer but for the last token."""
    return prompt_tokens - QUESTION_TOKENS - 1


def predicted_ms(profile: Profile, prompts: Sequence[int], *, reuse: bool) -> tuple[float, ...]:
    """The time to first token of each request, by the profile's arithmetic alone: no router, no sockets."""
    times = []
    for number, prompt in enumerate(prompts):
        held = held_tokens(prompt) if reuse and number else 0
        moved_s = profile.transfer_s(held) if held else 0.0
        times.append(1e3 * (moved_s + profile.prefill_s(prompt - held) + profile.delivery_s(prompt)))
    return tuple(times)
