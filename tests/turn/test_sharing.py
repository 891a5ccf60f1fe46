"""Routers that share a ledger tell each other what they have learned; each is a router as it is wired."""

import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence

import msgspec
import pytest

from router.app import Router, build
from router.fleet.drains import LIFTED_KEPT_S
from router.fleet.node import State
from router.ledger.store import Finish, LedgerUnavailable, Note
from router.settings import Settings
from router.sim.upstream import SimUpstream
from router.turn.sharing import DRAINS_HEARD_S, Sharing
from tests.ledger import servers
from tests.ledger.servers import Server

P, D = "p:p:8000", "d:d:8000"


@pytest.fixture
def own() -> Iterator[Server]:
    servers.needed()
    with servers.server() as one:
        yield one


@contextlib.asynccontextmanager
async def routers(url: str) -> AsyncIterator[tuple[Router, Router]]:
    """Two of one pool, whose stores have all the time that they want."""
    settings = Settings(
        prefill=("http://p:8000",),
        decode=("http://d:8000",),
        store=url,
        store_timeout_s=10.0,
        store_connect_timeout_s=10.0,
    )
    one, two = (build(settings, upstream=SimUpstream({})) for _ in range(2))
    try:
        yield one, two
    finally:
        for router in (one, two):
            await router.context.ledger.close()


async def exchange(*of: Router) -> None:
    """What happens every few seconds: each tells what it knows, and hears the others."""
    for router in (*of, *of):
        assert router.sharing is not None
        await router.sharing.step()


def state(router: Router) -> tuple[State, str]:
    node = router.context.fleet.snapshot.by_key[P]
    return node.state, node.reason


async def test_an_operators_drain_holds_at_every_router(own: Server) -> None:
    async with routers(own.url) as (one, two):
        one.context.fleet.drain(P, "drained by an operator")
        await exchange(one, two)
        assert state(two) == (State.DRAINING, "drained by an operator")
        two.context.fleet.undrain(P)
        await exchange(one, two)
        assert state(one)[0] is State.STARTING


async def test_what_one_doubts_the_other_does_not_trust(own: Server) -> None:
    async with routers(own.url) as (one, two):
        doubts, now_s = one.context.doubts, one.context.now()
        doubts.cool(P, D, now_s)
        doubts.mistrust("m", now_s)
        doubts.taint("http://p:8000", "engine-a")
        await exchange(one, two)
        others, now_s = two.context.doubts, two.context.now()
        assert others.cooling(now_s) == {(P, D)}
        assert others.mistrusts("m", now_s)
        salt = doubts.salt("http://p:8000", "engine-a")
        assert others.salt("http://p:8000", "engine-a") == salt is not None


async def test_a_doubt_about_an_engine_that_has_ended_does_not_come_back(own: Server) -> None:
    async with routers(own.url) as (one, two):
        for router in (one, two):
            router.context.fleet.learn(P, engine_id="a")
        one.context.doubts.taint("http://p:8000", "a")
        await exchange(one, two)
        assert two.context.doubts.tainted == ("http://p:8000",)
        for router in (one, two):
            # Each sees the engine's new process by itself, and forgets the doubt when it is next used.
            router.context.fleet.learn(P, engine_id="b")
            assert router.context.doubts.salt("http://p:8000", router.context.fleet.process(P)) is None
            await exchange(one, two)
        assert [router.context.doubts.tainted for router in (one, two)] == [(), ()]


async def test_silences_are_common(own: Server) -> None:
    async with routers(own.url) as (one, two):
        now_s = one.context.now()
        for second in range(600):
            one.context.gaps.ended(Finish.STOP, now_s + second)
            two.context.gaps.went_on(Finish.STOP, 0.5, now_s + second + 0.5)
        for router in (one, two):
            router.context.gaps.pass_time(now_s + 700)
        alone = one.context.gaps.returns(Finish.STOP, 0.0, 60.0)
        await exchange(one, two)
        chances = [router.context.gaps.returns(Finish.STOP, 0.0, 60.0) for router in (one, two)]
        assert alone < 0.1, "nobody has come back here"
        assert chances[0] == pytest.approx(chances[1])
        assert chances[0] > 0.9


async def test_a_store_that_is_gone_stops_nothing(own: Server) -> None:
    async with routers(own.url) as (one, _):
        own.kill()
        await exchange(one)


class Scripted:
    """A board with notes of nobody knows whom, of ``age_s`` seconds ago."""

    def __init__(self, *notes: bytes, age_s: float = 1.0) -> None:
        self.notes, self.age_s = notes, age_s

    async def exchange(self, mine: bytes) -> Sequence[Note]:
        if not self.notes:
            raise LedgerUnavailable("down")
        return [Note(value, self.age_s) for value in self.notes]


async def test_notes_that_cannot_be_read_are_passed_over(own: Server) -> None:
    async with routers(own.url) as (one, _):
        later_s = one.context.now() + 60.0
        good = msgspec.msgpack.encode([{P: (later_s, "drained")}, [], {}, {}, {}, "a later version's"])
        bad = (b"", b"\xc1", msgspec.msgpack.encode(7), msgspec.msgpack.encode([{P: "x"}]))
        await Sharing(one.context, Scripted(*bad, good, *bad)).step()
        assert state(one) == (State.DRAINING, "drained")
        await Sharing(one.context, Scripted()).step()


async def test_a_drain_that_a_router_left_behind_is_not_heard_for_ever(own: Server) -> None:
    async with routers(own.url) as (one, _):
        drained_s = one.context.now()
        note = msgspec.msgpack.encode([{P: (drained_s, "drained")}])
        await Sharing(one.context, Scripted(note, age_s=DRAINS_HEARD_S - 1.0)).step()
        assert state(one) == (State.DRAINING, "drained")
        one.context.fleet.undrain(P)
        later_s = drained_s + LIFTED_KEPT_S + 1.0
        assert one.context.fleet._drains.told(later_s) == {}, "that it was lifted is forgotten"
        await Sharing(one.context, Scripted(note, age_s=LIFTED_KEPT_S)).step()
        assert state(one)[0] is State.STARTING
