"""What is sent to whoever watches the page: the router's state, and turns that ended.

Nothing here runs while nobody watches. What several watchers see is made once.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Literal

import msgspec

from router import __version__
from router.check.observed import Assumed
from router.check.quick import Quick, quick
from router.fleet.load import Loads
from router.fleet.node import Node, Role, State
from router.http import probes
from router.page import warnings
from router.page.schemas import (
    FirstBytes,
    Frame,
    NodeSeen,
    RunningSeen,
    StateSeen,
    SumsSeen,
    TurnSeen,
    Warned,
)
from router.telemetry.facts import TurnEnded
from router.telemetry.live import TURNS_KEPT, Ended, Live
from router.turn.context import Context
from router.turn.record import Record
from router.turn.releasing import NodePins

MAX_NODES: Final = 128
MAX_RUNNING: Final = 256
MAX_TESTED: Final = 32
"""Nodes of each role that the self-test looks at: each pair takes time of the turns' own loop."""
FRESH_S: Final = 0.2
"""A state that is not older than this serves further watchers."""
TESTED_EVERY_S: Final = 5.0
"""The quick self-test looks at each pair of nodes; probes come no more often than that."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """What does not change while the router runs."""

    verify: str
    assumed: Assumed
    pin_budget: float
    is_shared: bool


@dataclass(slots=True)
class View:
    """``pins`` tells of each decode node, the other functions of the router as it is now."""

    fixed: Fixed
    context: Context
    live: Live
    pins: Callable[[], Sequence[NodePins]]
    open_turns: Callable[[], int]
    waiting_turns: Callable[[], int]
    draining: Callable[[], bool]
    wall: Callable[[], float] = time.time
    _offset_s: float = field(init=False)
    """What the clock of the day has over the router's."""
    _started_ms: int = field(init=False)
    _state: bytes = b""
    _state_at_s: float = float("-inf")
    _tested: Quick = field(default_factory=lambda: Quick((), (), ()))
    _tested_at_s: float = float("-inf")
    _without: dict[int, float | None] = field(default_factory=dict)
    """Estimates by the turns' numbers, as they were when the turn was first shown."""

    def __post_init__(self) -> None:
        self._offset_s = self.wall() - self.context.now()
        self._started_ms = round(self.wall() * 1e3)

    def frame(self, after: int, known_state: bytes) -> tuple[bytes, int, bytes]:
        """What is new to a watcher: a ``Frame`` as JSON, the newest turn's number, and the state.

        No bytes where nothing is. ``after`` and ``known_state`` are what the watcher was sent last, 0 and
        ``b""`` at first.
        """
        state = self.state()
        turns = self._turns_since(after)
        if not turns and state == known_state:
            return b"", after, state
        newest = turns[-1].number if turns else after
        raw = None if state == known_state else msgspec.Raw(state)
        return msgspec.json.encode(Frame(round(self.wall() * 1e3), turns, raw)), newest, state

    def state(self) -> bytes:
        """The state as JSON, at most ``FRESH_S`` old."""
        now_s = self.context.now()
        if not 0.0 <= now_s - self._state_at_s < FRESH_S:
            self._state, self._state_at_s = msgspec.json.encode(self._state_now(now_s)), now_s
        return self._state

    # -- turns -------------------------------------------------------------------------------------------

    def _turns_since(self, number: int) -> list[TurnSeen]:
        ended = list(self.live.since(number))
        if not ended:
            return []
        loads = self._loads()
        return [self._turn(one, loads) for one in ended]

    def _turn(self, ended: Ended, loads: Loads) -> TurnSeen:
        turn = ended.turn
        return TurnSeen(
            number=ended.number,
            turn=turn.turn_id,
            line=turn.line,
            plan=turn.plan,
            reason=turn.reason,
            prefill=turn.prefill,
            decode=turn.decode,
            status=turn.status,
            ended_by=turn.ended_by,
            is_stream=turn.stream,
            prompt_tokens=turn.prompt_tokens,
            reused_tokens=turn.reused_tokens,
            moved_tokens=turn.moved_tokens,
            completion_tokens=turn.completion_tokens,
            first_byte_s=_rounded(turn.first_byte_s),
            without_s=_rounded(self._without_s(ended, loads)),
            total_s=round(turn.total_s, 4),
            ended_ms=self._wall_ms(ended.at_s),
        )

    def _without_s(self, ended: Ended, loads: Loads) -> float | None:
        if ended.number not in self._without:
            while len(self._without) >= TURNS_KEPT:
                del self._without[next(iter(self._without))]
            can_tell = self.context.load.has_computed
            self._without[ended.number] = without_reuse_s(ended.turn, loads) if can_tell else None
        return self._without[ended.number]

    def _first_bytes(self, loads: Loads) -> FirstBytes | None:
        seen = [
            (one.turn.first_byte_s, without_s)
            for one in self.live.ended
            if (without_s := self._without_s(one, loads)) is not None and one.turn.first_byte_s is not None
        ]
        if not seen:
            return None
        with_s, without_s = (_median(side) for side in zip(*seen, strict=True))
        return FirstBytes(len(seen), round(with_s, 4), round(without_s, 4))

    # -- the state ---------------------------------------------------------------------------------------

    def _state_now(self, now_s: float) -> StateSeen:
        context, loads = self.context, self._loads()
        nodes = context.fleet.snapshot.nodes
        pins = self.pins()
        by_node = {one.node: one for one in pins}
        shown = sorted(nodes, key=lambda node: node.state is State.READY)[:MAX_NODES]  # what is amiss first
        keep = {node.key for node in shown}
        sums = self.live.sums
        return StateSeen(
            version=__version__,
            verify=self.fixed.verify,
            status=_status(nodes, draining=self.draining()),
            is_shared=self.fixed.is_shared,
            started_ms=self._started_ms,
            pin_budget=self.fixed.pin_budget,
            open_turns=self.open_turns(),
            waiting_turns=self.waiting_turns(),
            sums=SumsSeen(
                sums.turns,
                sums.failed,
                sums.left,
                sums.prompt_tokens,
                sums.reused_tokens,
                sums.moved_tokens,
                sums.completion_tokens,
            ),
            first_bytes=self._first_bytes(loads),
            nodes=[self._node(node, loads, by_node.get(node.key)) for node in nodes if node.key in keep],
            more_nodes=len(nodes) - len(shown),
            running=[self._running(one) for one in islice(context.running.values(), MAX_RUNNING)],
            warnings=self._warnings(nodes, pins, now_s),
        )

    def _node(self, node: Node, loads: Loads, pins: NodePins | None) -> NodeSeen:
        engine = node.engine
        is_prefill = node.role is Role.PREFILL
        return NodeSeen(
            node=node.key,
            role=node.role,
            state=node.state,
            reason=node.reason,
            circuit=node.circuit,
            is_reachable=node.reachable,
            in_flight=node.in_flight,
            running=engine.running,
            waiting=engine.waiting,
            kv_usage=None if engine.kv_usage is None else round(engine.kv_usage, 3),
            queue_s=round(loads.prefill(node).queue_s, 1) if is_prefill else None,
            pinned_tokens=pins.tokens if pins is not None else None,
            pinned_handles=pins.handles if pins is not None else None,
            pinned_share=round(pins.share, 4) if pins is not None and pins.share is not None else None,
            version=engine.version,
        )

    def _running(self, record: Record) -> RunningSeen:
        prompt_tokens, plan = record.prompt_tokens, record.plan
        if prompt_tokens is None and plan is not None and plan.estimate is not None:
            prompt_tokens = round(plan.estimate.prompt_tokens)
        return RunningSeen(
            turn=record.request.turn_id,
            line=record.line,
            plan=plan.kind if plan is not None else "",
            phase=record.phase,
            prefill=record.prefill,
            decode=record.decode,
            prompt_tokens=prompt_tokens,
            began_ms=self._wall_ms(record.started_s),
        )

    def _warnings(self, nodes: Sequence[Node], pins: Sequence[NodePins], now_s: float) -> list[Warned]:
        doubts, fixed = self.context.doubts, self.fixed
        if not 0.0 <= now_s - self._tested_at_s < TESTED_EVERY_S:
            self._tested_at_s = now_s
            ready = [node for node in nodes if node.state is State.READY]
            sides = ([node for node in ready if node.role is role] for role in Role)
            serving = [node for side in sides for node in side[:MAX_TESTED]]
            self._tested = quick(
                serving, mode=fixed.verify, assumed=fixed.assumed, cooling=doubts.cooling(now_s)
            )
        draining = [Warned("warning", "this router is draining")] if self.draining() else []
        return warnings.gathered(
            draining,
            warnings.of_mode(fixed.verify),
            warnings.of_nodes(nodes),
            warnings.of_troubles(self.live.troubles()),
            warnings.of_pins(pins, fixed.pin_budget),
            warnings.of_doubts(doubts.cooling(now_s), tuple(doubts.mistrusted_s(now_s)), doubts.tainted),
            warnings.of_findings(self._tested.hints, self._tested.findings),
            # What engines can do, only their answers tell.
            warnings.of_pairs(self._tested.pairs) if fixed.verify == "auto" and self.live.sums.turns else (),
        )

    def _loads(self) -> Loads:
        context = self.context
        return context.load.snapshot(context.fleet.snapshot.nodes, "", context.now())

    def _wall_ms(self, at_s: float) -> int:
        return round((self._offset_s + at_s) * 1e3)


def without_reuse_s(turn: TurnEnded, loads: Loads) -> float | None:
    """How long a streamed turn would have taken to its first byte, had P computed all of its prompt.

    What reuse took (comparing, reading) is left out, and what it saved is added, at the rates that P was
    measured with lately. None where nothing was reused, or it cannot be told.
    """
    prompt, reused = turn.prompt_tokens, turn.reused_tokens
    node = loads.prefills.get(turn.prefill)
    if not (turn.stream and node and prompt and reused) or turn.first_byte_s is None:
        return None
    added_s = node.compute.at(prompt) - node.compute.at(max(prompt - reused, 0))
    moved_s = node.move.at(turn.moved_tokens) if turn.moved_tokens else 0.0
    return max(turn.first_byte_s + added_s - moved_s - (turn.verify_s or 0.0), 0.0)


def _status(nodes: Sequence[Node], *, draining: bool) -> Literal["ready", "not_ready", "draining"]:
    if draining:
        return "draining"
    return "ready" if probes.ready(nodes, draining=False).status == 200 else "not_ready"


def _median(values: Sequence[float]) -> float:
    # The module statistics takes longer to import than all of this.
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 4)
