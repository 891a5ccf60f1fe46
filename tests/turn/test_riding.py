"""What becomes of a handle that rode along, by how its leg ended."""

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from router.engines.upstream import Broken, NeverSent
from router.ledger.store import Handle
from router.telemetry.facts import Fact, Facts, HandleFact, Outcome
from router.turn.context import Context
from router.turn.release import Cause, Due, Releases
from router.turn.riding import Ride

HANDLE = Handle(b"{}", "d", "e", 300, 200, deadline_s=1e9)


class Stop:
    """A leg's carrier: the two parts of a context that riding uses, and what they were told."""

    def __init__(self) -> None:
        self.releases, facts = Releases(lambda: 0.0), Facts()
        self.heard: list[Fact] = []
        facts.subscribe(self.heard.append)
        self.context = cast(Context, SimpleNamespace(releases=self.releases, facts=facts))
        self.releases.add(HANDLE, Cause.ENDED)
        self.due: Due = next(self.releases.waiting())
        self.releases.take(self.due)


@pytest.fixture
def stop() -> Stop:
    return Stop()


def test_it_arrived(stop: Stop) -> None:
    with Ride(stop.context, stop.due) as ride:
        ride.answered(200)
    assert stop.heard == [HandleFact(Outcome.RELEASED, "d", 300, Cause.ENDED)]
    assert (len(stop.releases), stop.releases.pinned_tokens("d")) == (0, 0)


def test_a_full_engine_told_nobody(stop: Stop) -> None:
    with Ride(stop.context, stop.due) as ride:
        ride.answered(429)
    assert stop.heard == []
    assert next(stop.releases.waiting()) is stop.due


def test_what_was_not_sent_waits_again(stop: Stop) -> None:
    with pytest.raises(NeverSent), Ride(stop.context, stop.due):
        raise NeverSent("refused")
    assert stop.heard == []
    assert next(stop.releases.waiting()) is stop.due


@pytest.mark.parametrize("error", [Broken("reset"), asyncio.CancelledError()])
def test_what_may_have_arrived_is_left_alone(stop: Stop, error: BaseException) -> None:
    with pytest.raises(type(error)), Ride(stop.context, stop.due):
        raise error
    assert stop.heard == [HandleFact(Outcome.LOST, "d", 300, "release_failed")]
    assert (len(stop.releases), stop.releases.pinned_tokens("d")) == (0, 300)


@pytest.mark.parametrize("status", [400, 413, 500, None])
def test_an_error_is_no_arrival_and_not_offered_again(stop: Stop, status: int | None) -> None:
    with Ride(stop.context, stop.due) as ride:
        if status is not None:
            ride.answered(status)
    assert stop.heard == [HandleFact(Outcome.LOST, "d", 300, "release_failed")]


@pytest.mark.parametrize("error", [NeverSent("refused"), Broken("reset")])
def test_nobody_rides(stop: Stop, error: Exception) -> None:
    with Ride(stop.context, None) as ride:
        ride.answered(200)
    with pytest.raises(type(error)), Ride(stop.context, None):
        raise error
    assert stop.heard == []
    assert stop.releases.pinned_tokens("d") == 300, "what is on its way elsewhere"
