"""The run as one table: printed after the tests, and written to a file where that is wanted."""

import os
from collections.abc import Iterable
from pathlib import Path

import httpx
import pytest

from tests.engine.exchange import ROUNDING_LOGPROB, Verdict
from tests.engine.play import Checked

REPORT_VARIABLE = "BOOMERANG_REPORT_DIR"
REPORT_NAME = "engine-report.md"

# What the tests leave here for the summary.
CHECKED: pytest.StashKey[list[Checked]] = pytest.StashKey()
VERSION: pytest.StashKey[str] = pytest.StashKey()
CONTROL: pytest.StashKey[str] = pytest.StashKey()

_COLUMNS = (
    "turn",
    "prompt tokens",
    "held and shared",
    "plan",
    "reason",
    "reused tokens",
    "prefill leg, s",
    "P's first token",
    "answer",
)


def table(checked: Iterable[Checked]) -> str:
    """A Markdown table that also reads well as text."""
    rows = [_COLUMNS, *(_row(each) for each in checked)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


def _row(each: Checked) -> tuple[str, ...]:
    turn = each.turn
    return (
        turn.step.name,
        str(len(turn.answer.prompt_ids)),
        str(turn.shared_tokens),
        turn.plan,
        turn.reason,
        str(turn.reused_tokens),
        f"{turn.prefill_legs[-1].duration_s:.2f}",
        each.first_verdict.value,
        each.answer_verdict.value,
    )


def rounding_count(checked: Iterable[Checked]) -> int:
    verdicts = [verdict for each in checked for verdict in (each.first_verdict, each.answer_verdict)]
    return verdicts.count(Verdict.ROUNDING)


def text(checked: list[Checked], version: str, control: str) -> str:
    return f"""\
# A run against real engines

Written by `make test-engine` with `{REPORT_VARIABLE}` set. One prefill and one decode node, stock vLLM
{version} for the CPU, connected by NIXL, with a tiny random model; the router in `router` mode; nothing
streamed. P's prefix cache is off, so every reused token came from D. A block holds 128 tokens.

{table(checked)}

* *held and shared*: leading tokens of the prompt whose KV D held from the turn that this one builds on.
* *reused tokens*: prompt tokens that P did not compute, as P reports them.
* *P's first token* and *answer*: compared, token by token, with a reference taken after all turns, on the
  cold path and under a fresh `cache_salt`. `rounding` would mean: different, but only from a position on
  where the reference's two likeliest tokens are closer than {ROUNDING_LOGPROB:g} in log-probability.
  Such differences in this run: {rounding_count(checked)}.
* *prefill leg, s*: on a busy machine with two cores; its shape counts, not its value. The first one of a run
  warms the engine up.
* The control, a handle that belongs to another prompt, {control}.
"""


def engine_version(url: str) -> str:
    response = httpx.get(f"{url}/version", timeout=10)
    return str(response.json()["version"])


def write(content: str) -> Path | None:
    """Write the report into the directory that the environment names; None if it names none."""
    directory = os.environ.get(REPORT_VARIABLE)
    if not directory:
        return None
    path = Path(directory) / REPORT_NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path
