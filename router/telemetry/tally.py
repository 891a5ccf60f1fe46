"""Turns and handles that the metrics were not told of yet.

Each number that a series of prometheus-client takes costs a lock and several calls, and a turn brings some
twenty of them. So they wait here, by what they are alike in, and are told to the series when those are read.
"""

from dataclasses import dataclass, field
from typing import Final, TypeAlias

from router.telemetry.facts import HandleFact, Parted, TurnEnded

MOST_TURNS: Final = 64
"""That are alike and wait. To tell the series of so many takes a few tenths of a millisecond."""

TurnKind: TypeAlias = tuple[str, str, str, str, int, bool]
"""Plan, reason, who ended it, endpoint, status, whether it was streamed: what turns are alike in."""
HandleKind: TypeAlias = tuple[str, str, Parted | None]
"""Outcome, detail, where it parts from the prompt."""


@dataclass(slots=True)
class Handles:
    """Handles of one kind, and the tokens behind them."""

    handles: int = 0
    tokens: int = 0


@dataclass(slots=True)
class Tally:
    """What waits. Bounded by the kinds that there are, whose parts are of bounded sets."""

    turns: dict[TurnKind, list[TurnEnded]] = field(default_factory=dict)
    handles: dict[HandleKind, Handles] = field(default_factory=dict)

    def turn(self, turn: TurnEnded) -> bool:
        """Add a turn; whether it is time to tell of it and of those like it."""
        kind = (turn.plan, turn.reason, turn.ended_by, turn.endpoint, turn.status, turn.stream)
        alike = self.turns.get(kind)
        if alike is None:
            self.turns[kind] = [turn]
            return False
        alike.append(turn)
        return len(alike) >= MOST_TURNS

    def handle(self, fact: HandleFact) -> None:
        kind = (fact.outcome, fact.detail, fact.parted)
        alike = self.handles.get(kind)
        if alike is None:
            alike = self.handles[kind] = Handles()
        alike.handles += 1
        alike.tokens += fact.tokens
