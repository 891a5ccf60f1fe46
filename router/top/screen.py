"""What ``boomerang top`` shows: a picture of a router's state and its last turns, as lines. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from router.columns import columns
from router.page.schemas import NodeSeen, RunningSeen, StateSeen, TurnSeen

TURNS_KEPT: Final = 200
"""More than any screen has lines."""
BAR: Final = 20
"""Characters of a bar."""
NODES_SHOWN: Final = 24
"""Of each role; those that are down come first."""


@dataclass(frozen=True, slots=True)
class Marks:
    """Characters of a bar: came back from decode, was held by the node, computed."""

    back: str
    held: str
    computed: str


BLOCKS: Final = Marks("█", "▒", "·")
PLAIN: Final = Marks("#", "=", ".")
"""For terminals that are not of UTF-8."""


@dataclass(slots=True)
class Screen:
    """What was seen so far. ``marks`` are what the terminal can show."""

    marks: Marks = BLOCKS
    state: StateSeen | None = None
    turns: list[TurnSeen] = field(default_factory=list)
    now_ms: int = 0

    def take(self, now_ms: int, ended: Sequence[TurnSeen], state: StateSeen | None) -> None:
        """Take in what is new; ``state`` is None where it is as it was."""
        self.now_ms, self.state = now_ms, state or self.state
        self.turns = [*self.turns, *ended][-TURNS_KEPT:]

    def restarted(self) -> None:
        """The router was lost from sight: it sends its turns again, or is another process."""
        self.turns.clear()

    def lines(self, width: int, height: int) -> list[str]:
        """The picture, at most ``height`` lines of at most ``width`` characters.

        Names and reasons may come from engines: of them only what can be printed is shown.
        """
        state = self.state
        if state is None:
            return ["no router seen yet"[:width]]
        found = [*self._head(state), "", *_nodes(state), ""]
        running = sorted(state.running, key=lambda turn: turn.began_ms)
        room = max(height - len(found) - 1, 0)
        rows = [self._running(turn) for turn in running[-room:]]
        rows = [*rows, *(self._ended(turn) for turn in reversed(self.turns[-room:] if room else []))][:room]
        if rows:
            head = ("conversation", "plan", "nodes", "prompt", "", "back", "first byte", "without reuse")
            found += columns([head, *rows])
        return [_printable(line)[:width] for line in found[:height]]

    def _head(self, state: StateSeen) -> list[str]:
        sums, first = state.sums, state.first_bytes
        share = sums.reused_tokens / sums.prompt_tokens if sums.prompt_tokens else 0.0
        back = round(share * BAR)
        clock = datetime.fromtimestamp(self.now_ms / 1e3, UTC).strftime("%H:%M:%S UTC")
        lines = [
            f"Boomerang {state.version}   verify {state.verify}   {state.status}   {clock}",
            f"{share:4.0%} of prompt tokens came back  {self.marks.back * back}"
            f"{self.marks.computed * (BAR - back)}  {_count(sums.reused_tokens)} of"
            f" {_count(sums.prompt_tokens)}",
        ]
        if first is not None:
            lines.append(
                f"first byte after {_ms(first.with_s)} with reuse, about {_ms(first.without_s)} without"
                f" (an estimate; medians of {first.turns} turns)"
            )
        lines.append(
            f"turns: {state.open_turns} open, {state.waiting_turns} waiting; {sums.turns} ended,"
            f" {sums.failed} failed, {sums.left} left by their clients"
        )
        return lines + [f"{warned.level}: {warned.text}" for warned in state.warnings]

    def _running(self, turn: RunningSeen) -> tuple[str, ...]:
        since_s = max(self.now_ms - turn.began_ms, 0) / 1e3
        return (
            turn.line,
            turn.plan,
            _way(turn.prefill, turn.decode),
            _tokens(turn.prompt_tokens),
            turn.phase,
            "",
            f"{since_s:.1f} s so far",
            "",
        )

    def _ended(self, turn: TurnSeen) -> tuple[str, ...]:
        prompt, reused = turn.prompt_tokens, turn.reused_tokens
        bar = share = ""
        if prompt and reused is not None:
            moved = min(turn.moved_tokens or 0, reused)
            back, held = round(moved / prompt * BAR), round((reused - moved) / prompt * BAR)
            bar = (self.marks.back * back + self.marks.held * held)[:BAR].ljust(BAR, self.marks.computed)
            share = f"{reused / prompt:.0%}"
        if turn.status != 200:
            bar = f"{turn.status}, by the {turn.ended_by}"
        return (
            turn.line,
            f"{turn.plan} {turn.reason}",
            _way(turn.prefill, turn.decode),
            _tokens(prompt),
            bar,
            share,
            _ms(turn.first_byte_s),
            "" if turn.without_s is None else f"about {_ms(turn.without_s)}",
        )


def _nodes(state: StateSeen) -> list[str]:
    rows: list[tuple[str, ...]] = [("node", "state", "legs", "running", "queue", "KV in use", "pinned")]
    for role in ("prefill", "decode"):
        of_role = [node for node in state.nodes if node.role == role]
        of_role.sort(key=lambda node: node.state == "ready")
        rows += [_node(node) for node in of_role[:NODES_SHOWN]]
    lines = columns(rows)
    left = max(len(state.nodes) - (len(rows) - 1), 0) + state.more_nodes
    return [*lines, f"and {left} more nodes"] if left else lines


def _node(node: NodeSeen) -> tuple[str, ...]:
    pinned = "-" if node.pinned_tokens is None else f"{_count(node.pinned_tokens)} tokens"
    if node.pinned_share is not None:
        pinned += f" ({node.pinned_share:.0%})"
    state = node.state if not node.reason else f"{node.state}: {node.reason}"
    return (
        node.node,
        state if len(state) <= 40 else state[:39] + "…",
        str(node.in_flight),
        "-" if node.running is None else str(node.running),
        "-" if node.queue_s is None else _ms(node.queue_s),
        "-" if node.kv_usage is None else f"{node.kv_usage:.0%}",
        pinned,
    )


def _way(*keys: str) -> str:
    return " > ".join(key for key in keys if key) or "-"


def _tokens(count: int | None) -> str:
    return "-" if count is None else f"{count:,}"


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:,.0f} ms"


def _count(number: int) -> str:
    """Short, as 216k or 1.4M."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return str(number)


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)
