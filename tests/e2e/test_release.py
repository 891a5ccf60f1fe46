"""Pins over a whole router: the budget is kept, ends are heard, and nothing that is read is released."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from hashlib import blake2b

import msgspec
import pytest

from router.ledger.store import LedgerUnavailable
from router.sim.engine import SimEngine
from router.sim.faults import Fault
from router.telemetry.facts import Fact, HandleFact, LegFailed, Outcome, UsageAfterRelease
from router.turn.custody import Custody
from router.turn.ending import end_conversation
from router.turn.release import Cause
from router.turn.releasing import CONFIRM_S, PRESSING_S, RIDE_WAIT_S, Releasing
from router.turn.request import Endpoint, read_request
from router.turn.situate import look_up
from tests.e2e.asks import CHAT, MODEL, Ask, Message, passage
from tests.e2e.setups import Setup, pair
from tests.e2e.stage import Turn
from tests.e2e.world import World

TENANT = "acme"


class Pool:
    """A world with its releasing, and what it told."""

    def __init__(self, setup: Setup, budget: float = 0.5, per_s: float = 20.0) -> None:
        self.world = World(setup)
        context = self.world.context
        self.releasing = Releasing(context, context.pins, budget, per_s)
        self.told: list[Fact] = []
        context.facts.subscribe(self.told.append)

    @property
    def decode(self) -> SimEngine:
        (engine,) = self.world.decodes
        return engine

    @property
    def pinned(self) -> int:
        """Tokens that D itself says are pinned."""
        return self.decode.pins.tokens

    def turn(
        self,
        messages: Sequence[Message],
        *,
        conversation: str = "",
        headers: tuple[tuple[str, str], ...] = (),
        **body: object,
    ) -> Turn:
        if conversation:
            headers = (*headers, ("x-session-id", conversation))
        ask = Ask(CHAT, {"model": MODEL, "messages": list(messages), **body}, TENANT, conversation, headers)
        turn = self.world.run(self.world.turn(ask))
        assert turn.status == 200
        return turn

    def step(self) -> int:
        """One look, and the legs that follow from it; how many these were."""

        async def run() -> int:
            sendable = await self.releasing.step()
            await asyncio.gather(*(self.releasing.send(due, prefill) for due, prefill in sendable))
            return len(sendable)

        return self.world.run(run())

    def settle(self) -> None:
        """Release until nothing is left to be."""
        for _ in range(100):
            self.world.pause(RIDE_WAIT_S)
            if not self.step() and not len(self.world.context.releases):
                return
        raise AssertionError("releases do not come to an end")

    def outcomes(self, outcome: Outcome) -> list[str]:
        return [fact.detail for fact in self.told if isinstance(fact, HandleFact) and fact.outcome is outcome]

    def clean(self, *turns: Turn) -> None:
        """Every answer is right, and no engine has used KV that was not its prompt's."""
        self.world.run(self.world.check(turns, disturbed=False))
        assert not any(engine.corruptions for engine in (*self.world.prefills, *self.world.decodes))


def question(number: int, words: int = 150) -> list[Message]:
    return [{"role": "user", "content": f"{number}: {passage(number, words)}"}]


def said(turn: Turn) -> Message:
    return {"role": "assistant", "content": turn.spoken.choices[0].content}


def small(verify: str = "engine", **engine: object) -> Setup:
    """One P and one D that a dozen conversations fill."""
    setup = pair(verify, num_blocks=300, **engine)  # type: ignore[arg-type]
    return replace(setup, prefills=(replace(setup.prefills[0], num_blocks=4_000),))


@pytest.fixture(params=["engine", "router"])
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    made = Pool(small(request.param))
    with made.world:
        yield made


# The budget


def test_the_budget_is_kept_and_the_newest_keep_their_handles(pool: Pool) -> None:
    capacity = 300 * 16
    turns = []
    for number in range(30):
        turns.append(pool.turn(question(number)))
        pool.settle()
        assert pool.pinned <= capacity * 0.5
        pool.world.pause(0.5)
    assert pool.pinned > capacity * 0.3, "what fits is kept"
    assert set(pool.outcomes(Outcome.RELEASED)) == {Cause.BUDGET}
    again = pool.turn([*question(29), said(turns[29]), {"role": "user", "content": "and?"}])
    assert again.plan in ("pull", "local")
    assert again.reused_tokens > 0
    gone = pool.turn([*question(0), said(turns[0]), {"role": "user", "content": "and?"}])
    assert (gone.plan, gone.reason) == ("cold", "released")
    pool.clean(*turns, again, gone)


def test_within_the_budget_nothing_is_released(pool: Pool) -> None:
    for number in range(3):
        pool.turn(question(number))
    pool.settle()
    assert len(pool.decode.pins.by_request) == 3
    assert pool.outcomes(Outcome.RELEASED) == []
    (state,) = pool.releasing.state()
    assert (state.tokens, state.handles) == (pool.pinned, 3)
    assert state.share == pytest.approx(pool.pinned / (300 * 16))


def test_without_a_known_capacity_nothing_is_released_for_the_budget() -> None:
    pool = Pool(small())
    with pool.world:
        fleet = pool.world.context.fleet
        node = next(node for node in fleet.snapshot.nodes if node.role == "decode")
        # As of an engine whose metrics are off.
        fleet._pool = fleet.snapshot.with_node(replace(node, engine=replace(node.engine, num_blocks=None)))
        for number in range(8):
            pool.turn(question(number))
        pool.settle()
        assert pool.outcomes(Outcome.RELEASED) == []
        assert pool.releasing.state()[0].share is None


def test_no_legs_where_none_are_wanted() -> None:
    pool = Pool(small(), per_s=0.0)
    with pool.world:
        for number in range(8):
            pool.turn(question(number))
        assert sum(pool.step() for _ in range(5)) == 0
        assert len(pool.decode.pins.by_request) == 8, "turns may still come back for them"


def test_legs_come_at_a_bounded_rate() -> None:
    pool = Pool(small(), per_s=2.0)
    with pool.world:
        for number in range(6):
            pool.turn(question(number), headers=(("x-session-final", "true"),))
        pool.world.pause(1.0)
        sent = []
        for _ in range(4):
            sent.append(pool.step())
            pool.world.pause(0.5)
        assert sent == [1, 1, 1, 1]


# Ends


def test_an_ended_conversation_pins_nothing(pool: Pool) -> None:
    turn = pool.turn(question(1), conversation="mine")
    other = pool.turn(question(2), conversation="other")
    context = pool.world.context
    tenant = blake2b(TENANT.encode(), digest_size=16).digest()
    assert pool.world.run(end_conversation(context, tenant, "nobody's")) is None
    assert pool.world.run(end_conversation(context, b"another tenant", "mine")) is None
    assert pool.world.run(end_conversation(context, None, "mine")) is None
    assert pool.world.run(end_conversation(context, tenant, "mine")) == 1
    pool.settle()
    assert len(pool.decode.pins.by_request) == 1
    assert pool.outcomes(Outcome.RELEASED) == [Cause.ENDED]
    again = pool.turn([*question(1), said(turn), {"role": "user", "content": "still there?"}])
    assert (again.plan, again.reason) == ("cold", "released")
    pool.clean(turn, other, again)


def test_a_final_turn_takes_all_of_its_conversation_along(pool: Pool) -> None:
    first = pool.turn(question(1), conversation="mine")
    branch = pool.turn(question(2), conversation="mine")
    history = [*question(1), said(first), {"role": "user", "content": "bye"}]
    last = pool.turn(history, conversation="mine", headers=(("x-session-final", "true"),))
    assert last.plan in ("pull", "local")
    pool.settle()
    assert pool.pinned == 0
    pool.clean(first, branch, last)


def test_an_end_wins_over_a_turn_that_is_under_way(pool: Pool) -> None:
    first = pool.turn(question(1), conversation="mine")
    pool.world.pause(1.0)
    tenant = blake2b(TENANT.encode(), digest_size=16).digest()
    pool.world.disturb(Fault(path=CHAT, leg="decode", delay_s=5.0), pool.world.decodes)
    history = [*question(1), said(first), {"role": "user", "content": "and?"}]
    ask = Ask(CHAT, {"model": MODEL, "messages": history}, TENANT, "mine", (("x-session-id", "mine"),))

    async def end_meanwhile() -> tuple[Turn, int | None]:
        turning = asyncio.ensure_future(pool.world.turn(ask))
        await asyncio.sleep(2.0)
        ended = await end_conversation(pool.world.context, tenant, "mine")
        return await turning, ended

    second, released = pool.world.run(end_meanwhile())
    assert (second.status, released) == (200, 0)
    assert second.plan in ("pull", "local")
    pool.settle()
    assert pool.pinned == 0
    assert Cause.ENDED in pool.outcomes(Outcome.RELEASED)
    third = pool.turn([*history, said(second), {"role": "user", "content": "still there?"}])
    assert (third.plan, third.reason) == ("cold", "released")
    pool.clean(first, second, third)


def test_an_end_wins_over_a_turn_that_fails(pool: Pool) -> None:
    """It took the handle, could not send it, and does not bring it back to a conversation that is over."""
    first = pool.turn(question(1), conversation="mine")
    pool.world.pause(1.0)
    tenant = blake2b(TENANT.encode(), digest_size=16).digest()
    history = [*question(1), said(first), {"role": "user", "content": "and?"}]
    request = read_request(
        Endpoint.CHAT, CHAT, (), msgspec.json.encode({"model": MODEL, "messages": history}), turn_id="t"
    )

    async def end_meanwhile() -> None:
        context = pool.world.context
        known = await look_up(context, request, tenant)
        assert known.found is not None
        assert known.found.handle is not None
        assert await end_conversation(context, tenant, "mine") == 0
        await Custody(known.found, context.ledger, context.facts, context.releases).close()

    pool.world.run(end_meanwhile())
    assert len(pool.world.context.releases) == 1
    pool.settle()
    assert pool.pinned == 0


def test_a_ledger_without_room_gives_back_what_it_drops() -> None:
    pool = Pool(replace(small(), max_branches=3))
    with pool.world:
        for number in range(6):
            pool.turn(question(number))
        pool.settle()
        assert len(pool.decode.pins.by_request) == 3
        assert pool.outcomes(Outcome.RELEASED) == [Cause.EVICTED] * 3


def test_a_one_shot_turn_leaves_no_pin(pool: Pool) -> None:
    turn = pool.turn(question(1), headers=(("x-boomerang-one-shot", "true"),))
    pool.settle()
    assert pool.pinned == 0
    assert pool.outcomes(Outcome.RELEASED) == [Cause.ONE_SHOT]
    received = [record for engine in (*pool.world.prefills, pool.decode) for record in engine.received]
    names = {name for record in received for name in record.headers}
    assert not {"x-boomerang-one-shot", "x-session-final"} & names
    pool.clean(turn)


# Riding along


def test_a_cold_leg_takes_one_along(pool: Pool) -> None:
    done = pool.turn(question(1), headers=(("x-session-final", "true"),))
    pool.settle()  # P has shown that it copes with handles
    ended = pool.turn(question(2), headers=(("x-session-final", "true"),))
    assert len(pool.decode.pins.by_request) == 1
    cold = pool.turn(question(3))
    assert cold.plan == "cold"
    assert len(pool.world.context.releases) == 0
    assert len(pool.decode.pins.by_request) == 1, "only that of the last turn"
    assert pool.outcomes(Outcome.RELEASED) == [Cause.ENDED, Cause.ENDED]
    again = pool.turn([*question(3), said(cold), {"role": "user", "content": "and?"}])
    assert again.reused_tokens > 0
    pool.clean(done, ended, cold, again)


def test_a_turn_survives_what_it_takes_along(pool: Pool) -> None:
    pool.turn(question(1), headers=(("x-session-final", "true"),))
    pool.settle()
    pool.turn(question(2), headers=(("x-session-final", "true"),))
    pool.world.disturb(Fault(path=CHAT, status=500, times=1), pool.world.prefills)
    turn = pool.turn(question(3))
    assert (turn.plan, turn.status) == ("cold", 200)
    assert pool.outcomes(Outcome.LOST) == ["release_failed"]
    assert pool.world.context.releases.pinned_tokens(_key(pool)) > 0, "as far as one knows"
    pool.world.pause(100.0)
    pool.step()
    assert pool.world.context.releases.pinned_tokens(_key(pool)) == 0


# Legs of its own


def test_a_leg_that_fails_is_told_once_and_rests_the_pair(pool: Pool) -> None:
    pool.turn(question(1), headers=(("x-session-final", "true"),))
    pool.turn(question(2), headers=(("x-session-final", "true"),))
    pool.world.disturb(Fault(path="/v1/completions", status=500, times=1), pool.world.prefills)
    pool.world.pause(RIDE_WAIT_S)
    pool.releasing.per_s = 1.0
    assert pool.step() == 1
    failed = [fact for fact in pool.told if isinstance(fact, LegFailed)]
    assert [(fact.role, fact.action) for fact in failed] == [("release", "given_up")]
    pool.world.pause(1.0)
    assert pool.step() == 0, "the pair rests"
    pool.world.pause(30.0)
    assert pool.step() == 1
    assert pool.outcomes(Outcome.RELEASED) == [Cause.ENDED]


def test_a_busy_prefill_node_comes_first_to_turns(pool: Pool) -> None:
    pool.turn(question(1), headers=(("x-session-final", "true"),))
    fleet = pool.world.context.fleet
    key = next(node.key for node in fleet.snapshot.nodes if node.role == "prefill")
    pool.world.pause(RIDE_WAIT_S)
    with fleet.leg(key), fleet.leg(key), fleet.leg(key), fleet.leg(key):
        assert pool.step() == 0
        pool.world.pause(PRESSING_S)
        assert pool.step() == 1, "a full decode node is worse than one token more"


def test_above_the_budget_neither_a_queue_nor_a_ride_is_waited_for() -> None:
    pool = Pool(small(), budget=0.1)
    with pool.world:
        for number in range(3):
            pool.turn(question(number))
        fleet = pool.world.context.fleet
        key = next(node.key for node in fleet.snapshot.nodes if node.role == "prefill")
        with fleet.leg(key), fleet.leg(key), fleet.leg(key), fleet.leg(key):
            assert pool.step() > 0
        assert pool.outcomes(Outcome.RELEASED)


def test_what_a_restarted_node_held_is_not_released(pool: Pool) -> None:
    pool.turn(question(1), headers=(("x-session-final", "true"),))
    pool.world.pause(5.0)
    pool.decode.restart()
    pool.world.run(pool.world.probe())
    assert pool.step() == 0
    assert len(pool.world.context.releases) == 0
    assert pool.world.context.releases.pinned_tokens(_key(pool)) == 0


def test_the_nodes_own_metric_tells_whether_it_helped(pool: Pool) -> None:
    for number in range(5):
        pool.turn(question(number), headers=(("x-session-final", "true"),))
    pool.world.run(pool.world.probe())
    pool.settle()
    pool.world.pause(CONFIRM_S)
    pool.world.run(pool.world.probe())
    pool.step()
    (told,) = [fact for fact in pool.told if isinstance(fact, UsageAfterRelease)]
    assert told.before > 0.1
    assert told.after == pytest.approx(0.0)
    assert told.released_tokens > 0


def test_the_task_runs_by_itself_and_ends(pool: Pool) -> None:
    for number in range(5):
        pool.turn(question(number), headers=(("x-session-final", "true"),))

    async def run() -> None:
        task = asyncio.ensure_future(pool.releasing.run())
        await asyncio.sleep(3.0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    pool.world.run(run())
    assert pool.pinned == 0
    pool.world.check_router()


def test_a_ledger_that_is_down_stops_nothing(pool: Pool) -> None:
    class Down:
        def __getattr__(self, name: str) -> object:
            async def fail(*_: object, **__: object) -> None:
                raise LedgerUnavailable(name)

            return fail

    pool.turn(question(1), headers=(("x-session-final", "true"),))
    pool.releasing.pins = Down()  # type: ignore[assignment]
    pool.settle()
    assert pool.pinned == 0


def _key(pool: Pool) -> str:
    return next(node.key for node in pool.world.context.fleet.snapshot.nodes if node.role == "decode")


def test_what_an_unreachable_node_holds_waits_and_lets_others_pass() -> None:
    setup = small()
    with_two = replace(setup, decodes=setup.decodes * 2)
    pool = Pool(with_two)
    with pool.world:
        for number in range(8):
            pool.turn(question(number), headers=(("x-session-final", "true"),))
        held = {engine: engine.pins.tokens for engine in pool.world.decodes}
        assert all(held.values()), "both took some"
        away, there = pool.world.decodes
        origin = next(origin for origin, engine in pool.world.upstream.engines.items() if engine is away)
        pool.world.take_down(origin)
        for _ in range(3):
            pool.world.run(pool.world.probe())
        for _ in range(20):
            pool.world.pause(RIDE_WAIT_S)
            pool.step()
        assert there.pins.tokens == 0
        assert away.pins.tokens == held[away]
        pool.world.upstream.engines[origin] = away
        pool.world.run(pool.world.probe())
        pool.settle()
        assert away.pins.tokens == 0
