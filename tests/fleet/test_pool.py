import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import pytest

from router.engines.aiohttp_upstream import AiohttpUpstream
from router.engines.upstream import Upstream
from router.fleet.breaker import Rules, Verdict
from router.fleet.drains import DrainWish
from router.fleet.node import Ejection, Engine, Node, Role, State
from router.fleet.pool import Fleet, node_of
from router.fleet.probe import Fault, Probed, Prober
from router.telemetry.facts import Fact, Facts, NodeChanged, TaskFailed
from tests.fleet.small_engine import SmallEngine, small_engine

ORIGIN = "http://127.0.0.1:8200"
NODE = node_of(ORIGIN, Role.DECODE)
KEY = NODE.key
READY = Probed(State.READY)
REFUSED = Probed(State.EJECTED, "refused", Fault.REFUSED)
BROKEN = Probed(State.EJECTED, "broken", Fault.BROKEN)


class Told:
    """Collects what a fleet publishes."""

    def __init__(self) -> None:
        self.facts, self.all = Facts(), list[Fact]()
        self.facts.subscribe(self.all.append)

    def changes(self) -> list[tuple[str, str]]:
        changes = [(str(fact.state), fact.reason) for fact in self.all if isinstance(fact, NodeChanged)]
        self.all.clear()
        return changes


class Script:
    """A probe that finds what the test says next; None raises."""

    def __init__(self, *probed: Probed | None) -> None:
        self.left = list(probed)

    async def __call__(self, upstream: Upstream, node: Node) -> Probed:
        probed = self.left.pop(0)
        if probed is None:
            raise RuntimeError("a fault in a probe")
        return probed


@pytest.fixture
async def upstream() -> AsyncIterator[AiohttpUpstream]:
    made = AiohttpUpstream()
    yield made
    await made.close()


@pytest.fixture
async def small() -> AsyncIterator[SmallEngine]:
    async with small_engine() as here:
        here.healthy()
        yield here


def scripted(*probed: Probed | None, node: Node = NODE) -> tuple[Fleet, Told]:
    told = Told()
    return Fleet([node], probe=Script(*probed), facts=told.facts), told


def state(fleet: Fleet) -> tuple[State, str]:
    node = fleet.snapshot.by_key[KEY]
    return node.state, node.reason


@contextmanager
def running(fleet: Fleet, upstream: Upstream, interval_s: float) -> Iterator[asyncio.Task[None]]:
    task = asyncio.ensure_future(fleet.run(upstream, interval_s=interval_s))
    try:
        yield task
    finally:
        task.cancel()


def test_legs_are_always_given_back() -> None:
    fleet, _ = scripted()

    def in_flight() -> int:
        return fleet.snapshot.by_key[KEY].in_flight

    before = fleet.snapshot
    with fleet.leg(KEY):
        with pytest.raises(LookupError), fleet.leg(KEY):
            assert in_flight() == 2
            raise LookupError("of a leg")
        assert in_flight() == 1
    assert in_flight() == 0
    assert before.by_key[KEY].in_flight == 0
    with fleet.leg("d:nowhere:1"):
        pass


def test_a_leg_outlives_its_node() -> None:
    fleet, _ = scripted()
    with ExitStack() as legs:
        legs.enter_context(fleet.leg(KEY))
        fleet.remove(KEY)
        assert fleet.snapshot.nodes == ()
        fleet.learn(KEY, stamps=True)
        fleet.add(NODE)
        assert fleet.snapshot.by_key[KEY].in_flight == 1
    assert fleet.snapshot.by_key[KEY].in_flight == 0


def test_learning() -> None:
    fleet, told = scripted()
    fleet.learn(KEY, engine_id="a_dp0", stamps=True, verifies=None)
    before = fleet.snapshot
    assert before.by_key[KEY].engine == Engine(engine_id="a_dp0", stamps=True)
    fleet.learn(KEY, engine_id="a_dp0", stamps=True)
    assert fleet.snapshot is before
    fleet.learn(KEY, engine_id="a_dp1", stream_handle=False)
    assert fleet.snapshot.by_key[KEY].engine == Engine(engine_id="a_dp1", stamps=True, stream_handle=False)
    assert told.changes() == []
    fleet.learn(KEY, engine_id="b", verifies=True)
    assert fleet.snapshot.by_key[KEY].engine == Engine(engine_id="b", verifies=True)
    assert told.changes() == [("starting", "another engine id")]
    with pytest.raises(TypeError):
        fleet.learn(KEY, no_such_thing=1)


async def test_two_failures_eject_and_one_success_brings_back(upstream: AiohttpUpstream) -> None:
    fleet, told = scripted(READY, BROKEN, READY, BROKEN, BROKEN, BROKEN, READY)
    seen = []
    for _ in range(7):
        await fleet.refresh(upstream)
        seen.append(state(fleet)[0])
    up, down = State.READY, State.EJECTED
    assert seen == [up, up, up, up, down, down, up]
    assert told.changes() == [("ready", ""), ("ejected", "broken"), ("ready", "")]


async def test_a_node_that_never_was_ready_is_starting(upstream: AiohttpUpstream) -> None:
    starting = Probed(State.STARTING, "refused", Fault.REFUSED)
    fleet, told = scripted(starting, starting, starting, READY)
    for _ in range(3):
        await fleet.refresh(upstream)
        assert state(fleet) == (State.STARTING, "refused")
    await fleet.refresh(upstream)
    assert told.changes() == [("starting", "refused"), ("ready", "")]


async def test_probes_do_not_undo_what_was_decided(upstream: AiohttpUpstream) -> None:
    fleet, told = scripted(READY, READY, BROKEN, BROKEN)
    await fleet.refresh(upstream)
    fleet.drain(KEY, "by an operator")
    for _ in range(3):
        await fleet.refresh(upstream)
    assert state(fleet) == (State.DRAINING, "by an operator")
    assert told.changes() == [("ready", ""), ("draining", "by an operator")]
    fleet.undrain(KEY)
    assert state(fleet) == (State.EJECTED, "broken"), "what probes said meanwhile counts"


async def test_what_an_operator_told_another_router_counts_here(upstream: AiohttpUpstream) -> None:
    fleet, _ = scripted(READY)
    await fleet.refresh(upstream)
    later_s = time.monotonic() + 60.0
    fleet.hear_drains(
        {KEY: DrainWish(later_s, "by an operator"), "p:gone:1": DrainWish(later_s, "by an operator")}
    )
    assert state(fleet) == (State.DRAINING, "by an operator")
    fleet.hear_drains({KEY: DrainWish(later_s - 1.0, None)})
    assert state(fleet) == (State.DRAINING, "by an operator"), "an older wish"
    fleet.hear_drains({KEY: DrainWish(later_s + 1.0, None)})
    assert state(fleet) == (State.READY, "")
    fleet.leave(KEY, "not listed")
    fleet.hear_drains({KEY: DrainWish(later_s + 2.0, None)})
    assert KEY not in {node.key for node in fleet.snapshot.nodes} or state(fleet)[0] is State.DRAINING, (
        "what its source wants is no operator's to lift"
    )


async def test_what_turns_learn_while_a_probe_runs_stays(upstream: AiohttpUpstream) -> None:
    class Slow:
        async def __call__(self, upstream: Upstream, node: Node) -> Probed:
            fleet.learn(KEY, engine_id="e", stamps=True)
            return Probed(State.READY, seen=Engine(block_size=16))

    fleet = Fleet([NODE], probe=Slow(), facts=Facts())
    await fleet.refresh(upstream)
    assert fleet.snapshot.by_key[KEY].engine == Engine(block_size=16, engine_id="e", stamps=True)


@pytest.mark.parametrize(
    ("between", "first", "second", "kept"),
    [
        ((), 1000.0, 1000.0, True),
        ((), 1000.0, 2000.0, False),
        ((), None, None, True),
        ((BROKEN, BROKEN), None, None, True),
        ((REFUSED, REFUSED), None, None, False),
        ((REFUSED,), None, None, False),
        ((REFUSED, REFUSED), 1000.0, 1000.0, False),
        ((REFUSED, REFUSED), 1000.0, 2000.0, False),
    ],
)
async def test_a_new_process_has_taught_nothing(
    upstream: AiohttpUpstream,
    between: tuple[Probed, ...],
    first: float | None,
    second: float | None,
    kept: bool,
) -> None:
    seen = Engine(version="0.32.0", block_size=16)
    fleet, told = scripted(
        Probed(State.READY, seen=replace(seen, started_at_s=first)),
        *between,
        Probed(State.READY, seen=replace(seen, started_at_s=second)),
    )
    await fleet.refresh(upstream)
    fleet.learn(KEY, engine_id="e", stamps=True, verifies=True, stream_handle=True, push_mode=True)
    for _ in range(len(between) + 1):
        await fleet.refresh(upstream)
    engine = fleet.snapshot.by_key[KEY].engine
    assert (engine.engine_id, engine.stamps, engine.push_mode) == (
        ("e", True, True) if kept else (None, None, False)
    )
    assert (engine.version, engine.block_size, engine.started_at_s) == ("0.32.0", 16, second)
    assert any("another process" in reason for _, reason in told.changes()) is not kept


async def test_the_refresh_survives_a_fault_of_its_own(upstream: AiohttpUpstream) -> None:
    fleet, told = scripted(None, READY)
    await fleet.refresh(upstream)
    (fact,) = told.all
    assert isinstance(fact, TaskFailed)
    assert "a fault in a probe" in fact.error
    assert state(fleet)[0] is State.STARTING
    await fleet.refresh(upstream)
    assert state(fleet)[0] is State.READY


async def test_running_probes_at_once_and_again_and_takes_in_new_nodes(
    upstream: AiohttpUpstream, small: SmallEngine
) -> None:
    told = Told()
    fleet = Fleet.of([], [small.origin], facts=told.facts)
    async with small_engine() as second:
        second.healthy()
        with running(fleet, upstream, 0.01):
            await small.until_asked("/health", 3)
            fleet.add(node_of(second.origin, Role.PREFILL))
            await second.until_asked("/metrics", 2)
        assert [node.engine.block_size for node in fleet.snapshot.ready(Role.PREFILL)] == [128]
        assert [node.engine.models for node in fleet.snapshot.ready(Role.DECODE, "lora")] == [
            ("tiny", "lora")
        ]
    assert not [fact for fact in told.all if isinstance(fact, TaskFailed)]


async def test_a_silent_node_holds_up_no_other(upstream: AiohttpUpstream, small: SmallEngine) -> None:
    async with small_engine() as silent:
        fleet = Fleet.of([silent.origin], [small.origin], facts=Facts(), probe=Prober())
        # An hour's interval would be too long; a node is left alone while its probe runs.
        with running(fleet, upstream, 0.01):
            await small.until_asked("/health", 5)
        assert sum("/health" in one.line for one in silent.seen) == 1


async def test_cancelling_stops_it_with_a_probe_under_way(upstream: AiohttpUpstream) -> None:
    async with small_engine() as silent:
        fleet = Fleet.of([], [silent.origin], facts=Facts())
        with running(fleet, upstream, 3600.0) as task:
            await silent.until_asked("/health", 1)
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 10)
        assert upstream.open_calls() == {}


async def test_what_time_alone_changes_is_done_while_nobody_looks(upstream: AiohttpUpstream) -> None:
    told, changed = Told(), asyncio.Event()
    told.facts.subscribe(lambda fact: changed.set() if "on trial" in getattr(fact, "reason", "") else None)
    fleet = Fleet([NODE], probe=Script(READY), facts=told.facts, rules=Rules(1, 0.02))
    with running(fleet, upstream, 3600.0):
        async with asyncio.timeout(10):
            while state(fleet)[0] is not State.READY:
                await asyncio.sleep(0.001)
            fleet.tell(KEY, Verdict.FAULT, "reset")
            # The next probe is an hour away, and those who wait for a node do not look: they are told.
            await changed.wait()
    assert told.changes()[-2:] == [
        ("ejected", "1 legs in a row failed; the last: reset"),
        ("ready", "on trial; before: 1 legs in a row failed; the last: reset"),
    ]


@pytest.mark.parametrize(
    ("fault", "ejection"),
    [
        (Fault.REFUSED, Ejection.PROBE_REFUSED),
        (Fault.TIMED_OUT, Ejection.PROBE_TIMED_OUT),
        (Fault.STATUS, Ejection.PROBE_STATUS),
        (Fault.BROKEN, Ejection.PROBE_BROKEN),
    ],
)
async def test_probes_that_eject_are_told_once_with_what_they_came_to(
    fault: Fault, ejection: Ejection, upstream: AiohttpUpstream
) -> None:
    failed = [Probed(State.EJECTED, f"failure {number}", fault) for number in range(4)]
    fleet, told = scripted(READY, *failed, READY)
    for _ in range(6):
        await fleet.refresh(upstream)
    changes = [fact for fact in told.all if isinstance(fact, NodeChanged)]
    assert [(fact.state, fact.ejection) for fact in changes if fact.ejection] == [("ejected", ejection)]


async def test_a_breaker_that_ejects_is_told_each_time_it_opens(upstream: AiohttpUpstream) -> None:
    told, clock = Told(), [0.0]
    probe = Script(READY)
    fleet = Fleet([NODE], probe=probe, facts=told.facts, rules=Rules(2, 10.0), now=lambda: clock[0])
    await fleet.refresh(upstream)
    for _ in range(2):
        fleet.tell(KEY, Verdict.FAULT, "reset")
    clock[0] = 11.0
    assert state(fleet)[0] is State.READY
    with fleet.leg(KEY) as leg:
        leg.failed("again")
    ejections = [fact.ejection for fact in told.all if isinstance(fact, NodeChanged) and fact.ejection]
    assert ejections == [Ejection.LEGS_IN_A_ROW, Ejection.TRIAL]


def test_whether_nodes_have_limits_is_known_from_the_begin_and_when_one_comes() -> None:
    fleet, _ = scripted()
    before = fleet.has_limits
    fleet.add(replace(NODE, limit=2))
    assert (before, fleet.has_limits) == (False, True)
    assert fleet.snapshot.by_key[KEY].limit == 2
    assert scripted(node=replace(NODE, limit=1))[0].has_limits
