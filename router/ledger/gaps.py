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

Where several routers share a ledger, a turn may end at one and its conversation go on at another. Each counts
what it sees, and they tell each other their tables: what one counts as silent, because it went on elsewhere,
the other takes off again. So a table alone may hold less than nothing, and only the sum of all is right.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite
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


Counts = Mapping[str, tuple[tuple[float, ...], tuple[float, ...]]]
"""One router's table for the others: by kind of finish, who was silent and who came back, by step."""


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

    ``shared``: conversations come back here whose turns ended at another router, and ``hear`` is told of it.
    Raises ValueError for a horizon that is not positive.
    """

    def __init__(self, horizon_s: float = 3600.0, *, shared: bool = False) -> None:
        if not 0 < horizon_s < float("inf"):
            raise ValueError(f"horizon_s has to be a positive number, not {horizon_s}")
        self._edges = _steps(horizon_s)
        steps = len(self._edges) - 1
        self._shared = shared
        self._tables = {kind: _Table([0.0] * steps, [0.0] * steps) for kind in Finish}
        self._others = {kind: _Table([0.0] * steps, [0.0] * steps) for kind in Finish}
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
        cohort, step = self._ended_at(finish, now_s - gap_s), bisect_right(self._edges, gap_s) - 1
        # Alone, no more come back than have ended: a turn that is tried again comes back only once.
        if cohort is not None and (self._shared or cohort.away > 0) and step >= cohort.next_step:
            cohort.back[step] = cohort.back.get(step, 0) + 1

    def _ended_at(self, finish: Finish, ended_s: float) -> _Cohort | None:
        """The cohort of a turn that ended then; None where it ended at no router that is known of."""
        cohorts = self._cohorts[finish]
        for at in range(len(cohorts) - 1, -1, -1):
            if cohorts[at].until_s - SLICE_S - _ROUNDING_S <= ended_s:
                if ended_s < cohorts[at].until_s:
                    return cohorts[at]
                place = at + 1
                break
        else:
            place = 0
        if not self._shared:
            return None
        other = _Cohort((ended_s // SLICE_S + 1) * SLICE_S)
        cohorts.insert(place, other)
        return other

    def told(self) -> Counts:
        """What this router has seen, for the others."""
        return {str(kind): (tuple(table.silent), tuple(table.back)) for kind, table in self._tables.items()}

    def hear(self, others: Iterable[tuple[Counts, float]]) -> None:
        """What all others have seen, each with how many seconds ago; it takes the place of what was heard.

        A table of another horizon, or of nonsense, tells nothing.
        """
        steps = len(self._edges) - 1
        self._others = {kind: _Table([0.0] * steps, [0.0] * steps) for kind in Finish}
        for counts, age_s in others:
            factor = 0.5 ** (max(age_s, 0.0) / HALF_LIFE_S)
            for kind, table in self._others.items():
                silent, back = counts.get(str(kind), ((), ()))
                if len(silent) == len(back) == steps and all(map(isfinite, (*silent, *back))):
                    table.silent = [a + factor * b for a, b in zip(table.silent, silent, strict=True)]
                    table.back = [a + factor * b for a, b in zip(table.back, back, strict=True)]
        self._chances.clear()

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
            if self._cohorts[kind] or any(table.silent) or any(table.back):
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
        seen = {kind: self._seen(kind, step) for kind in Finish}
        silent, back = (sum(one[at] for one in seen.values()) for at in (0, 1))
        overall = (back + PRIOR * PRIOR_WEIGHT) / (silent + PRIOR_WEIGHT)
        own_silent, own_back = seen[finish]
        return (own_back + overall * PRIOR_WEIGHT) / (own_silent + PRIOR_WEIGHT)

    def _seen(self, finish: Finish, step: int) -> tuple[float, float]:
        """Who was silent at the begin of a step, and who of them came back in it, at any router."""
        ours, others = self._tables[finish], self._others[finish]
        silent = max(ours.silent[step] + others.silent[step], 0.0)
        return silent, min(max(ours.back[step] + others.back[step], 0.0), silent)
