"""What legs do to a fleet: breakers, busy nodes, and the way back. And how nodes come and go."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from router.engines.aiohttp_upstream import AiohttpUpstream
from router.engines.upstream import Broken, Upstream
from router.fleet.breaker import Rules, Verdict
from router.fleet.node import Circuit, Engine, Node, Role, State
from router.fleet.pool import Fleet, node_of
from router.fleet.probe import Fault, Probed
from router.telemetry.facts import Fact, Facts, NodeChanged

A, B = (node_of(f"http://127.0.0.1:{port}", Role.DECODE) for port in (8201, 8202))
P = node_of("http://127.0.0.1:8101", Role.PREFILL)


class World:
    """A fleet whose probes find what a test says, and whose time passes when it says so."""

    def __init__(self, *nodes: Node) -> None:
        self.now_s = 1000.0
        self.bad: set[str] = set()
        self.engines: dict[str, Engine] = {}
        self.probed: list[str] = []
        facts = Facts()
        self.heard: list[Fact] = []
        facts.subscribe(self.heard.append)
        self.fleet = Fleet(
            nodes, probe=self, facts=facts, rules=Rules(failures=2, open_s=10.0), linger_s=60.0,
            now=lambda: self.now_s,
        )  # fmt: skip

    async def __call__(self, upstream: Upstream, node: Node) -> Probed:
        self.probed.append(node.key)
        if node.origin in self.bad:
            return Probed(State.EJECTED, "no answer", Fault.TIMED_OUT)
        return Probed(State.READY, seen=self.engines.get(node.origin, Engine()))

    async def probe(self, times: int = 1) -> None:
        upstream = AiohttpUpstream()
        for _ in range(times):
            await self.fleet.refresh(upstream)
        await upstream.close()

    def ready(self, role: Role = Role.DECODE) -> set[str]:
        return {node.key for node in self.fleet.snapshot.ready(role)}

    def state(self, node: Node) -> State:
        found = self.fleet.snapshot.get(node.key)
        return State.GONE if found is None else found.state

    def fail(self, node: Node, times: int = 1) -> None:
        for _ in range(times):
            with pytest.raises(Broken), self.fleet.leg(node.key):
                raise Broken("reset")

    def changes(self, node: Node) -> list[str]:
        return [str(f.state) for f in self.heard if isinstance(f, NodeChanged) and f.node == node.key]


async def world(*nodes: Node) -> World:
    made = World(*nodes)
    await made.probe()
    return made


async def test_faults_of_legs_eject_a_node_and_one_good_leg_brings_it_back() -> None:
    w = await world(A, B)
    w.fail(A, 2)
    assert w.ready() == {B.key}
    ejected = w.fleet.snapshot.by_key[A.key]
    assert (ejected.state, ejected.reason) == (State.EJECTED, "2 legs in a row failed; the last: reset")
    await w.probe()
    assert w.ready() == {B.key}, "a good probe says nothing of legs"
    w.now_s += 10.0
    assert w.ready() == {A.key, B.key}
    with w.fleet.leg(A.key) as leg:
        assert w.ready() == {B.key}, "one leg is on trial, and no more"
        leg.answered(200)
        assert w.ready() == {A.key, B.key}
    assert w.fleet.snapshot.by_key[A.key].circuit is Circuit.CLOSED
    assert w.changes(A) == ["ready", "ejected", "ready", "ejected", "ready"]


async def test_a_leg_on_trial_that_fails_opens_again_and_one_cut_short_gives_its_place_back() -> None:
    w = await world(A, B)
    w.fail(A, 2)
    w.now_s += 10.0
    assert A.key in w.ready()
    with w.fleet.leg(A.key):
        pass  # its client left
    assert A.key in w.ready()
    w.fail(A)
    assert w.ready() == {B.key}
    w.now_s += 9.9
    assert w.ready() == {B.key}
    w.now_s += 0.1
    assert A.key in w.ready()


async def test_legs_from_before_do_not_stand_for_the_one_on_trial() -> None:
    w = await world(A, B)
    with w.fleet.leg(A.key) as old:
        w.fail(A, 2)
        w.now_s += 10.0
        assert A.key in w.ready()
        old.answered(200)
        assert w.fleet.snapshot.by_key[A.key].circuit is Circuit.HALF_OPEN


async def test_where_all_breakers_are_open_nodes_with_good_probes_are_the_last_resort() -> None:
    w = await world(A, B)
    for node in (A, B):
        w.fail(node, 2)
    assert {w.state(A), w.state(B)} == {State.EJECTED}
    assert w.ready() == {A.key, B.key}
    w.bad.add(A.origin)
    await w.probe(2)
    assert w.ready() == {B.key}, "a node that answers no probe is no resort"
    w.bad.add(B.origin)
    await w.probe(2)
    assert w.ready() == set()


async def test_a_busy_node_is_left_alone_while_another_is_not_busy() -> None:
    w = await world(A, B)
    with w.fleet.leg(A.key) as leg:
        leg.answered(503, [("retry-after", "5")])
    assert w.ready() == {B.key}
    assert w.state(A) is State.READY
    with w.fleet.leg(B.key) as leg:
        leg.answered(429)
    assert w.ready() == {A.key, B.key}, "all are busy: any will do"
    w.now_s += 1.0
    assert w.ready() == {B.key}
    w.now_s += 4.0
    assert w.ready() == {A.key, B.key}
    assert [n.busy_until_s for n in w.fleet.snapshot.nodes] == [None, None]


async def test_a_prefill_node_that_nobody_can_read_from_is_ejected_and_no_decode_node() -> None:
    """E5: after a restart survivors may keep what they knew of the old process; all probes are good."""
    bad = node_of("http://127.0.0.1:8102", Role.PREFILL)
    w = await world(A, B, P, bad)
    for turn in range(16):
        prefill, decode = (P, bad)[turn % 2], (A, B)[turn // 2 % 2]
        with w.fleet.leg(prefill.key) as leg:
            leg.answered(200)
        with w.fleet.leg(decode.key, peer=prefill.key) as leg:
            leg.answered(500 if prefill is bad else 200)
    assert w.state(bad) is State.EJECTED
    assert "read from it: status 500" in w.fleet.snapshot.by_key[bad.key].reason
    assert {w.state(node) for node in (A, B, P)} == {State.READY}


async def test_a_new_process_starts_with_a_clean_record() -> None:
    w = await world(A, B)
    w.engines[A.origin] = Engine(started_at_s=1.0)
    await w.probe()
    w.fail(A, 2)
    assert w.ready() == {B.key}
    w.engines[A.origin] = Engine(started_at_s=99.0)
    w.now_s += 3.0
    await w.probe()
    assert w.ready() == {A.key, B.key}
    assert w.fleet.snapshot.by_key[A.key].renewed_at_s == 1003.0
    assert w.fleet.snapshot.by_key[B.key].renewed_at_s is None
    w.fleet.learn(B.key, engine_id="a")
    w.fleet.learn(B.key, engine_id="b")
    assert w.fleet.snapshot.by_key[B.key].renewed_at_s == 1003.0


async def test_a_node_that_was_removed_hears_of_no_leg() -> None:
    w = await world(A, B)
    with w.fleet.leg(A.key) as leg:
        w.fleet.remove(A.key)
        leg.answered(503)
        leg.failed("late")
    w.fleet.tell(A.key, Verdict.FAULT)
    assert w.fleet.breaker(A.key) is None
    assert w.state(A) is State.GONE
    assert w.changes(A) == ["ready", "gone"]


# -- coming and going --------------------------------------------------------------------------------------


async def test_a_prefill_node_leaves_with_its_last_leg() -> None:
    w = await world(P, A)
    with w.fleet.leg(P.key):
        w.fleet.leave(P.key, "not listed any more")
        assert (w.state(P), w.ready(Role.PREFILL)) == (State.DRAINING, set())
    assert w.state(P) is State.GONE


async def test_a_decode_node_that_leaves_stays_for_what_it_holds() -> None:
    w = await world(A, B)
    w.fleet.leave(A.key, "not listed any more")
    await w.probe()
    assert w.state(A) is State.DRAINING
    assert A.key in {node.key for node in w.fleet.snapshot.readable(Role.DECODE)}
    w.bad.add(A.origin)
    await w.probe(2)
    assert w.state(A) is State.GONE, "it answers no more, and nothing can be read from it"


async def test_a_node_that_leaves_is_gone_in_time() -> None:
    w = await world(A, B)
    w.fleet.leave(A.key, "x")
    with w.fleet.leg(A.key):
        w.now_s += 59.9
        assert w.state(A) is State.DRAINING
        w.now_s += 0.1
        assert w.state(A) is State.GONE
    assert w.fleet.snapshot.nodes[0].in_flight == 0


async def test_a_node_that_comes_back_in_time_stays() -> None:
    w = await world(A)
    w.fleet.leave(A.key, "x")
    w.fleet.add(replace(A, weight=3.0, limit=7))
    w.now_s += 1000.0
    (node,) = w.fleet.snapshot.nodes
    assert (node.state, node.weight, node.limit) == (State.READY, 3.0, 7)
    w.fleet.leave(A.key, "y")
    w.fleet.undrain(A.key)
    w.now_s += 1000.0
    assert w.state(A) is State.READY


async def test_what_may_be_read_from() -> None:
    w = await world(A, B, P)

    def readable() -> set[str]:
        return {node.key for node in w.fleet.snapshot.readable(Role.DECODE)}

    changes: list[Callable[[], None]] = [
        lambda: w.fleet.drain(A.key, "x"),
        lambda: w.fail(A, 2),
        lambda: w.fleet.busy(A.key),
    ]
    for change in changes:
        change()
        assert readable() == {A.key, B.key}
    w.bad.add(A.origin)
    await w.probe()
    assert readable() == {A.key, B.key}
    await w.probe()
    assert readable() == {B.key}


async def test_an_engine_is_probed_once_for_all_nodes_that_it_stands_behind() -> None:
    ranks = [node_of(f"http://127.0.0.1:9@{rank}", Role.DECODE) for rank in (0, 1)]
    both = node_of("http://127.0.0.1:9", Role.PREFILL)
    w = await world(*ranks, both)
    assert len(w.probed) == 1
    assert {node.state for node in w.fleet.snapshot.nodes} == {State.READY}


async def test_since_says_when_a_state_began() -> None:
    w = await world(A)
    w.now_s += 5.0
    await w.probe()
    assert w.fleet.snapshot.nodes[0].since_s == 1000.0
    w.fleet.drain(A.key, "x")
    assert w.fleet.snapshot.nodes[0].since_s == 1005.0


async def test_another_process_behind_an_ejected_node_is_told_as_ready() -> None:
    w = await world(A, B)
    w.fleet.learn(A.key, engine_id="one")
    w.fail(A, 2)
    w.fleet.learn(A.key, engine_id="two")
    assert w.state(A) is State.READY
    assert w.changes(A)[-1] == State.READY


async def test_a_trial_that_does_not_end_holds_up_no_other() -> None:
    w = await world(A, B)
    w.fail(A, 2)
    w.now_s += 10.0
    with w.fleet.leg(A.key):
        assert A.key not in w.ready()
        w.now_s += 10.0
        assert A.key in w.ready()
        with w.fleet.leg(A.key) as another:
            another.answered(200)
        assert w.fleet.snapshot.by_key[A.key].circuit is Circuit.CLOSED


async def test_a_snapshot_that_was_taken_does_not_count_later_legs() -> None:
    w = await world(A)
    before = w.fleet.snapshot
    with w.fleet.leg(A.key), w.fleet.leg(A.key):
        during = w.fleet.snapshot
    after = w.fleet.snapshot
    counts = [pool.by_key[A.key].in_flight for pool in (before, during, after)]
    assert counts == [0, 2, 0]
    assert during.by_key[A.key].idle_since_s is None
    assert after.by_key[A.key].idle_since_s is not None
    assert w.fleet.snapshot is after
