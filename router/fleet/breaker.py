"""A node's breaker: what its legs came to, and when that is reason to leave it alone. Pure.

closed ──too many faults──► open ──``open_s`` passed──► half open ──a leg is sent──► trying
   ▲                          ▲                             ▲                          │
   └──────── it went well ────┼───── a fault ───────────────┼──── busy, or cut short ──┘

* A **fault** is a 5xx, a broken or refused connection, or a time-out of ours. So many in a row open the
  breaker, or half of the newest legs: a node that breaks off every other answer is no better.
* **OK** is any other answer, a 4xx and 501 too: the engine is well, the request is not.
* **Busy** is 429 and 503: no fault, and no sign of health either, so that a row of faults goes on behind it.

A decode node that cannot read what a prefill node computed answers 5xx, and nothing in that says which of
the two is to blame (after a restart, survivors may keep what they knew of the old process). So such a fault
counts for both, with the *peer* that it was seen with, and opens a breaker only if it was seen with several
peers, or with all there were: of a prefill node that no decode node can read from, the faults have one peer
at each decode node, and many at the prefill node.

A trial that takes longer than ``open_s`` holds up no other: the breaker is half open again meanwhile.

Only the leg on trial decides between trying and its ways out. Legs from before the breaker opened, which may
end much later, tell of another time.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from router.fleet.node import Circuit, Ejection
from router.values import value

WINDOW_LEGS: Final = 20
"""How many of the newest legs the share of faults is taken of."""
WINDOW_S: Final = 60.0
"""How old they may be."""
FAULT_SHARE: Final = 0.5


class Verdict(StrEnum):
    """What a leg says of the node that it went to."""

    OK = "ok"
    BUSY = "busy"
    FAULT = "fault"


@dataclass(frozen=True, slots=True)
class Rules:
    """When a breaker opens, and for how long: settings ``breaker_failures`` and ``breaker_open_s``."""

    failures: int = 5
    """Faults in a row; also the fewest that a share can be taken of."""
    open_s: float = 10.0


@value
class Breaker:
    """One node's. Times are seconds on the caller's clock."""

    circuit: Circuit = Circuit.CLOSED
    why: str = ""
    """Why it opened; stays until it closes."""
    in_a_row: int = 0
    newest: tuple[tuple[float, bool, str], ...] = ()
    """When each of the newest legs ended, whether it was a fault, and the peer that may be to blame."""
    open_until_s: float | None = None
    trying_until_s: float | None = None
    """When another leg gets a trial, should the one that has it still run."""
    trips: int = 0
    """How often it has opened."""
    opened_by: Ejection | None = None
    """How it opened; None where it is closed."""

    @property
    def due_s(self) -> float | None:
        """When time alone makes it half open; None where it does not."""
        return self.open_until_s if self.circuit is Circuit.OPEN else self.trying_until_s


def judged(
    breaker: Breaker,
    verdict: Verdict,
    now_s: float,
    rules: Rules,
    *,
    why: str = "",
    peer: str = "",
    on_trial: bool = False,
) -> Breaker:
    """The breaker after a leg's verdict.

    ``peer`` is the node that it may be due to instead. ``on_trial``: it is the leg that was let through half
    open.
    """
    if breaker.circuit is not Circuit.CLOSED:
        if not on_trial or breaker.circuit is Circuit.OPEN:
            return breaker
        if verdict is Verdict.OK:
            return Breaker(trips=breaker.trips)
        if verdict is Verdict.BUSY:
            return untried(breaker)
        return _opened(breaker, now_s, rules, Ejection.TRIAL, f"the leg on trial failed: {why}")
    if verdict is Verdict.BUSY:
        return breaker
    fault = verdict is Verdict.FAULT
    recent = breaker.newest
    if recent and now_s - recent[0][0] > WINDOW_S:  # the first is the oldest
        recent = tuple(entry for entry in recent if now_s - entry[0] <= WINDOW_S)
    newest = (*recent[1 - WINDOW_LEGS :], (now_s, fault, peer))
    in_a_row = breaker.in_a_row + 1 if fault else 0
    # After every leg, and ``replace`` takes several times as long.
    moved = Breaker(
        breaker.circuit, breaker.why, in_a_row, newest, breaker.open_until_s, breaker.trying_until_s,
        breaker.trips, breaker.opened_by,
    )  # fmt: skip
    if not fault or not _own(newest):
        return moved
    faults = sum(failed for _, failed, _ in newest)
    if in_a_row >= rules.failures:
        last = f"failed; the last: {why}"
        return _opened(moved, now_s, rules, Ejection.LEGS_IN_A_ROW, f"{in_a_row} legs in a row {last}")
    if len(newest) >= 2 * rules.failures and faults >= FAULT_SHARE * len(newest):
        last = f"failed; the last: {why}"
        return _opened(moved, now_s, rules, Ejection.LEGS_SHARE, f"{faults} of {len(newest)} legs {last}")
    return moved


def _own(newest: tuple[tuple[float, bool, str], ...]) -> bool:
    """Whether faults are the node's own: seen without a peer, with several, or with every one there was."""
    failing = {peer for _, fault, peer in newest if fault}
    return "" in failing or len(failing) > 1 or {peer for *_, peer in newest if peer} <= failing


def due(breaker: Breaker, now_s: float) -> Breaker:
    """The breaker at a later time: half open once it was open, or a leg on trial, for long enough."""
    if breaker.circuit not in (Circuit.OPEN, Circuit.TRYING):
        return breaker
    return breaker if breaker.due_s is not None and now_s < breaker.due_s else _half_open(breaker)


def tried(breaker: Breaker, now_s: float, rules: Rules) -> Breaker:
    """The breaker as a leg is sent: the first through a half open one is on trial.

    A trial can be an answer of minutes, or one that never comes: after ``open_s`` another leg gets one.
    """
    if breaker.circuit is not Circuit.HALF_OPEN:
        return breaker
    return replace(breaker, circuit=Circuit.TRYING, trying_until_s=now_s + rules.open_s)


def untried(breaker: Breaker) -> Breaker:
    """The breaker after a leg on trial that told nothing: its client left, or the node was busy."""
    return _half_open(breaker) if breaker.circuit is Circuit.TRYING else breaker


def _half_open(breaker: Breaker) -> Breaker:
    return replace(breaker, circuit=Circuit.HALF_OPEN, open_until_s=None, trying_until_s=None)


def _opened(breaker: Breaker, now_s: float, rules: Rules, by: Ejection, why: str) -> Breaker:
    until_s = now_s + rules.open_s
    return Breaker(Circuit.OPEN, why, open_until_s=until_s, trips=breaker.trips + 1, opened_by=by)
