"""What an answer says, whole or streamed, in one comparable form without ids, dates and cache counts."""

import re
from dataclasses import dataclass, field
from typing import Any

import msgspec

_EVENT_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_LINE_END = re.compile(rb"\r\n|\n|\r")


@dataclass(slots=True)
class Choice:
    content: str = ""
    reasoning: str = ""
    calls: dict[int, dict[str, str]] = field(default_factory=dict)
    finish_reason: str | None = None
    logprobs: list[Any] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Spoken:
    """The content of one answer. Two answers to the same request are equal exactly if these are."""

    choices: dict[int, Choice] = field(default_factory=dict)
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    error: Any = None
    complete: bool = False
    """It ended as an answer ends: a whole body, or a stream with ``[DONE]``, and no error."""


def events(body: bytes) -> list[bytes]:
    """The data of each event of a stream that came whole."""
    found: list[bytes] = []
    for block in _EVENT_END.split(body):
        data = [line[5:].lstrip(b" ") for line in _LINE_END.split(block) if line.startswith(b"data:")]
        if data:
            found.append(b"\n".join(data))
    return found


def read(body: bytes, *, streamed: bool) -> Spoken:
    """What ``body`` says. A body that is no JSON is an incomplete answer."""
    spoken = Spoken()
    if not streamed:
        try:
            _add(spoken, msgspec.json.decode(body), "message")
            spoken.complete = spoken.error is None
        except msgspec.DecodeError:
            spoken.error = "not JSON"
        return spoken
    ended = False
    for data in events(body):
        if data == b"[DONE]":
            ended = True
        else:
            _add(spoken, msgspec.json.decode(data), "delta")
    spoken.complete = ended and spoken.error is None
    return spoken


def _add(spoken: Spoken, document: dict[str, Any], said: str) -> None:
    if document.get("error"):
        spoken.error = document["error"]
        return
    usage = document.get("usage")
    if usage:
        spoken.prompt_tokens, spoken.completion_tokens = usage["prompt_tokens"], usage["completion_tokens"]
    for given in document.get("choices") or ():
        choice = spoken.choices.setdefault(given.get("index") or 0, Choice())
        message = given.get(said) or {}
        choice.content += (message.get("content") or "") + (given.get("text") or "")
        choice.reasoning += message.get("reasoning") or ""
        choice.finish_reason = given.get("finish_reason") or choice.finish_reason
        choice.token_ids += given.get("token_ids") or ()
        for at, call in enumerate(message.get("tool_calls") or ()):
            _add_call(choice, call.get("index", at), call)
        logprobs = given.get("logprobs") or {}
        choice.logprobs += logprobs.get("content") or logprobs.get("token_logprobs") or ()


def _add_call(choice: Choice, index: int, call: dict[str, Any]) -> None:
    known = choice.calls.setdefault(index, {"id": "", "name": "", "arguments": ""})
    function = call.get("function") or {}
    known["id"] += call.get("id") or ""
    known["name"] += function.get("name") or ""
    known["arguments"] += function.get("arguments") or ""
