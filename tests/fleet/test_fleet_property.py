"""Whatever happens to a fleet in whatever order, what it keeps of its nodes fits together."""

from contextlib import ExitStack
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from router.engines.upstream import Broken, Upstream
from router.fleet.breaker import Rules
from router.fleet.drains import DrainWish
from router.fleet.node import Circuit, Engine, Node, Role, State, node_of
from router.fleet.pool import Fleet
from router.fleet.probe import Fault, Probed
from router.telemetry.facts import Fact, Facts, NodeChanged

NODES = [node_of(f"http://n{at}", role) for at in range(3) for role in Role]
nodes = st.sampled_from(NODES)
probes = st.sampled_from(
    [
        Probed(State.READY),
        Probed(State.READY, seen=Engine(started_at_s=1.0)),
        Probed(State.READY, seen=Engine(started_at_s=99.0)),
        Probed(State.EJECTED, "broken", Fault.BROKEN),
        Probed(State.EJECTED, "refused", Fault.REFUSED),
    ]
)


async def never(upstream: Upstream, node: Node) -> Probed:
    raise NotImplementedError


class AnyFleet(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        facts = Facts()
        facts.subscribe(self.hear)
        self.heard: dict[str, str] = {}
        self.open: list[tuple[str, ExitStack, Any]] = []
        self.fleet = Fleet(
            NODES[:2], probe=never, facts=facts, rules=Rules(2, 5.0), linger_s=9.0, now=lambda: self.now_s
        )

    def hear(self, fact: Fact) -> None:
        if isinstance(fact, NodeChanged):
            self.heard[fact.node] = fact.state
            # As those who wait for a place do: whoever hears of a change looks at the fleet.
            assert isinstance(self.fleet.snapshot.nodes, tuple)

    @rule(seconds=st.floats(0.1, 12.0))
    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds

    @rule(node=nodes)
    def add(self, node: Node) -> None:
        self.fleet.add(node)
        state = self.fleet.snapshot.by_key[node.key].state
        assert state is not State.GONE

    @rule(node=nodes, how=st.sampled_from(["drain", "leave", "undrain", "remove", "busy", "hear"]))
    def decide(self, node: Node, how: str) -> None:
        match how:
            case "drain":
                self.fleet.drain(node.key, "x")
            case "leave":
                self.fleet.leave(node.key, "x")
            case "undrain":
                self.fleet.undrain(node.key)
            case "remove":
                self.fleet.remove(node.key)
            case "hear":
                why = "y" if int(self.now_s) % 2 else None
                self.fleet.hear_drains({node.key: DrainWish(self.now_s, why)})
            case _:
                self.fleet.busy(node.key, 2.0)

    @rule(node=nodes, probed=probes)
    def probe(self, node: Node, probed: Probed) -> None:
        self.fleet._take(node.key, probed)

    @rule(node=nodes, engine_id=st.sampled_from(["a", "a_dp1", "b"]))
    def learn(self, node: Node, engine_id: str) -> None:
        self.fleet.learn(node.key, engine_id=engine_id)

    @rule(node=nodes, with_handle=st.booleans())
    def begin(self, node: Node, with_handle: bool) -> None:
        stack = ExitStack()
        leg = stack.enter_context(self.fleet.leg(node.key, with_handle=with_handle))
        self.open.append((node.key, stack, leg))

    @rule(at=st.integers(0, 50), how=st.sampled_from([200, 404, 429, 500, None, "broke", "failed"]))
    def end(self, at: int, how: int | str | None) -> None:
        if not self.open:
            return
        _, stack, leg = self.open.pop(at % len(self.open))
        if isinstance(how, int):
            leg.answered(how)
        elif how == "failed":
            leg.failed("broke off")
        elif how == "broke":
            leg.broke(Broken("reset"))
        stack.close()

    @invariant()
    def it_fits_together(self) -> None:
        pool = self.fleet.snapshot
        assert set(pool.by_key) == set(self.fleet._known)
        for node in pool.nodes:
            assert node.in_flight == sum(key == node.key for key, *_ in self.open)
            breaker = self.fleet.breaker(node.key)
            assert breaker is not None
            assert breaker.circuit is node.circuit
            assert (breaker.open_until_s is not None) is (node.circuit is Circuit.OPEN)
            assert breaker.open_until_s is None or breaker.open_until_s > self.now_s, "due, and not done"
            assert node.busy_until_s is None or node.busy_until_s > self.now_s
            on_trial = any(key == node.key for key, *_ in self.open)
            assert node.circuit is not Circuit.TRYING or on_trial, "a trial that nobody is on never ends"
            if node.key in self.heard:
                assert self.heard[node.key] == node.state
        for role in Role:
            ready = pool.ready(role)
            states = {node.state for node in ready}
            assert states <= {State.READY} or states == {State.EJECTED}
            assert all(node.reachable for node in ready)
            assert {node.state for node in pool.readable(role)} <= {
                State.READY, State.DRAINING, State.EJECTED,
            }  # fmt: skip
        gone = {key for key, state in self.heard.items() if state == State.GONE}
        assert not gone & set(pool.by_key)

    def teardown(self) -> None:
        for _, stack, _ in self.open:
            stack.close()
        self.now_s += 100.0
        for node in self.fleet.snapshot.nodes:
            assert node.in_flight == 0
            assert node.circuit in (Circuit.CLOSED, Circuit.HALF_OPEN), "every breaker opens its door again"
            assert node.busy_until_s is None


TestAnyFleet = AnyFleet.TestCase
TestAnyFleet.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
