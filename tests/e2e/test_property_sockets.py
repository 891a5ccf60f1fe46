"""The property of ``test_property`` over real sockets: served router, HTTP client, engines on ports."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from router.sim.config import EngineConfig
from tests.e2e.asks import ADAPTER
from tests.e2e.play import Tally, play
from tests.e2e.setups import Mode, Setup, drawn, pair
from tests.e2e.sockets import SOCKET_TROUBLES, stage_over_sockets

TURNS_PER_POOL = 34


def _lasting(setup: Setup) -> Setup:
    """Handles outlive a slow machine's test; expiry is a matter for virtual time."""

    def lasting(config: EngineConfig) -> EngineConfig:
        return replace(config, ttl_s=600.0)

    return replace(
        setup,
        prefills=tuple(map(lasting, setup.prefills)),
        decodes=tuple(map(lasting, setup.decodes)),
        ttl_s=600.0,
        margin_s=20.0,
    )


@pytest.mark.parametrize("mode", ["engine", "router"])
async def test_no_corruption_over_sockets(
    mode: Mode, socket_turns: int, seed: int, say: Callable[[str], None]
) -> None:
    tally, number = Tally(), 0
    usual = pair(mode, version="0.33.0", reasoning=True, retokenise=0.1, adapters=(ADAPTER,))
    while tally.turns < socket_turns:
        random = Random(f"sockets {mode} {seed} {number}")
        # The first pool is one where reuse is the rule: some that are drawn can reuse next to nothing.
        setup = drawn(mode, random) if number else usual
        async with stage_over_sockets(_lasting(setup)) as stage:
            wanted = min(TURNS_PER_POOL, socket_turns - tally.turns)
            await play(stage, random, wanted, tally, SOCKET_TROUBLES)
        number += 1
    say(tally.line(f"{mode} over sockets (seed {seed})"))
    reused = sum(number for plan, number in tally.plans.items() if plan.startswith(("pull/", "local/")))
    assert reused > 0
