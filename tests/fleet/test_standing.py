"""The table of a node's life, cell by cell."""

from dataclasses import replace
from itertools import product

import pytest

from router.fleet.node import Circuit, State
from router.fleet.standing import Event, Probes, Standing, Wish, after, state_of

FRESH = Standing()
GOOD = Standing(probes=Probes.GOOD)
BAD = Standing(probes=Probes.BAD, probes_why="no answer")
TRIPPED = Standing(probes=Probes.GOOD, circuit=Circuit.OPEN, circuit_why="5 in a row")

OF_WISH = {Wish.GO: State.GONE, Wish.DRAIN: State.DRAINING, Wish.LEAVE: State.DRAINING}
OF_PROBES = {Probes.UNKNOWN: State.STARTING, Probes.BAD: State.EJECTED}
OF_CIRCUIT = {
    Circuit.CLOSED: State.READY,
    Circuit.HALF_OPEN: State.READY,
    Circuit.OPEN: State.EJECTED,
    Circuit.TRYING: State.EJECTED,
}


@pytest.mark.parametrize(("wish", "probes", "circuit"), list(product(Wish, Probes, Circuit)))
def test_a_wish_comes_first_then_probes_then_the_breaker(
    wish: Wish, probes: Probes, circuit: Circuit
) -> None:
    state, reason = state_of(Standing(probes, "probes", circuit, "legs", wish, "wished"))
    expected = OF_WISH.get(wish) or OF_PROBES.get(probes) or OF_CIRCUIT[circuit]
    assert state is expected
    said = "wished" if wish in OF_WISH else "probes" if probes in OF_PROBES else "legs"
    assert said in reason or (state is State.READY and circuit is Circuit.CLOSED and reason == "probes")


starting, ready, draining, ejected, gone = State

# From each of six situations, where does each event lead?
CELLS: dict[Event, tuple[State, ...]] = {
    # from:              starting, ready, failing, tripped, drained, leaving
    Event.ADDED:         (starting, ready, ejected, ejected, draining, ready),
    Event.PROBE_GOOD:    (ready, ready, ready, ejected, draining, draining),
    Event.PROBE_BAD:     (starting, ejected, ejected, ejected, draining, draining),
    Event.OPENED:        (starting, ejected, ejected, ejected, draining, draining),
    Event.HALF_OPENED:   (starting, ready, ejected, ready, draining, draining),
    Event.TRIED:         (starting, ejected, ejected, ejected, draining, draining),
    Event.CLOSED:        (starting, ready, ejected, ready, draining, draining),
    Event.DRAINED:       (draining,) * 6,
    Event.UNDRAINED:     (starting, ready, ejected, ejected, ready, ready),
    Event.LEFT:          (draining,) * 6,
    Event.REMOVED:       (gone,) * 6,
}  # fmt: skip
SITUATIONS = (
    FRESH, GOOD, BAD, TRIPPED, after(GOOD, Event.DRAINED, "a"), after(GOOD, Event.LEFT, "b"),
)  # fmt: skip


def test_every_event_is_in_the_table() -> None:
    assert set(CELLS) == set(Event)


@pytest.mark.parametrize("event", list(Event))
@pytest.mark.parametrize("column", range(len(SITUATIONS)))
def test_a_cell(event: Event, column: int) -> None:
    assert state_of(after(SITUATIONS[column], event, "why"))[0] is CELLS[event][column]


@pytest.mark.parametrize("event", list(Event))
def test_what_is_gone_stays_gone(event: Event) -> None:
    gone = after(GOOD, Event.REMOVED, "an operator")
    assert after(gone, event, "later") == gone


@pytest.mark.parametrize("first", [Event.DRAINED, Event.LEFT])
def test_what_happens_meanwhile_counts_afterwards(first: Event) -> None:
    drained = after(FRESH, first, "for an upgrade")
    for event in (Event.PROBE_GOOD, Event.OPENED):
        drained = after(drained, event, f"by {event}")
        assert state_of(drained) == (State.DRAINING, "for an upgrade")
    assert state_of(after(drained, Event.UNDRAINED)) == (State.EJECTED, "by opened")


def test_reasons_say_what_led_to_a_state() -> None:
    assert state_of(after(FRESH, Event.PROBE_BAD, "refused")) == (State.STARTING, "refused")
    assert state_of(after(GOOD, Event.PROBE_BAD, "refused")) == (State.EJECTED, "refused")
    assert state_of(after(after(GOOD, Event.PROBE_BAD, "refused"), Event.PROBE_GOOD)) == (State.READY, "")
    half = after(TRIPPED, Event.HALF_OPENED)
    assert state_of(half) == (State.READY, "on trial; before: 5 in a row")
    assert state_of(after(half, Event.CLOSED)) == (State.READY, "")


def test_an_operators_drain_outlives_discovery_and_a_leaving_node_drains_already() -> None:
    drained = after(GOOD, Event.DRAINED, "an operator")
    assert after(drained, Event.ADDED) == drained
    leaving = after(GOOD, Event.LEFT, "not listed any more")
    assert after(leaving, Event.DRAINED, "an operator") == leaving
    assert after(drained, Event.LEFT, "x") == replace(drained, wish=Wish.LEAVE, wish_why="x")
