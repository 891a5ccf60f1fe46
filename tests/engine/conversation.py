"""What the tests say: conversations whose turns extend, edit, regenerate, fork and compact each other.

A CPU engine's blocks hold 128 tokens and its prefill is slow, so the first message is a few blocks long and
no prompt reaches a thousand tokens.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

Message = dict[str, Any]


def notes(subject: str, lines: int) -> str:
    """Numbered lines of which no two are alike, so that a wrong block is the wrong text."""
    return "\n".join(
        f"{line:02d} {subject} {line * 37 % 101} of {line * 53 % 97} done, {line * 29 % 89} late"
        for line in range(1, lines + 1)
    )


SYSTEM: Message = {"role": "system", "content": "Answer in one line."}


def opening(subject: str, lines: int) -> list[Message]:
    """The first request of a conversation."""
    return [SYSTEM, {"role": "user", "content": notes(subject, lines)}]


class Change(StrEnum):
    """How a turn's history comes from what was said so far."""

    ASK = "ask"
    """A user message more."""
    EDIT = "edit"
    """The question before the last one is another; what followed it is resent."""
    AGAIN = "again"
    """The last question again, without its answer."""
    FORK = "fork"
    """Another question than the last one."""
    COMPACT = "compact"
    """A summary in place of all that was said."""


@dataclass(frozen=True, slots=True)
class Step:
    """One turn of the play: what is asked, and on which turn's held KV its reuse can build."""

    name: str
    conversation: str
    change: Change
    text: str
    builds_on: str | None
    """Name of the turn whose finished KV is held when this one begins; None where there is none to use."""


def script(prefix: str, subject: str) -> tuple[Step, ...]:
    """All steps once. ``prefix`` is put before each name; ``subject`` makes texts differ between plays."""

    def step(conversation: str, turn: str, change: Change, text: str, builds_on: str | None) -> Step:
        before = None if builds_on is None else f"{prefix} {conversation} {builds_on}"
        name = f"{prefix} {conversation} {turn}"
        return Step(name, f"{prefix} {conversation}", change, text, before)

    return (
        step("grow", "1", Change.ASK, notes(f"{subject} parcels", 22), None),
        step("grow", "2", Change.ASK, "Which line is the latest?", "1"),
        step("grow", "3", Change.ASK, "And which one is done first?", "2"),
        step("grow", "4", Change.ASK, "Name the three that wait longest.", "3"),
        step("grow", "edited", Change.EDIT, "Name the two that wait shortest.", "4"),
        step("other", "1", Change.ASK, notes(f"{subject} letters", 22), None),
        step("other", "2", Change.ASK, "Which of them are late?", "1"),
        step("other", "regenerated", Change.AGAIN, "", "2"),
        step("branch", "1", Change.ASK, notes(f"{subject} crates", 22), None),
        step("branch", "2", Change.ASK, "Which one is the heaviest?", "1"),
        step("branch", "forked", Change.FORK, "Which one is the lightest, and why?", "2"),
        step("branch", "compacted", Change.COMPACT, notes(f"{subject} summary", 18), None),
        step("branch", "after", Change.ASK, "Is any number there twice?", "compacted"),
    )


class Conversation:
    """A plain client's memory: it resends all that was said, and nothing else."""

    def __init__(self) -> None:
        self._messages: list[Message] = [SYSTEM]

    def next_request(self, change: Change, text: str) -> list[Message]:
        """The messages of a turn. An edit, a fork or a repetition leaves the memory as it was."""
        match change:
            case Change.AGAIN:
                return self._messages[:-1]
            case Change.EDIT:
                at = self._questions()[-2]
                edited = {"role": "user", "content": text}
                return [*self._messages[:at], edited, *self._messages[at + 1 : -1]]
            case Change.FORK:
                return [*self._messages[: self._questions()[-1]], {"role": "user", "content": text}]
            case Change.COMPACT:
                self._messages = [SYSTEM]
            case Change.ASK:
                pass
        self._messages.append({"role": "user", "content": text})
        return list(self._messages)

    def hear(self, change: Change, answer: str) -> None:
        """Remember an answer, where the turn is part of the conversation's own line."""
        if change in (Change.ASK, Change.COMPACT):
            self._messages.append({"role": "assistant", "content": answer})

    def _questions(self) -> list[int]:
        return [at for at, message in enumerate(self._messages) if message["role"] == "user"]
