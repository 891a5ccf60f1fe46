"""Many clients at once on one router, with faults, pauses and restarts in between, all from one seed."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from random import Random
from typing import Final

from router.sim.faults import Fault
from tests.e2e.conversations import LIKELY, Agent, Move, habits
from tests.e2e.prompts import Writer, writer
from tests.e2e.setups import Mode, drawn, told
from tests.e2e.stage import Stage, Turn
from tests.e2e.world import World

TURNS_PER_WORLD: Final = 150
_CLIENTS: Final = 7
_TROUBLE_RATE: Final = 0.12


class Trouble(StrEnum):
    """What goes wrong, or only passes, between two moves."""

    SHORT_PAUSE = "short_pause"
    NEAR_EXPIRY = "near_expiry"
    LATE = "late"
    PREFILL_RESTART = "prefill_restart"
    DECODE_RESTART = "decode_restart"
    PROBE = "probe"
    PULL_FAILS = "pull_fails"
    PULL_HANGS = "pull_hangs"
    PULL_CUT = "pull_cut"
    COLD_FAILS = "cold_fails"
    PREFILL_ABORTS = "prefill_aborts"
    NO_PREFILL_PARAMS = "no_prefill_params"
    DECODE_FAILS = "decode_fails"
    DECODE_REFUSES = "decode_refuses"
    STREAM_CUT = "stream_cut"
    STREAM_ERROR = "stream_error"
    PARAMS_ELSEWHERE = "params_elsewhere"
    ODD_BYTES = "odd_bytes"
    TOKENIZE_FAILS = "tokenize_fails"
    RESTART_IN_FLIGHT = "restart_in_flight"
    NODE_DOWN = "node_down"
    UPGRADE = "upgrade"
    """An engine is away for a while, and comes back as another: without a plugin, or with a prefix cache."""


HARMLESS: Final = frozenset(
    {
        Trouble.SHORT_PAUSE,
        Trouble.NEAR_EXPIRY,
        Trouble.LATE,
        Trouble.PREFILL_RESTART,
        Trouble.DECODE_RESTART,
        Trouble.PROBE,
        Trouble.PULL_FAILS,
        Trouble.PULL_HANGS,
        Trouble.PULL_CUT,
        Trouble.NO_PREFILL_PARAMS,
        Trouble.PARAMS_ELSEWHERE,
        Trouble.ODD_BYTES,
        Trouble.TOKENIZE_FAILS,
        Trouble.UPGRADE,
    }
)
"""Troubles that no client may notice: the turn is right all the same."""

_PULL, _DECODE = {"with_handle": True}, {"leg": "decode"}


async def make_trouble(stage: Stage, trouble: Trouble, random: Random) -> None:
    """Let it happen; scripted faults wait for the next request that they fit."""
    prefill, decode = random.choice(stage.prefills), random.choice(stage.decodes)
    match trouble:
        case Trouble.SHORT_PAUSE:
            stage.pause(random.uniform(0.1, 8.0))
        case Trouble.NEAR_EXPIRY:
            stage.pause(stage.setup.ttl_s - stage.setup.margin_s + random.uniform(-2.0, 12.0))
        case Trouble.LATE:
            stage.pause(random.choice((90.0, 700.0, 4_000.0)))
        case Trouble.PREFILL_RESTART:
            prefill.restart()
        case Trouble.DECODE_RESTART:
            decode.restart()
        case Trouble.PROBE:
            await stage.probe()
        case Trouble.RESTART_IN_FLIGHT:
            stage.disturb(Fault(restart=True, path="/v1"), [random.choice((prefill, decode))])
        case Trouble.UPGRADE:
            await _upgrade(stage, random)
        case Trouble.NODE_DOWN:
            stage.take_down(random.choice(list(stage.engines)))
        case _:
            fault, on_prefill = _FAULTS[trouble](random)
            stage.disturb(fault, [prefill if on_prefill else decode])


async def _upgrade(stage: Stage, random: Random) -> None:
    """As a rolling update does it, with the router's probes before and after."""
    origin = random.choice(list(stage.engines))
    engine, mixed = stage.engines[origin], stage.setup.verify == "auto"
    stage.take_down(origin)
    for _ in range(3):
        stage.pause(5.0)
        await stage.probe()
    cached = engine.config.prefix_cache
    if engine.config.role == "prefill" and random.random() < 0.3:
        cached = not cached
    plugin = engine.config.plugin != (mixed and random.random() < 0.7)
    engine.config = replace(engine.config, plugin=plugin, prefix_cache=cached)
    engine.restart()
    stage.calm()
    await stage.probe()


_FAULTS: Final[dict[Trouble, Callable[[Random], tuple[Fault, bool]]]] = {
    Trouble.PULL_FAILS: lambda _: (Fault(status=500, with_handle=True), True),
    Trouble.PULL_HANGS: lambda _: (Fault(hang=True, with_handle=True), True),
    Trouble.PULL_CUT: lambda _: (Fault(cut_after_chunks=0, with_handle=True, leg="prefill"), True),
    Trouble.COLD_FAILS: lambda _: (Fault(status=500, with_handle=False, leg="prefill"), True),
    Trouble.PREFILL_ABORTS: lambda _: (Fault(finish_reason="abort", leg="prefill"), True),
    Trouble.NO_PREFILL_PARAMS: lambda _: (Fault(params_at="none", leg="prefill"), True),
    Trouble.DECODE_FAILS: lambda r: (Fault(status=r.choice((500, 503)), path="/v1"), False),
    Trouble.DECODE_REFUSES: lambda r: (Fault(status=r.choice((400, 429)), path="/v1"), False),
    Trouble.STREAM_CUT: lambda r: (
        Fault(cut_after_chunks=r.randint(0, 6), cut_mid_event=r.random() < 0.5, path="/v1"), False
    ),
    Trouble.STREAM_ERROR: lambda r: (Fault(error_after_chunks=r.randint(0, 6), streamed=True), False),
    Trouble.PARAMS_ELSEWHERE: lambda r: (
        Fault(params_at=r.choice(("none", "last", "usage")), streamed=True, leg="decode"), False
    ),
    Trouble.ODD_BYTES: lambda r: (
        Fault(split_bytes=r.randint(1, 60), line_end=r.choice(("lf", "crlf", "cr")), streamed=True,
              extra_params={"future_key": [1]}), False
    ),
    Trouble.TOKENIZE_FAILS: lambda r: (
        Fault(path=r.choice(("/tokenize", "/v1/chat/completions/render")), status=r.choice((400, 404, 500))),
        True,
    ),
}  # fmt: skip


@dataclass(slots=True)
class Tally:
    """What a run came to."""

    turns: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0
    corruptions: int = 0
    plans: Counter[str] = field(default_factory=Counter)
    troubles: Counter[str] = field(default_factory=Counter)

    def add(self, turns: Iterable[Turn]) -> None:
        for turn in turns:
            self.turns += 1
            self.plans[f"{turn.plan}/{turn.reason}" if turn.plan else "left" if turn.left else "failed"] += 1
            self.prompt_tokens += turn.spoken.prompt_tokens or 0
            self.reused_tokens += turn.reused_tokens if turn.spoken.prompt_tokens else 0

    @property
    def reused_share(self) -> float:
        return self.reused_tokens / max(self.prompt_tokens, 1)

    def line(self, name: str) -> str:
        plans = ", ".join(f"{plan} {number}" for plan, number in self.plans.most_common())
        return (
            f"{name}: {self.turns} turns, {self.reused_share:.0%} of prompt tokens reused, "
            f"{self.corruptions} corruptions; {plans}"
        )


Client = Agent | Writer


def clients(random: Random, number: int = _CLIENTS) -> list[Client]:
    """A population: mostly chat agents, some of which share a session id."""
    made: list[Client] = []
    for at in range(number):
        if random.random() < 0.2:
            made.append(writer(random, f"prompt-{at}"))
        else:
            session = f"session-{at if random.random() < 0.8 else 0}"
            made.append(Agent(habits(random), session))
    return made


async def wave(
    stage: Stage, movers: Sequence[tuple[Client, Move]], random: Random, *, disturbed: bool, tally: Tally
) -> None:
    """One move of some clients: all their requests run together, are checked, and answered to."""
    sent = [(client, one) for client, move in movers for one in client.moves(move, random)]
    turns = await asyncio.gather(*(stage.turn(one.ask) for _, one in sent))
    await stage.check(turns, disturbed=disturbed)
    tally.add(turns)
    for (client, one), turn in zip(sent, turns, strict=True):
        if turn.well:
            client.heard(one, turn.spoken, random)


async def play(
    stage: Stage, random: Random, turns: int, tally: Tally, troubles: Sequence[Trouble] = tuple(Trouble)
) -> None:
    """Run at least ``turns`` turns. Raises AssertionError as ``Stage.check`` does."""
    population = clients(random)
    stop_at = tally.turns + turns
    while tally.turns < stop_at:
        trouble = random.choice(troubles) if random.random() < _TROUBLE_RATE else None
        if trouble is not None:
            tally.troubles[trouble] += 1
            await make_trouble(stage, trouble, random)
        movers = random.sample(population, random.choice((1, 1, 1, 2, 3)))
        stage.pause(random.uniform(0.0, 4.0))
        await wave(
            stage,
            [(client, random.choice(LIKELY)) for client in movers],
            random,
            disturbed=trouble is not None and trouble not in HARMLESS,
            tally=tally,
        )
        stage.calm()


def run(mode: Mode, seed: int, turns: int, *, strict: bool = True) -> Tally:
    """Turns on one pool after another, each with traits of its own. A failure tells how to repeat it.

    Not ``strict``: what ``Stage.check`` finds is counted in the tally and ends that pool's run.
    """
    tally = Tally()
    number = 0
    while tally.turns < turns:
        random = Random(f"{mode} {seed} {number}")
        setup = drawn(mode, random)
        with World(setup) as world:
            try:
                world.run(play(world, random, min(TURNS_PER_WORLD, turns - tally.turns), tally))
            except Exception as error:
                tally.corruptions += len(world.corruptions)
                if strict or not isinstance(error, AssertionError):
                    error.add_note(
                        f"pool {number} of seed {seed} in {mode} mode, {tally.turns} turns: {told(setup)}"
                    )
                    raise
        number += 1
    return tally
