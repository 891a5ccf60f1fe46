"""What the live page tells of turns: the newest that ended, sums since the start, and what is amiss.

A subscriber to facts. It keeps what it is told of, and works nothing out: that is done for whoever watches
(``router.page.view``), so that a page that nobody looks at costs a turn no more than a place in a ring.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from router.errors import redact
from router.telemetry.facts import (
    DiscoveryFailed,
    EndedBy,
    Fact,
    LedgerFailed,
    LegFailed,
    NodesListed,
    PromptMismatch,
    StoreChanged,
    TaskFailed,
    TurnEnded,
)

TURNS_KEPT: Final = 1_000
TROUBLES_KEPT: Final = 32
PASSING_S: Final = 60.0
"""How long a fault is told of that nothing takes back."""
MAX_CHARS: Final = 300


@dataclass(frozen=True, slots=True)
class Ended:
    """A turn, and when it ended on the router's clock. ``number`` counts up from 1."""

    number: int
    at_s: float
    turn: TurnEnded


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something amiss. ``until_s`` is None for what stands until another fact takes it back."""

    text: str
    until_s: float | None


@dataclass(slots=True)
class Sums:
    """Since the start. Tokens are those of turns whose engines told both prompt and reused tokens."""

    turns: int = 0
    failed: int = 0
    """Ended by a fault, or by a limit of ours."""
    left: int = 0
    """Ended by their clients."""
    prompt_tokens: int = 0
    reused_tokens: int = 0
    moved_tokens: int = 0
    """Of the reused ones, those that came back from a decode node."""
    completion_tokens: int = 0


@dataclass(slots=True)
class Live:
    """``now`` is the router's clock, in seconds. One event loop only."""

    now: Callable[[], float]
    sums: Sums = field(default_factory=Sums)
    ended: deque[Ended] = field(default_factory=lambda: deque(maxlen=TURNS_KEPT))
    _troubles: OrderedDict[tuple[str, str], Trouble] = field(default_factory=OrderedDict)

    def __call__(self, fact: Fact) -> None:
        """Take in one fact."""
        match fact:
            case TurnEnded():
                self._turn(fact)
            case StoreChanged(up=True):
                self._troubles.pop(("store", fact.server), None)
            case StoreChanged():
                self._standing(
                    "store", fact.server, f"the store {fact.server} does not answer: {fact.reason}"
                )
            case NodesListed():
                self._troubles.pop(("discovery", fact.source), None)
            case DiscoveryFailed():
                self._standing(
                    "discovery",
                    fact.source,
                    f"{fact.source} cannot be read, its last nodes stand: {fact.error}",
                )
            case LedgerFailed():
                self._passing("ledger", fact.operation, f"the ledger did not {fact.operation}: {fact.error}")
            case PromptMismatch():
                text = (
                    f"{fact.node} read another prompt than was verified; its model gets no reuse for a while"
                )
                self._passing("mismatch", fact.node, text)
            case LegFailed(action="fail" | "error_event"):
                self._passing("leg", fact.node, f"a {fact.role} leg failed on {fact.node}: {fact.error}")
            case TaskFailed():
                self._passing(
                    "task", fact.task, f"the task {fact.task} failed and starts again: {fact.error}"
                )
            case _:
                pass

    def since(self, number: int) -> Iterator[Ended]:
        """The turns after that number that are still kept, oldest first."""
        newest = self.ended[-1].number if self.ended else 0
        return islice(self.ended, max(len(self.ended) - (newest - number), 0), None)

    def troubles(self) -> list[str]:
        """What is amiss now, oldest first."""
        now_s = self.now()
        for key in [
            k for k, one in self._troubles.items() if one.until_s is not None and one.until_s <= now_s
        ]:
            del self._troubles[key]
        return [one.text for one in self._troubles.values()]

    def _turn(self, turn: TurnEnded) -> None:
        sums = self.sums
        sums.turns += 1
        if turn.ended_by is EndedBy.CLIENT:
            sums.left += 1
        elif turn.ended_by is not EndedBy.ENGINE:
            sums.failed += 1
        if turn.prompt_tokens is not None and turn.reused_tokens is not None:
            sums.prompt_tokens += turn.prompt_tokens
            sums.reused_tokens += turn.reused_tokens
            sums.moved_tokens += turn.moved_tokens or 0
        sums.completion_tokens += turn.completion_tokens or 0
        self.ended.append(Ended(sums.turns, self.now(), turn))

    def _standing(self, kind: str, subject: str, text: str) -> None:
        self._note(kind, subject, Trouble(_told(text), None))

    def _passing(self, kind: str, subject: str, text: str) -> None:
        self._note(kind, subject, Trouble(_told(text), self.now() + PASSING_S))

    def _note(self, kind: str, subject: str, trouble: Trouble) -> None:
        self._troubles[kind, subject] = trouble
        self._troubles.move_to_end((kind, subject))
        while len(self._troubles) > TROUBLES_KEPT:
            self._troubles.popitem(last=False)


def _told(text: str) -> str:
    safe = redact(text[: 4 * MAX_CHARS])
    return safe if len(safe) <= MAX_CHARS else f"{safe[:MAX_CHARS]}…"
