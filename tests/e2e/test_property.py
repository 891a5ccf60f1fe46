"""Whatever clients do and engines suffer, no engine uses wrong KV, and no answer is a wrong one.

A right answer is what a single engine gives that reuses nothing. In the short form of ``make test`` the runs
are bounded and the same every time; ``make property`` runs them at full length. ``BOOMERANG_TURNS`` is the
number of turns per mode, ``BOOMERANG_SEED`` the seed, or ``random``.
"""

import os
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.e2e.asks import Ask
from tests.e2e.conftest import DEFAULT_TURNS, turns_wanted
from tests.e2e.conversations import LIKELY, Agent, Move, habits
from tests.e2e.naive import NaiveHandOver
from tests.e2e.play import HARMLESS, Tally, Trouble, clients, make_trouble, run, wave
from tests.e2e.setups import Mode, drawn, pair
from tests.e2e.world import World

MODES: tuple[Mode, ...] = ("engine", "router", "auto")
_CHANCE = st.integers(0, 2**32 - 1)
_WHO = st.integers(0, 3)


class RouterMachine(RuleBasedStateMachine):
    """Clients and troubles, move by move, so that a failure shrinks to the moves that matter."""

    def __init__(self) -> None:
        super().__init__()
        self.world: World | None = None

    @initialize(mode=st.sampled_from(MODES), traits=_CHANCE)
    def pool(self, mode: Mode, traits: int) -> None:
        random = Random(traits)
        self.world = World(drawn(mode, random))
        self.clients = clients(random, 4)
        self.disturbed = False

    @rule(who=_WHO, move=st.sampled_from(Move), chance=_CHANCE)
    def move(self, who: int, move: Move, chance: int) -> None:
        self._wave([(who, move)], chance)

    @rule(who=_WHO, chance=_CHANCE)
    def grow(self, who: int, chance: int) -> None:
        self._wave([(who, Move.GROW)], chance)

    @rule(first=_WHO, second=_WHO, move=st.sampled_from(Move), chance=_CHANCE)
    def together(self, first: int, second: int, move: Move, chance: int) -> None:
        self._wave([(first, Move.GROW), (second, move)] if first != second else [(first, move)], chance)

    @rule(trouble=st.sampled_from(Trouble), chance=_CHANCE)
    def trouble(self, trouble: Trouble, chance: int) -> None:
        world = self._world()
        world.run(make_trouble(world, trouble, Random(chance)))
        self.disturbed = self.disturbed or trouble not in HARMLESS

    def _wave(self, moves: list[tuple[int, Move]], chance: int) -> None:
        world, random = self._world(), Random(chance)
        movers = [(self.clients[who], move) for who, move in moves]
        world.run(wave(world, movers, random, disturbed=self.disturbed, tally=Tally()))
        world.pause(random.uniform(0.0, 4.0))
        world.calm()
        self.disturbed = False

    def _world(self) -> World:
        assert self.world is not None
        return self.world

    def teardown(self) -> None:
        if self.world is not None:
            self.world.__exit__()


# The same examples every time, unless a seed is asked for; more of them where the run is a long one.
RouterMachine.TestCase.settings = settings(
    max_examples=25 if turns_wanted() <= DEFAULT_TURNS else 200,
    stateful_step_count=30,
    deadline=None,
    derandomize="BOOMERANG_SEED" not in os.environ,
    database=None,
    suppress_health_check=list(HealthCheck),
)
TestRouter = RouterMachine.TestCase


@pytest.mark.parametrize("mode", MODES)
def test_no_corruption_in_many_turns(mode: Mode, turns: int, seed: int, say: Callable[[str], None]) -> None:
    tally = run(mode, seed, turns)
    say(tally.line(f"{mode} (seed {seed})"))
    assert tally.turns >= turns
    assert tally.corruptions == 0
    # A run that reused nothing would prove nothing.
    reused = sum(number for plan, number in tally.plans.items() if plan.startswith(("pull/", "local/")))
    assert reused > turns / 20
    assert tally.reused_share > 0.2


def test_lineage_mode_corrupts_and_the_run_sees_it(seed: int, say: Callable[[str], None]) -> None:
    """The control: equal messages are not equal tokens, and this test would tell."""
    tally = run("lineage", seed, 600, strict=False)
    say(tally.line(f"lineage (seed {seed}), a control"))
    assert tally.corruptions > 0


def test_a_hand_over_by_conversation_id_corrupts(seed: int, say: Callable[[str], None]) -> None:
    """The control that owes nothing to our router: one conversation, one handle, no verification."""
    random = Random(seed)
    with World(pair("router", reasoning=True, retokenise=0.3)) as world:
        prefill, decode = world.engines
        naive = NaiveHandOver(world.upstream, prefill, decode)
        agents = [Agent(habits(random), f"session-{at}") for at in range(6)]
        while naive.turns < 200:
            agent = random.choice(agents)
            for sent in agent.moves(random.choice(LIKELY), random):
                world.run(naive.turn(sent.ask))
                _, spoken = world.run(world.reference.answer(sent.ask))
                agent.heard(sent, spoken, random)
        kinds = {record.kind for record in world.corruptions}
        say(f"by conversation id: {naive.turns} turns, {len(world.corruptions)} corruptions, a control")
    assert "foreign_kv" in kinds or "bad_trim" in kinds


def test_the_comparison_of_answers_sees_wrong_kv(seed: int) -> None:
    """The second net: were corruption not counted, wrong text would still be seen."""
    random = Random(seed)
    told: set[bool] = set()
    with World(pair("lineage", retokenise=1.0, version="0.33.0")) as world:
        agent = Agent(habits(random), "session")
        for _ in range(40):
            for sent in agent.moves(Move.GROW, random):
                turn = world.run(world.turn(Ask(sent.ask.path, sent.ask.body, "acme", "session")))
                _, spoken = world.run(world.reference.answer(sent.ask))
                if turn.well:
                    told.add(turn.spoken == spoken)
                agent.heard(sent, spoken, random)
    assert told == {True, False}
