"""How likely a conversation is to go on, by how long it has been silent: a life table. Pure.

A turn that ends begins a *gap*; the next turn of the conversation ends it, or nothing ever does. Gaps are
told apart by how the turn ended: a program that was asked for a tool's result answers within seconds or not
at all, people take minutes.

Time since the turn is divided into steps that double every second one. For each step the table keeps how many
conversations were silent at its beginning, and how many of them came back within it; their quotient is the
chance to come back in that step, and the chance for any span follows. Turns are counted in *cohorts* of
``SLICE_S`` seconds, and each step of a cohort is entered once the whole cohort has passed it. So those that
never return count from the first step on, releasing a handle changes nothing of what is learned, and no
conversation is remembered for it: what is kept is bounded by the horizon alone.

Old observations fade (``HALF_LIFE_S``). A kind that was seldom seen leans on all kinds together, and all of
them on ``PRIOR``.

Where several routers share a ledger, a turn may end at one and its conversation go on at another: each counts
what it sees, which comes to the same as long as a load balancer spreads turns evenly.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from router.ledger.store import Finish

FIRST_STEP_S: Final = 0.25
SLICE_S: Final = 5.0
HALF_LIFE_S: Final = 3600.0
PRIOR: Final = 0.1
"""Chance to come back within one step before anything was seen. A number of ours: with it about two of three
conversations come back within an hour."""
PRIOR_WEIGHT: Final = 2.0
"""How many observations the prior counts as, and how many a kind leans on all kinds for."""
_ROUNDING_S: Final = 1e-3
"""A turn's end is told as a time here, and as the length of a gap there."""


def _steps(horizon_s: float) -> tuple[float, ...]:
    edges = [0.0]
    at = 0
    while edges[-1] < horizon_s:
        edges.append(FIRST_STEP_S * 2 ** (at / 2))
        at += 1
    return tuple(edges)


@dataclass(slots=True)
class _Table:
    """Observations by step, each by its age."""

    silent: list[float]
    back: list[float]

    def fade(self, factor: float) -> None:
        self.silent = [count * factor for count in self.silent]
        self.back = [count * factor for count in self.back]


@dataclass(slots=True)
class _Cohort:
    """Turns of one kind that ended within one slice."""

    until_s: float
    turns: int = 0
    next_step: int = 0
    """The first step that is not entered into the table yet."""
    gone: int = 0
    """How many came back in steps that are entered."""
    back: dict[int, int] = field(default_factory=dict)
    """How many came back, by step; steps that are entered already are not kept."""

    @property
    def away(self) -> int:
        """How many have not come back."""
        return self.turns - self.gone - sum(self.back.values())


class Gaps:
    """The table. Times are seconds on one clock, whichever; ``horizon_s`` is how long a gap is followed.

    Raises ValueError for a horizon that is not positive.
    """

    def __init__(self, horizon_s: float = 3600.0) -> None:
        if not 0 < horizon_s < float("inf"):
            raise ValueError(f"horizon_s has to be a positive number, not {horizon_s}")
        self._edges = _steps(horizon_s)
        steps = len(self._edges) - 1
        self._tables = {kind: _Table([0.0] * steps, [0.0] * steps) for kind in Finish}
        self._cohorts: dict[Finish, deque[_Cohort]] = {kind: deque() for kind in Finish}
        self._faded_s: float | None = None
        self._chances: dict[Finish, tuple[float, ...]] = {}
        self.returned = dict.fromkeys(Finish, 0)
        """How many gaps have ended, by kind, since the start."""

    def ended(self, finish: Finish, now_s: float) -> None:
        """A turn ended so: a gap begins."""
        self.pass_time(now_s)
        cohorts = self._cohorts[finish]
        if not cohorts or now_s >= cohorts[-1].until_s:
            cohorts.append(_Cohort(now_s + SLICE_S))
        cohorts[-1].turns += 1

    def went_on(self, finish: Finish, gap_s: float, now_s: float) -> None:
        """A conversation goes on whose last turn ended ``gap_s`` ago, with this finish."""
        self.pass_time(now_s)
        if not 0 <= gap_s < self._edges[-1]:
            return
        self.returned[finish] += 1
        ended_s, step = now_s - gap_s, bisect_right(self._edges, gap_s) - 1
        for cohort in reversed(self._cohorts[finish]):
            if cohort.until_s - SLICE_S - _ROUNDING_S <= ended_s:
                # One that another router's turn began may come on top of those of this one.
                is_ours = ended_s < cohort.until_s and cohort.away > 0
                if is_ours and step >= cohort.next_step:
                    cohort.back[step] = cohort.back.get(step, 0) + 1
                return

    def pass_time(self, now_s: float) -> None:
        """Enter what is certain by now. Costs next to nothing while nothing is new."""
        if self._faded_s is None:
            self._faded_s = now_s
        elapsed_s = now_s - self._faded_s
        if elapsed_s < FIRST_STEP_S:
            return
        self._faded_s = now_s
        self._chances.clear()
        for kind, table in self._tables.items():
            if self._cohorts[kind] or any(table.silent):
                table.fade(0.5 ** (elapsed_s / HALF_LIFE_S))
                self._enter(self._cohorts[kind], table, now_s)

    def _enter(self, cohorts: deque[_Cohort], table: _Table, now_s: float) -> None:
        last = len(table.silent)
        for cohort in cohorts:
            while cohort.next_step < last and now_s - cohort.until_s >= self._edges[cohort.next_step + 1]:
                step = cohort.next_step
                back = cohort.back.pop(step, 0)
                table.silent[step] += cohort.turns - cohort.gone
                table.back[step] += back
                cohort.gone += back
                cohort.next_step += 1
        while cohorts and cohorts[0].next_step >= last:
            cohorts.popleft()

    def returns(self, finish: Finish, waited_s: float, left_s: float) -> float:
        """The chance, 0 to 1, that a conversation silent for ``waited_s`` goes on within ``left_s`` more."""
        chances, edges = self._chances_of(finish), self._edges
        begin_s, end_s = max(waited_s, 0.0), max(waited_s, 0.0) + max(left_s, 0.0)
        stays_away = 1.0
        for step in range(min(bisect_right(edges, begin_s), len(edges)) - 1, len(chances)):
            if edges[step] >= end_s:
                break
            overlap_s = min(end_s, edges[step + 1]) - max(begin_s, edges[step])
            stays_away *= (1.0 - chances[step]) ** (overlap_s / (edges[step + 1] - edges[step]))
        return 1.0 - stays_away

    def curves(self, within_s: float) -> Mapping[Finish, Mapping[float, float]]:
        """The chance to go on within ``within_s`` of the turn's end, by kind and by seconds of silence."""
        silences_s = (0.0, 1.0, 10.0, 60.0, 300.0)
        return MappingProxyType(
            {
                kind: {
                    silent_s: self.returns(kind, silent_s, within_s - silent_s)
                    for silent_s in silences_s
                    if silent_s < within_s
                }
                for kind in Finish
            }
        )

    def _chances_of(self, finish: Finish) -> tuple[float, ...]:
        known = self._chances.get(finish)
        if known is None:
            known = self._chances[finish] = tuple(
                self._chance(finish, step) for step in range(len(self._edges) - 1)
            )
        return known

    def _chance(self, finish: Finish, step: int) -> float:
        tables = self._tables
        silent = sum(table.silent[step] for table in tables.values())
        back = sum(table.back[step] for table in tables.values())
        overall = (back + PRIOR * PRIOR_WEIGHT) / (silent + PRIOR_WEIGHT)
        own = tables[finish]
        return (own.back[step] + overall * PRIOR_WEIGHT) / (own.silent[step] + PRIOR_WEIGHT)
