"""What a simulated model answers: text made from the value of the KV it was given, and nothing else.

Clean KV of the same prompt gives the same answer on any engine and in any process. Wrong KV gives another
one, which begins with ``TAINT``.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final, Literal

from router.sim.config import EngineConfig
from router.sim.template import compact, tool_call_text
from router.sim.tokens import IM_END, decode, encode, retokenise, token_bytes

TAINT: Final = "⟂"
_WORDS: Final = (
    "the",
    "a",
    "river",
    "stone",
    "light",
    "under",
    "over",
    "small",
    "bright",
    "answer",
    "token",
    "block",
    "number",
    "quiet",
    "morning",
    "engine",
    "train",
    "garden",
    "window",
    "paper",
    "silver",
    "copper",
    "question",
    "because",
    "although",
    "between",
    "seven",
    "eleven",
    "forty",
    "returns",
    "holds",
    "keeps",
    "moves",
    "reads",
    "writes",
    "finds",
    "green",
    "amber",
    "violet",
    "north",
    "south",
    "harbour",
    "bridge",
    "ladder",
    "market",
    "winter",
    "summer",
    "signal",
    "pattern",
    "measure",
    "simple",
    "complex",
    "early",
    "late",
    "nothing",
    "something",
    "café",
    "naïve",
    "Zürich",
)

Channel = Literal["content", "reasoning", "call", ""]
Delta = tuple[Channel, int, str]
"""Where a piece of text belongs: a channel (empty for markup), which tool call, and the text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What of a request shapes its answer."""

    chat: bool
    max_tokens: int
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop: bool = False
    tools: tuple[Mapping[str, Any], ...] = ()
    """Function definitions."""
    tool_choice: str = "none"
    """``none``, ``auto``, ``required`` or the name of a function."""
    parallel_calls: bool = True
    after_user: bool = True
    """The newest message is from the user: only then an ``auto`` answer may call a tool."""
    thinking: bool = False
    json_answer: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    id: str
    name: str
    arguments: str


@dataclass(slots=True)
class Answer:
    """A planned answer: its tokens, and what each of them says."""

    ids: array[int]
    deltas: list[tuple[Delta, ...]]
    calls: tuple[Call, ...]
    finish_reason: str
    stop_reason: str | int | None = None
    by_stop_string: bool = False
    named_choice: bool = False

    def text(self, channel: Channel, index: int = 0) -> str:
        return "".join(
            text for deltas in self.deltas for kind, at, text in deltas if kind == channel and at == index
        )

    def complete_calls(self) -> list[Call]:
        """The calls whose arguments came out whole."""
        return [call for at, call in enumerate(self.calls) if self.text("call", at) == call.arguments]

    @property
    def client_reason(self) -> str:
        """``finish_reason`` as the API says it: ``tool_calls`` for a stop after calls that nobody named."""
        stopped = self.finish_reason == "stop" and not self.named_choice
        return "tool_calls" if stopped and self.complete_calls() else self.finish_reason


def answer(seed: bytes, ask: Ask, config: EngineConfig, *, clean: bool) -> Answer:
    """The answer to a prompt whose KV has the value ``seed``; ``clean``: that is the right value."""
    random = Random(int.from_bytes(seed, "big"))
    calls = _calls(random, ask, config)
    parts = _parts(random, ask, config, calls, clean=clean)
    ids = retokenise(encode("".join(text for _, _, text in parts)), config.retokenise, random)
    whole = len(ids) <= ask.max_tokens
    if not whole:
        del ids[ask.max_tokens :]
    deltas = _deltas(ids, parts)
    named = ask.tool_choice not in ("none", "auto", "required")
    plan = Answer(ids, deltas, calls, "length", named_choice=named)
    if whole and not ask.ignore_eos:
        plan.ids.append(IM_END)
        plan.deltas.append(())
        plan.finish_reason = "stop"
    _stop_at_ids(plan, ask)
    if len(plan.ids) > ask.max_tokens:
        del plan.ids[ask.max_tokens :], plan.deltas[ask.max_tokens :]
        plan.finish_reason, plan.stop_reason = "length", None
    _stop_at_strings(plan, ask)
    return plan


def _words(random: Random, least: int, most: int) -> str:
    return " ".join(random.choices(_WORDS, k=random.randint(least, max(least, most))))


def _calls(random: Random, ask: Ask, config: EngineConfig) -> tuple[Call, ...]:
    draw, many = random.random(), random.random() < 0.3
    if not ask.tools or ask.tool_choice == "none":
        return ()
    tools: Sequence[Mapping[str, Any]] = ask.tools
    if ask.tool_choice == "auto":
        if not ask.after_user or draw >= config.tool_rate:
            return ()
    elif ask.tool_choice != "required":
        tools = [tool for tool in ask.tools if tool.get("name") == ask.tool_choice] or ask.tools
        many = False
    picked = random.choices(tools, k=2 if many and ask.parallel_calls else 1)
    return tuple(_call(random, tool, config) for tool in picked)


def _call(random: Random, tool: Mapping[str, Any], config: EngineConfig) -> Call:
    parameters = tool.get("parameters") or {}
    properties = parameters.get("properties") or {"query": {"type": "string"}}
    values = {name: _value(random, schema) for name, schema in properties.items()}
    spaced = random.random() >= config.retokenise
    written = compact(values) if spaced else json.dumps(values, ensure_ascii=False, separators=(",", ":"))
    return Call(f"chatcmpl-tool-{random.getrandbits(64):016x}", str(tool.get("name")), written)


def _value(random: Random, schema: object) -> object:
    kind = schema.get("type") if isinstance(schema, dict) else None
    if isinstance(schema, dict) and isinstance(schema.get("enum"), list) and schema["enum"]:
        return random.choice(schema["enum"])
    if kind in ("integer", "number"):
        return random.randint(1, 99)
    if kind == "boolean":
        return random.random() < 0.5
    if kind == "array":
        return random.choices(_WORDS, k=2)
    return {"note": random.choice(_WORDS)} if kind == "object" else _words(random, 1, 3)


def _parts(
    random: Random, ask: Ask, config: EngineConfig, calls: Sequence[Call], *, clean: bool
) -> list[Delta]:
    parts: list[Delta] = []
    if ask.thinking:
        thought = _words(random, 4, 12)
        parts += [("", 0, "<think>\n"), ("reasoning", 0, thought), ("", 0, "\n</think>\n\n")]
    content = "" if calls else _words(random, *config.answer_words)
    if ask.json_answer and not calls:
        content = compact({"answer": content})
    if not clean:
        content = f"{TAINT} {content}".rstrip()
    wanted = ask.max_tokens if ask.ignore_eos else ask.min_tokens
    if wanted:
        content += "." * bool(content) + " " + _words(random, wanted, wanted)
    if content:
        parts.append(("content", 0, content))
    for at, call in enumerate(calls):
        before, after = tool_call_text(call.name, "\0").split("\0")
        parts += [
            ("", 0, ("\n" if at or content else "") + before),
            ("call", at, call.arguments),
            ("", 0, after),
        ]
    return parts


def _deltas(ids: Iterable[int], parts: Sequence[Delta]) -> list[tuple[Delta, ...]]:
    """Which part each token's characters belong to. Every token of an answer is whole characters."""
    deltas: list[tuple[Delta, ...]] = []
    at, end = 0, len(parts[0][2]) if parts else 0
    position = 0
    for token in ids:
        text = decode((token,), skip_specials=False)
        stop, pieces = position + len(text), []
        while position < stop:
            while position >= end:
                at += 1
                end += len(parts[at][2])
            upto = min(stop, end)
            kind, index, _ = parts[at]
            pieces.append((kind, index, text[len(text) - (stop - position) : len(text) - (stop - upto)]))
            position = upto
        deltas.append(tuple(pieces) if token >= 1024 else ())
    return deltas


def _stop_at_ids(plan: Answer, ask: Ask) -> None:
    for at, token in enumerate(plan.ids):
        if token in ask.stop_token_ids and at + 1 >= ask.min_tokens:
            del plan.ids[at + 1 :], plan.deltas[at + 1 :]
            plan.deltas[at] = ()
            plan.finish_reason, plan.stop_reason = "stop", token
            return


def _stop_at_strings(plan: Answer, ask: Ask) -> None:
    """End where a stop string ends; its own text and what follows are not shown."""
    if not ask.stop:
        return
    visible = ""
    for at, token in enumerate(plan.ids):
        if token >= 1024:
            visible += token_bytes(token).decode("utf-8", "replace")
        found = [(visible.find(stop), stop) for stop in ask.stop if stop and stop in visible]
        if not found or at + 1 < ask.min_tokens:
            continue
        start, stop = min(found)
        keep = start + (len(stop) if ask.include_stop else 0)
        del plan.ids[at + 1 :], plan.deltas[at + 1 :]
        for index, deltas in enumerate(plan.deltas):
            shown: list[Delta] = []
            for kind, call, text in deltas:
                shown.append((kind, call, text[: max(keep, 0)]))
                keep -= len(text)
            plan.deltas[index] = tuple(delta for delta in shown if delta[2])
        plan.finish_reason, plan.stop_reason, plan.by_stop_string = "stop", stop, True
        return
