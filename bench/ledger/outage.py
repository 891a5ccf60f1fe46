"""A store that is frozen, killed and started again under load: what a turn pays, and when reuse is back.

    python -m bench.ledger.outage [--rounds 8] [--conversations 3]

Every turn is played at three routers, one after the other and in an order by chance: at one of two that
share a Redis, which goes through its faults, and at two without any memory, which have the same cold turns to
run. What a turn at the first takes longer than at the second is what the store *added*; what it takes longer
at the third is what the machine adds by itself.

Exit code 1 where a client got an error, an engine used wrong KV, reuse did not return, or more was added than
there should be: to a turn while the breaker opens at most twice the time-out, and afterwards nothing, each
beyond what the machine adds by itself.
"""

import argparse
import asyncio
import contextlib
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import aiohttp

from bench.ledger.pool import Pool, corruptions, pool
from bench.ledger.talk import MODEL, SYSTEM, WORDS
from router.bench.figures import percentile
from router.ledger.address import parse_address
from router.ledger.breaker import OPENS_AFTER
from router.ledger.connection import Access
from router.ledger.redis import RedisLedger
from router.ledger.store import LedgerUnavailable, Query
from tests.ledger import servers
from tests.ledger.play import keys_of
from tests.ledger.servers import Server

TIMEOUT_S = 0.05
OPTIONS = ("--policy", "sticky", "--store-timeout-s", str(TIMEOUT_S))
TURNS = 10
"""Of a conversation; then the next one begins."""
PAUSE_S = 0.1
DOWN_S, UP_S, WELL_S = 2.0, 4.0, 8.0
"""How long the store is away, and back, in each round, and how long it is well before the first."""
UNDER_WAY_S = 0.1
"""Turns that began so long before a step count as its first: their put comes after it."""
FIRST_S = {"frozen": 0.5, "killed": 0.5}
BACK_S = 2.0
"""How much of a step is its begin: the breaker opens, or is closed within two sweeps."""
SLACK_S = 0.005
"""Less than anybody would notice: what may be added while nothing should."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One turn at one router, streamed. Times in seconds."""

    well: bool
    first_s: float
    whole_s: float
    reused_tokens: int = 0
    prompt_tokens: int = 0
    text: str = ""


@dataclass(frozen=True, slots=True)
class Round:
    """One turn, as it was at all three."""

    began_s: float
    turn: int
    subject: Answer
    control: Answer
    twin: Answer

    @property
    def added(self) -> tuple[float, float]:
        """To the first token, and to the whole turn."""
        return self.subject.first_s - self.control.first_s, self.subject.whole_s - self.control.whole_s

    @property
    def noise(self) -> tuple[float, float]:
        return self.twin.first_s - self.control.first_s, self.twin.whole_s - self.control.whole_s


@dataclass(frozen=True, slots=True)
class Step:
    name: str
    at_s: float


@dataclass(slots=True)
class Play:
    session: aiohttp.ClientSession
    nodes: Pool
    rounds: list[Round] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)

    async def converse(self, at: int) -> None:
        chance = random.Random(at)
        history: list[dict[str, str]] = [{"role": "system", "content": SYSTEM}]
        for turn in range(TURNS):
            asked = " ".join(chance.choices(WORDS, k=40))
            history.append({"role": "user", "content": f"{at}.{turn}: {asked}"})
            *subjects, control, twin = self.nodes.routers
            places = {"subject": subjects[(at + turn) % 2], "control": control, "twin": twin}
            answers: dict[str, Answer] = {}
            began_s = 0.0
            for name in random.sample(list(places), 3):
                began_s = time.monotonic() if name == "subject" else began_s
                answers[name] = await self.turn(places[name], history)
            self.rounds.append(Round(began_s, turn, **answers))
            history.append({"role": "assistant", "content": answers["subject"].text})
            await asyncio.sleep(PAUSE_S)

    async def turn(self, router: str, history: Sequence[dict[str, str]]) -> Answer:
        body = {
            "model": MODEL,
            "messages": history,
            "max_tokens": 24,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        began_s, first_s, done = time.monotonic(), 0.0, False
        text, prompt_tokens = "", 0
        headers = {"authorization": "Bearer bench"}
        async with self.session.post(f"{router}/v1/chat/completions", json=body, headers=headers) as answer:
            async for line in answer.content:
                if not line.startswith(b"data: "):
                    continue
                first_s = first_s or time.monotonic() - began_s
                if line.strip() == b"data: [DONE]":
                    done = True
                    continue
                event = json.loads(line[6:])
                prompt_tokens = (event.get("usage") or {}).get("prompt_tokens", prompt_tokens)
                for choice in event.get("choices", ()):
                    text += choice["delta"].get("content") or ""
            reused_tokens = int(answer.headers.get("x-boomerang-reused-tokens", "0"))
            well = answer.status == 200 and done
            return Answer(well, first_s, time.monotonic() - began_s, reused_tokens, prompt_tokens, text)


async def play(server: Server, rounds: int, conversations: int) -> tuple[Play, int]:
    """Conversations that begin anew again and again, while the store goes through its faults."""
    steps: Sequence[tuple[str, float, Callable[[], None]]] = (
        ("frozen", DOWN_S, server.freeze),
        ("thawed", UP_S, server.thaw),
        ("killed", DOWN_S, server.kill),
        ("started again", UP_S, server.start),
    )
    stores = [server.url, server.url, "memory", "memory"]
    own_options = [(), (), ("--verify", "off"), ("--verify", "off")]
    async with (
        pool(stores, options=OPTIONS, own_options=own_options) as nodes,
        aiohttp.ClientSession() as session,
    ):
        played = Play(session, nodes)
        stop = asyncio.Event()

        async def converse(at: int) -> None:
            number = 0
            while not stop.is_set():
                await played.converse(at + conversations * number)
                number += 1

        await asyncio.gather(played.converse(-1), played.converse(-2))  # connections, scripts, code
        played.rounds.clear()
        playing = [asyncio.ensure_future(converse(at)) for at in range(conversations)]
        played.steps.append(Step("well", time.monotonic()))
        await asyncio.sleep(WELL_S)
        for name, seconds, step in (one for _ in range(rounds) for one in steps):
            at_s = time.monotonic()
            await asyncio.to_thread(step)
            played.steps.append(Step(name, at_s))
            await asyncio.sleep(seconds)
        stop.set()
        await asyncio.gather(*playing)
        wrong = await corruptions(session, nodes)
    return played, wrong


def parts(played: Play) -> dict[tuple[str, bool], list[Round]]:
    """The rounds by step, and whether they came at its begin."""
    found: dict[tuple[str, bool], list[Round]] = {}
    for one in played.rounds:
        step = next(
            step for step in reversed(played.steps)
            if one.began_s >= step.at_s - UNDER_WAY_S or step is played.steps[0]
        )  # fmt: skip
        first_s = FIRST_S.get(step.name, 0.0 if step.name == "well" else BACK_S)
        found.setdefault((step.name, one.began_s < step.at_s + first_s), []).append(one)
    return found


async def waits(server: Server) -> bool:
    """What the ledger alone adds to a turn, well and frozen; whether it is as little as it should be."""
    access = Access(parse_address(server.url), connect_s=TIMEOUT_S)
    ledger = RedisLedger(access, now=time.time, turn_s=TIMEOUT_S)
    query = Query(keys_of("system", "m0", "a0", "m1"), (1, 2, 3, 4), own_depth=2)

    async def took() -> float:
        began_s = time.perf_counter()
        with contextlib.suppress(LedgerUnavailable):
            await ledger.find(query)
        return time.perf_counter() - began_s

    await took()
    well = [await took() for _ in range(500)]
    server.freeze()
    first = [await took() for _ in range(OPENS_AFTER)]
    then = [await took() for _ in range(500)]
    server.thaw()
    await ledger.close()
    print(
        f"a lookup alone: well, p50 {_ms(percentile(well, 0.5))}, p99 {_ms(percentile(well, 0.99))};"
        f" frozen, the first {', '.join(map(_ms, first))}; then p99 {_ms(percentile(then, 0.99))}\n"
    )
    return max(first) < 2 * TIMEOUT_S and percentile(then, 0.99) < TIMEOUT_S / 10


def reuse(rounds: Sequence[Round]) -> float:
    """Share of the prompt tokens of turns after the first that were not computed again."""
    later = [one.subject for one in rounds if one.turn]
    return sum(one.reused_tokens for one in later) / max(sum(one.prompt_tokens for one in later), 1)


def judged(found: dict[tuple[str, bool], list[Round]]) -> bool:
    """Tell the figures of each part; whether they are as they should be."""
    print(
        "| store | turns | added to the first token: p50, p99, most | added to the turn: p50, p99, most"
        " | machine's own p99: first token, turn | reused | errors |"
    )
    print("|---|---|---|---|---|---|---|")
    good = True
    for (name, is_first), rounds in found.items():
        of = [[one.added[at] for one in rounds] for at in (0, 1)]
        noise = [percentile([one.noise[at] for one in rounds], 0.99) for at in (0, 1)]
        told = [f"{_ms(percentile(one, 0.5))}, {_ms(percentile(one, 0.99))}, {_ms(max(one))}" for one in of]
        errors = sum(not one.subject.well for one in rounds)
        when = f"{name}, first {FIRST_S.get(name, BACK_S):g} s" if is_first else name
        print(
            f"| {when} | {len(rounds)} | {told[0]} | {told[1]} | {', '.join(map(_ms, noise))}"
            f" | {reuse(rounds):.0%} | {errors} |"
        )
        if name in FIRST_S:
            limit_s = 2 * TIMEOUT_S if is_first else SLACK_S
            good &= all(
                percentile(one, 0.99) <= limit_s + max(by_itself_s, 0.0)
                for one, by_itself_s in zip(of, noise, strict=True)
            )
        good &= errors == 0
    well = reuse(found["well", False])
    return good and all(reuse(found[name, False]) > 0.8 * well for name in ("thawed", "started again"))


async def main(rounds: int, conversations: int) -> int:
    with servers.server() as server:
        quick = await waits(server)
        played, wrong = await play(server, rounds, conversations)
    good = judged(parts(played))
    print(f"\ncorruptions: {wrong}; time-out {_ms(TIMEOUT_S)}; {rounds} rounds of faults")
    return 0 if good and quick and not wrong else 1


def _ms(seconds: float) -> str:
    milliseconds = 1000 * seconds
    return f"{milliseconds:.0f} ms" if abs(milliseconds) >= 10 else f"{milliseconds:.1f} ms"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--conversations", type=int, default=3)
    given = parser.parse_args()
    sys.exit(asyncio.run(main(given.rounds, given.conversations)))
