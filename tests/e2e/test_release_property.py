"""Handles are released all the time, while turns run that could use them: still no engine uses wrong KV."""

import asyncio
from dataclasses import replace
from random import Random

import pytest

from router.ledger.memory import MemoryLedger
from router.ledger.store import Handle
from router.telemetry.facts import Fact, HandleFact, Outcome
from router.turn.relay import Relay
from router.turn.releasing import Releasing
from tests.e2e.asks import Ask
from tests.e2e.play import Tally, Trouble, play
from tests.e2e.setups import Mode, Setup, drawn, pair
from tests.e2e.stage import Turn
from tests.e2e.world import World

TURNS = 120
POOLS = 4


class ReleasingWorld(World):
    """Beside each turn something is released; ``budget`` is so small that there always is something to."""

    def __init__(self, setup: Setup, random: Random, budget: float) -> None:
        super().__init__(setup)
        self.releasing = Releasing(self.context, self.context.pins, budget, per_s=1_000.0)
        self.random = random
        self.released = 0
        self.context.facts.subscribe(self._count)

    def _count(self, fact: Fact) -> None:
        if isinstance(fact, HandleFact) and fact.outcome is Outcome.RELEASED:
            self.released += 1

    async def turn(self, ask: Ask) -> Turn:
        turn, _ = await asyncio.gather(super().turn(ask), self._release())
        return turn

    async def _release(self) -> None:
        for _ in range(3):
            await asyncio.sleep(self.random.uniform(0.0, 0.3))
            sendable = await self.releasing.step()
            await asyncio.gather(*(self.releasing.send(due, prefill) for due, prefill in sendable))


class Careless(MemoryLedger):
    """Lets a handle be released, and keeps it for turns all the same."""

    async def take(self, branch: str, version: int) -> Handle | None:
        known = self._branches.get(branch)
        return known.handle if known is not None and known.version == version else None


@pytest.mark.parametrize("mode", ["engine", "router", "auto"])
def test_no_corruption_while_handles_are_released(mode: Mode, seed: int) -> None:
    tally, released = Tally(), 0
    for number in range(POOLS):
        random = Random(f"release {mode} {seed} {number}")
        setup = drawn(mode, random)
        with ReleasingWorld(setup, random, budget=random.choice((0.01, 0.05))) as world:
            world.run(play(world, random, TURNS, tally))
            released += world.released
    reused = sum(number for plan, number in tally.plans.items() if plan.startswith(("pull/", "local/")))
    assert released > TURNS / 4
    assert reused > TURNS / 20, "a run that reused nothing would prove nothing"


def test_the_run_would_tell_if_what_is_released_were_still_used(seed: int) -> None:
    """The control: a pool where release is wrong, and nothing else."""
    random = Random(f"careless {seed}")
    with ReleasingWorld(pair("engine"), random, budget=0.01) as world:
        ledger = Careless(now=world.context.now)
        world.context = replace(world.context, ledger=ledger, pins=ledger)
        world.relay = Relay(world.context)
        world.releasing.context, world.releasing.pins = world.context, ledger
        with pytest.raises(AssertionError):
            world.run(play(world, random, 10 * TURNS, Tally(), (Trouble.SHORT_PAUSE,)))
