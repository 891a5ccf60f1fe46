"""The ledger in memory: the rules, the bounds, and what is its own."""

import gc
import tracemalloc
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar, cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from router.ledger.memory import SWEEP_BRANCHES, SWEEP_HANDLES, MemoryLedger
from router.ledger.store import Finish, Found, Handle, Leaving, Pinned, Put, Relation, Trace
from router.turn.digest import chain
from tests.ledger.conformance import LedgerBounds, LedgerRules
from tests.ledger.conformance_pins import PinRules
from tests.ledger.play import TTL_S, Clock, Make, Play, asking, handle_of, keys_of

T = TypeVar("T")
DECODE = "http://d:8200"
"""Where the handles of ``handle_of`` are."""


@pytest.fixture
def make(clock: Clock) -> Make:
    def _make(**limits: Any) -> MemoryLedger:
        return MemoryLedger(now=clock, **limits)

    return _make


class TestMemoryLedger(LedgerRules, LedgerBounds, PinRules):
    """Everything that every ledger does."""


@pytest.mark.parametrize("limit", ["max_branches", "max_bytes", "trace_ttl_s", "max_siblings"])
@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_limits_are_checked(limit: str, value: float) -> None:
    with pytest.raises(ValueError, match=limit):
        MemoryLedger(**{limit: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("deadline_s", [float("nan"), float("-inf"), float("inf"), 1e300])
async def test_odd_deadlines(deadline_s: float, clock: Clock) -> None:
    ledger = MemoryLedger(now=clock)
    await ledger.put(Put(keys_of("m0"), None, Play(ledger, clock).trace(1), handle_of(100, deadline_s)))
    await ledger.sweep()
    found = await ledger.find(asking("m0", "a0", "m1"))
    assert found is not None
    assert (found.handle is not None) is (deadline_s > clock.now_s)


async def test_a_sweep_is_bounded(clock: Clock) -> None:
    ledger = MemoryLedger(now=clock, trace_ttl_s=10_000.0)
    play = Play(ledger, clock)
    handles = SWEEP_HANDLES + 100
    for index in range(handles):
        await play.finish(asking(str(index)), None, ttl_s=TTL_S + index / 100)
    clock.advance(9_999.0)
    await ledger.sweep()
    assert (await ledger.stats()).handles == 100
    await ledger.sweep()
    assert (await ledger.stats()).handles == 0
    clock.advance(2.0)
    await ledger.sweep()
    assert (await ledger.stats()).branches == handles - SWEEP_BRANCHES
    for _ in range(handles // SWEEP_BRANCHES):
        await ledger.sweep()
    stats = await ledger.stats()
    assert (stats.branches, stats.boundaries, stats.size_bytes) == (0, 0, 0)
    assert (stats.expired_handles, stats.evicted_handles) == (handles, 0)


@pytest.mark.parametrize(
    ("branches", "depth", "blocks"), [(4000, 1, 0), (1500, 40, 0), (1500, 8, 100), (300, 100, 800)]
)
async def test_the_estimated_size_is_the_measured_one(branches: int, depth: int, blocks: int) -> None:
    def turn(index: int) -> Put:
        # Each object is this turn's own, as those of a real turn are.
        name = f"{index:032d}"
        params = f'{{"remote_engine_id":"{name}","remote_block_ids":[{list(range(blocks))}]}}'.encode()
        handle = Handle(
            params=params,
            decode=f"http://decode-{name}:8200",
            engine_id=name + "!",
            tokens=blocks * 16 + index + 1000,
            prompt_tokens=blocks * 16 + index + 900,
            deadline_s=1000.5 + index,
            held=chain(range(blocks * 16)),
        )
        return Put(
            keys=keys_of(*map(str, range(depth)), tenant=name),
            found=None,
            trace=Trace(
                f"http://prefill-{name}:8100",
                f"http://decode-{name}:8201",
                index + 800,
                index + 4000,
                index + 300,
                index + 0.5,
            ),
            handle=handle if blocks else None,
            conversation=f"conversation {name}",
        )

    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        ledger = MemoryLedger(now=lambda: 0.0)
        for index in range(branches):
            await ledger.put(turn(index))
        gc.collect()
        measured_bytes = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    stats = await ledger.stats()
    assert stats.branches == branches
    assert stats.size_bytes == pytest.approx(measured_bytes, rel=0.3)
    await ledger.close()
    assert (await ledger.stats()).size_bytes == 0


def step(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a method to its end; it has to be one step, with no await in it."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return cast(T, stop.value)
    raise AssertionError("a method of the ledger in memory waited for something")


@dataclass(frozen=True)
class Turn:
    """A turn under way, as the model sees it."""

    history: tuple[str, ...]
    found: Found | None
    moves: int = 0
    """How often its branch had been put when it was found."""
    ends: int = 0
    """How often its conversation had been ended then."""
    began_s: float = 0.0
    gave_back: bool = False


@dataclass
class Known:
    """What the model knows of a handle."""

    branch: str
    deadline_s: float
    tokens: int
    free: bool
    """Whether the ledger may give it out: it was put or given back, and not taken or superseded since."""


@dataclass
class Line:
    """What the model knows of a branch."""

    tip: tuple[str, ...]
    moves: int
    owner: bytes = b""
    ends: int = 0


histories = st.lists(st.sampled_from("ab"), min_size=1, max_size=6).map(tuple)


def common(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    return next(
        (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


class Turns(RuleBasedStateMachine):
    """Random turns over few histories, checked against plain lists of all that was ever put."""

    limits: ClassVar[dict[str, Any]] = {"max_siblings": 1_000}
    forgets: ClassVar[bool] = False
    """Whether the limits make the ledger forget; then it may know less than the model, never more."""

    turns: Bundle[Turn] = Bundle("turns")

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.ledger = MemoryLedger(now=self.clock, trace_ttl_s=1e9, **self.limits)
        self.handles: dict[bytes, Known] = {}
        self.lines: dict[str, Line] = {}
        self.histories: list[tuple[str, ...]] = []
        self.ended_s: dict[bytes, float] = {}
        self.left: dict[bytes, Leaving] = {}
        self.ledger.on_left = self.on_left

    def on_left(self, handle: Handle, leaving: Leaving) -> None:
        assert handle.params not in self.left, "told twice"
        assert handle.deadline_s > self.clock.now_s, "nobody has to be told that its time is over"
        self.left[handle.params] = leaving
        if handle.params in self.handles:
            assert self.handles[handle.params].free, "somebody has it in hand"
            self.handles[handle.params].free = False

    def good(self, known: Known) -> bool:
        return known.free and known.deadline_s > self.clock.now_s

    @rule(
        target=turns, history=histories, own_depth=st.integers(1, 3), share=st.sampled_from([0.0, 0.5, 1.0])
    )
    def find(self, history: tuple[str, ...], own_depth: int, share: float) -> Turn:
        found = step(self.ledger.find(asking(*history, own_depth=own_depth, take_share=share)))
        longest = max((common(history, put) for put in self.histories), default=0)
        if found is None:
            assert self.forgets or longest == 0
            return Turn(history, None, began_s=self.clock.now_s)
        assert found.depth == longest or (self.forgets and found.depth < longest)
        line = self.lines[found.branch]
        held, begun = line.tip, history[: found.depth]
        assert held[: found.depth] == begun
        if held != begun:
            assert found.relation is Relation.FORK
        else:
            extends = found.depth < len(history)
            assert found.relation is (Relation.EXTENSION if extends else Relation.REGENERATED)
        assert found.turns == line.moves
        assert (found.handle is None) != (found.absence is None)
        if found.handle is not None:
            known = self.handles[found.handle.params]
            assert known.free, "a handle had two winners"
            assert known.deadline_s > self.clock.now_s, "an expired handle was given out"
            assert known.branch == found.branch, "a handle came with another branch than its own"
            assert found.relation is Relation.EXTENSION or found.depth >= own_depth
            known.free = False
        elif not self.forgets and found.depth < len(history):
            refused = [
                known
                for known in self.handles.values()
                if self.good(known) and self.lines[known.branch].tip == begun
            ]
            assert not refused, "an extension was refused a handle that was there"
        return Turn(history, found, line.moves, line.ends, self.clock.now_s)

    @rule(target=turns, turn=consumes(turns))
    def give_back(self, turn: Turn) -> Turn:
        found = turn.found
        if found is None or turn.gave_back:
            return turn
        accepted = step(self.ledger.give_back(found))
        if found.handle is None:
            assert not accepted
            return turn
        known = self.handles[found.handle.params]
        line = self.lines[found.branch]
        expected = (line.moves, line.ends) == (turn.moves, turn.ends) and known.deadline_s > self.clock.now_s
        assert accepted is expected or (self.forgets and not accepted)
        known.free = accepted and found.handle.params not in self.left
        return replace(turn, gave_back=True)

    @rule(
        turn=consumes(turns),
        ttl_s=st.sampled_from([None, 0.0, 5.0, 50.0, 500.0]),
        finish=st.sampled_from(Finish),
        owner=st.sampled_from([b"", b"one", b"two"]),
    )
    def put(self, turn: Turn, ttl_s: float | None, finish: Finish, owner: bytes) -> None:
        depth, found = len(turn.history), turn.found
        handle = None if ttl_s is None else handle_of(100 * depth, self.clock.now_s + ttl_s)
        trace = replace(Play(self.ledger, self.clock).trace(depth), finish=finish)
        put = Put(keys_of(*turn.history), found, trace, handle, owner=owner, began_s=turn.began_s)
        branch = step(self.ledger.put(put))
        is_over = turn.began_s < self.ended_s.get(owner, 0.0)
        moves_on = (
            found is not None
            and found.relation is Relation.EXTENSION
            and self.lines[found.branch].moves == turn.moves
            and self.lines[found.branch].ends == turn.ends
        )
        if branch in self.lines:
            assert found is not None
            assert branch == found.branch
            assert moves_on
            for known in self.handles.values():
                if known.branch == branch and known.deadline_s <= self.clock.now_s:
                    known.free = False  # dropped without a word
            assert self.forgets or not any(
                known.free for known in self.handles.values() if known.branch == branch
            ), "superseded"
        else:
            assert self.forgets or not moves_on
            self.lines[branch] = Line((), 0)
        line = self.lines[branch]
        self.lines[branch] = Line(turn.history, line.moves + 1, b"" if is_over else owner, line.ends)
        self.histories.append(turn.history)
        if handle is not None:
            left = self.left.get(handle.params)
            if is_over and handle.deadline_s > self.clock.now_s:
                assert left is Leaving.ENDED
            else:
                assert left is None or (self.forgets and left is Leaving.EVICTED)
            self.handles[handle.params] = Known(branch, handle.deadline_s, handle.tokens, free=left is None)

    @rule(finish=st.sampled_from(Finish))
    def release(self, finish: Finish) -> None:
        candidate = step(self.ledger.oldest(DECODE, finish))
        if candidate is None:
            return
        handle = step(self.ledger.take(candidate.branch, candidate.version))
        waits = [known for known in self.handles.values() if known.free and known.branch == candidate.branch]
        assert [known.tokens for known in waits] == [candidate.tokens]
        assert (handle is not None) is self.good(waits[0])
        waits[0].free = False

    @rule(owner=st.sampled_from([b"", b"one", b"two"]))
    def end(self, owner: bytes) -> None:
        ended = step(self.ledger.end(owner))
        owned = [branch for branch, line in self.lines.items() if owner and line.owner == owner]
        if not self.forgets:
            assert (ended is not None) is bool(owned)
        if owner:
            self.ended_s[owner] = self.clock.now_s
        for handle in ended or ():
            known = self.handles[handle.params]
            assert self.good(known)
            assert self.lines[known.branch].owner == owner
        for branch in owned:
            self.lines[branch].owner = b""
            self.lines[branch].ends += 1
            for known in self.handles.values():
                if known.branch == branch:
                    known.free = False

    @rule(turn=consumes(turns))
    def fail(self, turn: Turn) -> None:
        """A turn that ended badly puts nothing; its handle is lost."""

    @rule(by_s=st.sampled_from([0.5, 5.0, 60.0]))
    def wait(self, by_s: float) -> None:
        self.clock.advance(by_s)

    @rule()
    def sweep(self) -> None:
        step(self.ledger.sweep())

    @invariant()
    def sizes_agree(self) -> None:
        stats = step(self.ledger.stats())
        assert stats.branches <= self.limits.get("max_branches", stats.branches)
        assert stats.size_bytes <= self.limits.get("max_bytes", stats.size_bytes)
        good = sum(self.good(known) for known in self.handles.values())
        pinned = step(self.ledger.pinned()).get(DECODE, Pinned(0, 0))
        assert pinned.handles == stats.handles
        good_tokens = sum(known.tokens for known in self.handles.values() if self.good(known))
        free_tokens = sum(known.tokens for known in self.handles.values() if known.free)
        assert good_tokens <= pinned.tokens <= free_tokens, "one left, and nobody was told"
        assert good <= stats.handles
        if self.forgets:
            assert stats.branches + stats.evicted_branches == len(self.lines)
        else:
            assert stats.branches == len(self.lines)
            boundaries = {history[:end] for history in self.histories for end in range(1, len(history) + 1)}
            assert stats.boundaries == len(boundaries)


class TightTurns(Turns):
    """The same, where few branches and bytes are kept, and few siblings."""

    limits: ClassVar[dict[str, Any]] = {"max_branches": 4, "max_bytes": 8_000, "max_siblings": 2}
    forgets = True


TestTurns = Turns.TestCase
TestTightTurns = TightTurns.TestCase
TestTurns.settings = TestTightTurns.settings = settings(
    max_examples=100, stateful_step_count=30, deadline=None
)
