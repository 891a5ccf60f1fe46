"""The replayed times beside the published ones: rows, a table, and a document for other programs."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from router.bench.own_time import Calibration
from router.bench.published import SOURCE, Model, Transfer
from router.bench.readings import readings, unseen
from router.bench.replay import Request


@dataclass(frozen=True, slots=True)
class Row:
    """One prompt length. Mean milliseconds to the first token; published ones where the source gives any."""

    prompt_tokens: int
    off_ms: float
    off_published_ms: float | None
    on_ms: float
    on_published_ms: float | None
    on_reusing_ms: float
    """Of the requests that had something to reuse: all but the first of each conversation."""
    off_later_ms: float
    """Without transfer, of the same requests."""
    reused_share: float
    """Of the prompt tokens of requests that had something to reuse."""

    @property
    def reduction(self) -> float:
        return self.off_ms / self.on_ms

    @property
    def reduction_reusing(self) -> float:
        return self.off_later_ms / self.on_reusing_ms

    @property
    def reduction_published(self) -> float | None:
        off, on = self.off_published_ms, self.on_published_ms
        return None if off is None or on is None else off / on


def rows(model: Model, requests: Sequence[Request]) -> tuple[Row, ...]:
    """A row for each length that was played."""
    lengths = sorted({request.mean_prompt_tokens for request in requests})
    return tuple(
        _row(model, length, [request for request in requests if request.mean_prompt_tokens == length])
        for length in lengths
    )


def _row(model: Model, length: int, requests: Sequence[Request]) -> Row:
    def side(transfer: Transfer) -> list[Request]:
        return [request for request in requests if request.transfer == transfer]

    off, on = side("off"), side("on")
    reusing = [request for request in on if request.number]
    return Row(
        prompt_tokens=length,
        off_ms=statistics.mean(request.first_token_ms for request in off),
        off_published_ms=model.published_ms("off", length),
        on_ms=statistics.mean(request.first_token_ms for request in on),
        on_published_ms=model.published_ms("on", length),
        on_reusing_ms=statistics.mean(request.first_token_ms for request in reusing),
        off_later_ms=statistics.mean(request.first_token_ms for request in off if request.number),
        reused_share=sum(r.reused_tokens for r in reusing) / sum(r.prompt_tokens for r in reusing),
    )


def table(model: Model, compared: Sequence[Row]) -> str:
    """A model's rows as Markdown."""
    lines = [
        f"{model.name}: mean time to first token, ms (published, difference)\n",
        "| prompt tokens | transfer off | transfer on, predicted | off / on "
        "| on, reusing turns | off / on | reused |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in compared:
        published = row.reduction_published
        lines.append(
            f"| {row.prompt_tokens:,} | {_beside(row.off_ms, row.off_published_ms)} "
            f"| {_beside(row.on_ms, row.on_published_ms)} "
            f"| {row.reduction:.2f}{'' if published is None else f' ({published:.2f})'} "
            f"| {row.on_reusing_ms:.0f} | {row.reduction_reusing:.2f} | {row.reused_share:.0%} |"
        )
    return "\n".join(lines)


def _beside(own_ms: float, published_ms: float | None) -> str:
    if published_ms is None:
        return f"{own_ms:.0f}"
    return f"{own_ms:.0f} ({published_ms:.0f}, {own_ms / published_ms - 1:+.1%})"


def readings_table(models: Sequence[Model]) -> str:
    """What else the published figures can be read to say, as Markdown."""
    lines = [
        "Transfer on, by arithmetic alone (no router), under other readings of the source, ms\n",
        "| model | read as | shortest | longest |",
        "|---|---|---|---|",
    ]
    for model in models:
        for reading in readings(model):
            both = zip(reading.predicted_ms, reading.published_ms, strict=True)
            cells = [_beside(own_ms, published_ms) for own_ms, published_ms in both]
            lines.append(f"| {model.name} | {reading.name} | {cells[0]} | {cells[1]} |")
    lines.append("\nPublished prefill with transfer on, beyond its transfer and its new tokens:\n")
    for model in models:
        rest = unseen(model)
        first, last = rest.at_ends_ms
        lines.append(
            f"* {model.name}: {first:+.0f} ms at the shortest prompt, {last:+.0f} ms at the longest: "
            f"{rest.us_per_token:.1f} µs a token of history"
        )
    return "\n".join(lines)


def document(
    played: Sequence[tuple[Model, Sequence[Row], Sequence[Request], Calibration]], *, wrong: int
) -> dict[str, Any]:
    """Everything, for ``--json``."""
    return {
        "source": SOURCE,
        "wrong_kv": wrong,
        "models": [
            {
                "name": model.name,
                "profile": model.profile,
                "calibration": asdict(found),
                "rows": [
                    {
                        **asdict(row),
                        "reduction": row.reduction,
                        "reduction_published": row.reduction_published,
                        "reduction_reusing": row.reduction_reusing,
                    }
                    for row in compared
                ],
                "requests": [asdict(request) for request in requests],
                "readings": [asdict(reading) for reading in readings(model)],
                "unseen": asdict(unseen(model)),
            }
            for model, compared, requests, found in played
        ],
    }
