"""What turns and handles come to until somebody looks at the metrics.

Each number that a series of prometheus-client takes costs a lock and several calls, and a turn brings some
twenty of them. So turns that are alike are added up here, and told to the series when those are read.
"""

from dataclasses import dataclass, field
from typing import Final, TypeAlias

from router.telemetry.facts import HandleFact, Parted, TurnEnded

MOST_TURNS: Final = 64
"""That are alike and not told yet. To tell as many takes a few tenths of a millisecond."""

TurnKind: TypeAlias = tuple[str, str, str, str, int, bool]
"""Plan, reason, who ended it, endpoint, status, whether it was streamed: what turns are alike in."""
HandleKind: TypeAlias = tuple[str, str, Parted | None]
"""Outcome, detail, where it parts from the prompt."""


@dataclass(slots=True)
class Turns:
    """Turns of one kind. Times in seconds."""

    turns: int = 0
    prompts: int = 0
    """Those whose prompt's length somebody told; only of them are tokens counted."""
    prompt_tokens: int = 0
    reused_tokens: int = 0
    moved_tokens: int = 0
    completion_tokens: int = 0
    total_s: list[float] = field(default_factory=list)
    first_byte_s: list[float] = field(default_factory=list)
    waited_s: list[float] = field(default_factory=list)
    verify_s: list[float] = field(default_factory=list)
    prefill_s: list[float] = field(default_factory=list)
    gap_s: list[float] = field(default_factory=list)
    decode_s: list[float] = field(default_factory=list)
    estimate_ratio: list[float] = field(default_factory=list)

    def add(self, turn: TurnEnded) -> None:
        self.turns += 1
        if turn.prompt_tokens:
            self.prompts += 1
            self.prompt_tokens += turn.prompt_tokens
            self.reused_tokens += turn.reused_tokens or 0
            self.moved_tokens += turn.moved_tokens or 0
        if turn.completion_tokens:
            self.completion_tokens += turn.completion_tokens
        self.total_s.append(turn.total_s)
        if turn.first_byte_s is not None:
            self.first_byte_s.append(turn.first_byte_s)
        if turn.waited_s is not None:
            self.waited_s.append(turn.waited_s)
        if turn.verify_s is not None:
            self.verify_s.append(turn.verify_s)
        if turn.prefill_s is not None:
            self.prefill_s.append(turn.prefill_s)
        if turn.gap_s is not None:
            self.gap_s.append(turn.gap_s)
        if turn.decode_s is not None:
            self.decode_s.append(turn.decode_s)
        ratio = turn.estimate_ratio
        if ratio is not None:
            self.estimate_ratio.append(ratio)


@dataclass(slots=True)
class Handles:
    """Handles of one kind, and the tokens behind them."""

    handles: int = 0
    tokens: int = 0


@dataclass(slots=True)
class Tally:
    """All that was not told yet. Bounded by the kinds there are: their parts are of bounded sets."""

    turns: dict[TurnKind, Turns] = field(default_factory=dict)
    handles: dict[HandleKind, Handles] = field(default_factory=dict)

    def turn(self, turn: TurnEnded) -> bool:
        """Add a turn; whether it is time to tell of it and of those like it."""
        kind = (turn.plan, turn.reason, turn.ended_by, turn.endpoint, turn.status, turn.stream)
        alike = self.turns.get(kind)
        if alike is None:
            alike = self.turns[kind] = Turns()
        alike.add(turn)
        return alike.turns >= MOST_TURNS

    def handle(self, fact: HandleFact) -> None:
        kind = (fact.outcome, fact.detail, fact.parted)
        alike = self.handles.get(kind)
        if alike is None:
            alike = self.handles[kind] = Handles()
        alike.handles += 1
        alike.tokens += fact.tokens
