"""What the tests say: two conversations whose turns extend, edit and regenerate each other.

A CPU engine's blocks hold 128 tokens and its prefill is slow, so the first message is a few blocks long and
no prompt reaches a thousand tokens.
"""

from dataclasses import dataclass
from typing import Any

Message = dict[str, Any]


def notes(subject: str, lines: int) -> str:
    """Numbered lines of which no two are alike, so that a wrong block is the wrong text."""
    return "\n".join(
        f"{line:02d} {subject} {line * 37 % 101} of {line * 53 % 97} done, {line * 29 % 89} late"
        for line in range(1, lines + 1)
    )


@dataclass(frozen=True, slots=True)
class Step:
    """One turn of the play: what is asked, and on which turn's held KV its reuse can build."""

    name: str
    conversation: str
    change: str
    """``ask`` appends a user message to what was said so far; ``edit`` and ``again`` do what they say."""
    text: str
    builds_on: str | None
    """Name of the turn whose finished KV is held when this one begins; None for an opening."""


SYSTEM: Message = {"role": "system", "content": "Answer in one line."}

_EDITED_TURN = 4
_GROWING = (
    notes("parcels", 24),
    "Which line is the latest?",
    "And which one is done first?",
    "Name the three that wait longest.",
    "Is any number there twice?",
    "Write the sum of the last column.",
)

STEPS: tuple[Step, ...] = (
    *(
        Step(f"grow {turn}", "growing", "ask", text, f"grow {turn - 1}" if turn > 1 else None)
        for turn, text in enumerate(_GROWING, start=1)
    ),
    Step("edited", "growing", "edit", "Name the two that wait shortest.", f"grow {len(_GROWING)}"),
    Step("other 1", "other", "ask", notes("letters", 24), None),
    Step("other 2", "other", "ask", "Which of them are late?", "other 1"),
    Step("regenerated", "other", "again", "", "other 2"),
)


class Conversation:
    """A plain client's memory: it resends all that was said, and nothing else."""

    def __init__(self) -> None:
        self._messages: list[Message] = [SYSTEM]

    def next_request(self, step: Step) -> list[Message]:
        """The messages of a step. An edit or a repetition leaves the memory as it was."""
        if step.change == "again":
            return self._messages[:-1]
        if step.change == "edit":
            users = [at for at, message in enumerate(self._messages) if message["role"] == "user"]
            at = users[_EDITED_TURN - 1]
            edited = {"role": "user", "content": step.text}
            return [*self._messages[:at], edited, *self._messages[at + 1 : -1]]
        self._messages.append({"role": "user", "content": step.text})
        return list(self._messages)

    def hear(self, answer: str) -> None:
        self._messages.append({"role": "assistant", "content": answer})
