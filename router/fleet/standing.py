"""Where a node stands, and which state that is: the one table of a node's life. Pure.

Three things decide, and each event changes one of them:

| what | changed by |
|---|---|
| what its probes say | ``PROBE_GOOD``, ``PROBE_BAD`` |
| where its breaker is | ``OPENED``, ``HALF_OPENED``, ``TRIED``, ``CLOSED`` |
| what is wished of it | ``ADDED``, ``DRAINED``, ``UNDRAINED``, ``LEFT``, ``REMOVED`` |

A wish comes first, then probes, then the breaker:

| wish | probes | breaker | state |
|---|---|---|---|
| go | any | any | gone |
| drain, leave | any | any | draining |
| serve | none was good yet | any | starting |
| serve | fail | any | ejected |
| serve | good | open, trying | ejected |
| serve | good | closed, half open | ready |

Nothing is forgotten on the way: a node that was drained while it was ready is ready again as soon as nobody
wishes it away, and one whose probes failed meanwhile is not.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from router.fleet.node import Circuit, State


class Event(StrEnum):
    ADDED = "added"
    """Settings, discovery or an operator want it in the fleet."""
    PROBE_GOOD = "probe_good"
    PROBE_BAD = "probe_bad"
    OPENED = "opened"
    HALF_OPENED = "half_opened"
    TRIED = "tried"
    """The leg on trial was sent."""
    CLOSED = "closed"
    DRAINED = "drained"
    """An operator wants no new turns on it."""
    UNDRAINED = "undrained"
    LEFT = "left"
    """It is to go as soon as that costs nobody anything."""
    REMOVED = "removed"


class Probes(StrEnum):
    UNKNOWN = "unknown"
    """None was good yet."""
    GOOD = "good"
    BAD = "bad"


class Wish(StrEnum):
    SERVE = "serve"
    DRAIN = "drain"
    LEAVE = "leave"
    GO = "go"


@dataclass(frozen=True, slots=True)
class Standing:
    """What is so of a node, and why."""

    probes: Probes = Probes.UNKNOWN
    probes_why: str = ""
    circuit: Circuit = Circuit.CLOSED
    circuit_why: str = ""
    wish: Wish = Wish.SERVE
    wish_why: str = ""


_EVENTS: Final = {
    Circuit.OPEN: Event.OPENED,
    Circuit.HALF_OPEN: Event.HALF_OPENED,
    Circuit.TRYING: Event.TRIED,
    Circuit.CLOSED: Event.CLOSED,
}
_CIRCUITS: Final = {event: circuit for circuit, event in _EVENTS.items()}
_WISHES: Final = {
    Event.DRAINED: Wish.DRAIN,
    Event.UNDRAINED: Wish.SERVE,
    Event.LEFT: Wish.LEAVE,
    Event.REMOVED: Wish.GO,
}


def event_of(circuit: Circuit) -> Event:
    """The event that a breaker which is there now has caused."""
    return _EVENTS[circuit]


def after(standing: Standing, event: Event, why: str = "") -> Standing:
    """Where a node stands after an event. ``why`` is kept for people to read.

    A node that is gone stays gone, one that an operator drains is not taken back by discovery, and one that
    leaves drains already.
    """
    if standing.wish is Wish.GO:
        return standing
    match event:
        case Event.PROBE_GOOD:
            return replace(standing, probes=Probes.GOOD, probes_why=why)
        case Event.PROBE_BAD:
            failing = Probes.UNKNOWN if standing.probes is Probes.UNKNOWN else Probes.BAD
            return replace(standing, probes=failing, probes_why=why)
        case Event.ADDED:
            if standing.wish is Wish.LEAVE:
                return replace(standing, wish=Wish.SERVE, wish_why=why)
            return standing
        case Event.DRAINED if standing.wish is Wish.LEAVE:
            return standing
    if event in _CIRCUITS:
        kept = why or ("" if event is Event.CLOSED else standing.circuit_why)
        return replace(standing, circuit=_CIRCUITS[event], circuit_why=kept)
    return replace(standing, wish=_WISHES[event], wish_why=why)


def state_of(standing: Standing) -> tuple[State, str]:
    """The state of a node that stands so, and the reason for it."""
    if standing.wish is Wish.GO:
        return State.GONE, standing.wish_why
    if standing.wish is not Wish.SERVE:
        return State.DRAINING, standing.wish_why
    if standing.probes is Probes.UNKNOWN:
        return State.STARTING, standing.probes_why
    if standing.probes is Probes.BAD:
        return State.EJECTED, standing.probes_why
    if standing.circuit is Circuit.OPEN:
        return State.EJECTED, standing.circuit_why
    if standing.circuit is Circuit.TRYING:
        return State.EJECTED, f"a leg on trial is on its way; before: {standing.circuit_why}"
    if standing.circuit is Circuit.HALF_OPEN:
        return State.READY, f"on trial; before: {standing.circuit_why}"
    return State.READY, standing.probes_why
