"""The run as tables: printed after the tests, and written to files where that is wanted."""

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from tests.engine.exchange import ROUNDING_LOGPROB, Verdict
from tests.engine.pair import HANDLE_TTL_S, Setup, prefix_cache
from tests.engine.play import Checked

REPORT_VARIABLE = "BOOMERANG_REPORT_DIR"
REPORT_NAME = "engine-run.md"
FACTS_VARIABLE = "BOOMERANG_REPORT_FACTS"
CONVERSATIONS_VARIABLE = "BOOMERANG_CONVERSATIONS"


@dataclass(slots=True)
class Section:
    """What was found with one setup."""

    checked: list[Checked] = field(default_factory=list)
    """The scripted turns."""
    conversations: dict[str, list[Checked]] = field(default_factory=dict)
    """Growing conversations, by name."""
    notes: dict[str, str] = field(default_factory=dict)
    """What else was measured, by a short name."""
    parts: str = ""
    """What of the plugin is on, as both engines log it."""
    stream_handle: str = ""
    """How streams carry the handle, as ``boomerang check`` says: ``native``, ``plugin`` or ``none``."""
    verify: str = ""
    """Who verifies, as the router says."""

    @property
    def played(self) -> list[Checked]:
        return [*self.checked, *(each for turns in self.conversations.values() for each in turns)]


@dataclass(slots=True)
class Run:
    """What the tests leave here for the summary."""

    version: str = "unknown"
    sections: dict[Setup, Section] = field(default_factory=dict)

    def of(self, setup: Setup) -> Section:
        return self.sections.setdefault(setup, Section())


RUN: pytest.StashKey[Run] = pytest.StashKey()

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
_TITLES = {
    Setup.STOCK: "Stock vLLM: the router verifies",
    Setup.PLUGIN: "With boomerang-vllm on both nodes: the engines verify",
}


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table that also reads well as text."""
    lines = [tuple(columns), *map(tuple, rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(columns))]
    written = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |"
        for line in lines
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([written[0], rule, *written[1:]])


def _row(each: Checked) -> tuple[str, ...]:
    turn = each.turn
    return (
        turn.name,
        str(len(turn.answer.prompt_ids)),
        str(turn.shared_tokens),
        turn.plan,
        turn.reason,
        str(turn.reused_tokens),
        f"{turn.prefill_legs[-1].duration_s:.2f}",
        each.first_verdict.value,
        each.answer_verdict.value,
    )


def _grown(conversations: Mapping[str, Sequence[Checked]]) -> str:
    turns = max(map(len, conversations.values()))
    columns = ["conversation", *(f"turn {number}" for number in range(1, turns + 1)), "wrong answers"]
    rows = [
        [
            name,
            *(f"{each.turn.reused_tokens} of {len(each.turn.answer.prompt_ids)}" for each in played),
            str(sum(not each.is_right for each in played)),
        ]
        for name, played in conversations.items()
    ]
    return table(columns, rows)


def grown(conversations: Mapping[str, Sequence[Checked]]) -> str:
    """The conversations in one sentence."""
    played = [each for turns in conversations.values() for each in turns]
    later = [each for turns in conversations.values() for each in turns[1:]]
    prompts = sum(len(each.turn.answer.prompt_ids) for each in played)
    reused = sum(each.turn.reused_tokens for each in played)
    return (
        f"{len(conversations)} conversations, {len(played)} turns: reuse on"
        f" {sum(each.turn.reused_tokens > 0 for each in later)} of {len(later)} turns after the first,"
        f" {reused} of {prompts} prompt tokens reused;"
        f" wrong answers: {sum(not each.is_right for each in played)}"
    )


def rounding_count(section: Section) -> int:
    """Differences that are within rounding, of all turns."""
    verdicts = [verdict for each in section.played for verdict in (each.first_verdict, each.answer_verdict)]
    return verdicts.count(Verdict.ROUNDING)


def summary(run: Run) -> str:
    parts = []
    for setup, section in run.sections.items():
        parts += [f"{_TITLES[setup]}", ""]
        if section.checked:
            parts += [table(_COLUMNS, map(_row, section.checked)), ""]
        if section.conversations:
            parts += [_grown(section.conversations), "", f"* {grown(section.conversations)}"]
        parts += [f"* {name}: {said}" for name, said in section.notes.items()]
        parts += [f"* differences within rounding: {rounding_count(section)}", ""]
    return "\n".join(parts)


def text(run: Run, environment: Mapping[str, str]) -> str:
    """The page."""
    count = environment.get(CONVERSATIONS_VARIABLE)
    command = (
        f"{REPORT_VARIABLE}=docs {f'{CONVERSATIONS_VARIABLE}={count} ' if count else ''}make test-engine"
    )
    parts = [_HEAD.format(command=command, version=run.version, ttl=HANDLE_TTL_S, epsilon=ROUNDING_LOGPROB)]
    for setup, section in run.sections.items():
        parts += [f"## {_TITLES[setup]}", _cache(setup), table(_COLUMNS, map(_row, section.checked))]
        if section.conversations:
            streamed = next(iter(section.conversations.values()))[0].turn.streamed
            how = "streamed" if streamed else "not streamed"
            parts += [
                f"Growing conversations through the `openai` client, {how}; reused of prompt tokens:",
                _grown(section.conversations),
            ]
        said = {"growing conversations": grown(section.conversations)} if section.conversations else {}
        said |= section.notes | {"differences within rounding": f"{rounding_count(section)}"}
        parts.append("\n".join(f"* *{name}*: {what}" for name, what in said.items()))
    return "\n\n".join(parts) + "\n"


def _cache(setup: Setup) -> str:
    before, after = prefix_cache(setup), prefix_cache(setup, restarted=True)
    return f"P's own prefix cache is {before}, and {after} after P was killed and started again."


_HEAD = """\
# A run against real engines

Written by `{command}`.

One prefill node (P) and one decode node (D), vLLM {version} for the CPU, connected by NIXL, with a tiny
random model; the router as its own process, with `--verify auto --policy sticky --stay-max-tokens 0`, so
that each turn has both legs, however short it is. A block holds 128 tokens, D keeps a finished turn for
{ttl} s. First a stock pair, then one with the plugin.

* *held and shared*: leading tokens of the prompt whose KV D held from the turn that this one builds on.
* *reused tokens*: prompt tokens that P did not compute, as P reports them.
* *P's first token* and *answer*: compared, token by token, with a reference taken after all turns, on the
  cold path and under a fresh `cache_salt`. `rounding` would mean: different, but only from a position on
  where the reference's two likeliest tokens are closer than {epsilon:g} in log-probability.
* *prefill leg, s*: on a busy machine with two cores; its shape counts, not its value."""


def engine_version(url: str) -> str:
    response = httpx.get(f"{url}/version", timeout=10)
    return str(response.json()["version"])


def parts_on(logs: Iterable[Path]) -> str:
    """What of the plugin is on in every process that says so; empty without the plugin."""
    said = {
        found
        for log in logs
        for found in re.findall(r"Boomerang \S+ with vLLM [^:]*: ([^;\n]*)", log.read_text(errors="replace"))
    }
    return " | ".join(sorted(said))


def write_facts(run: Run, failed: Sequence[str], environment: Mapping[str, str]) -> None:
    """Write what a compatibility table needs, as JSON, into the file that the environment names."""
    if not environment.get(FACTS_VARIABLE):
        return
    setups = {}
    for setup, section in run.sections.items():
        later = [each.turn for each in section.played if each.turn.builds_on is not None]
        setups[setup.value] = {
            "parts": section.parts,
            "stream_handle": section.stream_handle,
            "verify": section.verify,
            "turns": len(section.played),
            "later_turns": len(later),
            "reused_turns": sum(turn.reused_tokens > 0 for turn in later),
            "wrong_answers": sum(not each.is_right for each in section.played),
            "notes": section.notes,
        }
    facts = {"version": run.version, "failed": list(failed), "setups": setups}
    Path(environment[FACTS_VARIABLE]).write_text(json.dumps(facts, indent=2))


def write(content: str) -> Path | None:
    """Write the report into the directory that the environment names; None if it names none."""
    directory = os.environ.get(REPORT_VARIABLE)
    if not directory:
        return None
    path = Path(directory) / REPORT_NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path
