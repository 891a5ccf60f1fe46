"""What releasing handles early is worth on a decode node that they would fill.

    python -m bench.ledger.pins [--rounds 3] [--duration-s 90] [--json FILE]

One prefill and one decode node, simulated, each a process of its own, and the router in front. Of the turns
that end, 30 % are followed by another one of the same conversation; the others never return, and what they
leave stays pinned for D's time to live: twice what D has. Three settings play the same conversations in turn:

* ``release``: the router's defaults, a budget of half of D's KV;
* ``none``: no budget, and no legs for releasing;
* ``ample``: as ``none``, with four times the KV, so that nothing is ever in the way. What the conversations
  that return reuse there is all there is to be reused.

Time is compressed: ``--compress 10`` makes everything ten times as fast, D's time to live of 480 s (48 s
then), the engines' speed, the silences (20 s on average) and arrivals alike. Only the router's own reaction
(it looks four times a second) is not, so release has ten times less time than it would really have. The
engines keep no prefix cache: what is reused can only be what handles lead to.
"""

import argparse
import asyncio
import contextlib
import json
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec

from bench.fleet.agents import MODEL, _Reading
from bench.fleet.nodes import Fleet, Shape, fleet
from router.bench.figures import percentile, spread
from router.demo.agent import text_of
from router.sim.model import TAINT

ARMS: Final = ("release", "none", "ample")
TTL_S: Final = 480.0
SILENCE_S: Final = 20.0
RETURNING: Final = 0.3
WORDS: Final = 900
BLOCK_TOKENS: Final = 16
BUDGET: Final = 0.5
SAMPLE_S: Final = 0.1
ANSWER_TOKENS: Final = 24


@dataclass(frozen=True, slots=True)
class TurnSeen:
    """One turn, as its client saw it. Times in seconds, as they passed."""

    number: int
    """Of the conversation; 0 is the first one."""
    error: str
    first_token_s: float | None
    reused_tokens: int
    could_reuse_tokens: int
    """What the turn before it left: its prompt and its answer but for the last token."""
    reason: str
    tainted: bool


@dataclass(slots=True)
class Load:
    """Open arrivals, the same for the same seed, whatever the pool does."""

    origin: str
    seed: int
    per_s: float
    silence_s: float
    seen: list[TurnSeen] = field(default_factory=list)

    async def run(self, duration_s: float) -> None:
        """Conversations arrive for ``duration_s``; ends when none is open any more."""
        draw, began_s = random.Random(self.seed), time.perf_counter()
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=4 * duration_s)
        session = aiohttp.ClientSession(connector=connector, timeout=timeout)
        async with session, asyncio.TaskGroup() as group:
            at_s, number = 0.0, 0
            while (at_s := at_s + draw.expovariate(self.per_s)) < duration_s:
                await asyncio.sleep(max(0.0, began_s + at_s - time.perf_counter()))
                group.create_task(self._converse(session, number, began_s + duration_s))
                number += 1

    async def _converse(self, session: aiohttp.ClientSession, number: int, until_s: float) -> None:
        draw = random.Random(f"{self.seed}/{number}")
        messages: list[dict[str, Any]] = [
            {"role": "user", "content": f"Case {number}.\n{text_of(draw.getrandbits(20), WORDS)}"}
        ]
        left_tokens, turn = 0, 0
        while True:
            answer, reading = await self._turn(session, turn, messages, left_tokens)
            if not answer or draw.random() >= RETURNING:
                return
            left_tokens = reading.prompt_tokens + ANSWER_TOKENS - 1
            await asyncio.sleep(draw.expovariate(1 / self.silence_s))
            if time.perf_counter() > until_s:
                return
            turn += 1
            asked = text_of(draw.getrandbits(20), 60)
            messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": asked}]

    async def _turn(
        self, session: aiohttp.ClientSession, turn: int, messages: list[dict[str, Any]], left_tokens: int
    ) -> tuple[str, _Reading]:
        body = {
            "model": MODEL, "messages": messages, "max_tokens": ANSWER_TOKENS, "min_tokens": ANSWER_TOKENS,
            "temperature": 0, "stream": True, "stream_options": {"include_usage": True},
        }  # fmt: skip
        began_s, reading = time.perf_counter(), _Reading()
        headers: dict[str, str] = {}
        error = ""
        try:
            async with session.post(
                f"{self.origin}/v1/chat/completions",
                data=msgspec.json.encode(body),
                headers={"content-type": "application/json"},
            ) as answer:
                headers = dict(answer.headers)
                if answer.status == 200:
                    async for chunk in answer.content.iter_any():
                        reading.feed(chunk)
                    error = reading.error or ("" if reading.done else "the stream broke off")
                else:
                    error = f"{answer.status} {(await answer.text())[:200]}"
        except (TimeoutError, aiohttp.ClientError) as fault:
            error = f"{type(fault).__name__}: {fault}"
        first_s = reading.first_s - began_s if reading.first_s is not None else None
        reused = int(headers.get("x-boomerang-reused-tokens", "0"))
        reason = headers.get("x-boomerang-reason", "")
        tainted = TAINT in reading.content
        self.seen.append(TurnSeen(turn, error, first_s, reused, left_tokens, reason, tainted))
        return ("" if error else reading.content), reading


@dataclass(frozen=True, slots=True)
class Result:
    """One setting in one round."""

    arm: str
    round: int
    turns: int
    returning: int
    errors: int
    corruptions: int
    reused_share: float
    """Of what the turns before had left, over all returning turns."""
    pinned_max: float
    """The largest share of D's KV that was pinned at any time, as D tells."""
    pinned_mean: float
    waiting_max: int
    """The longest queue at D."""
    p50_s: float
    p99_s: float
    released: int
    cold: dict[str, int]
    """Returning turns that reused nothing, by the router's reason."""


@dataclass(slots=True)
class Watch:
    """What D tells of itself, all the time."""

    shares: list[float] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)

    async def run(self, pool: Fleet, capacity_tokens: int) -> None:
        (node,) = pool.decode
        while True:
            async with pool.session.get(f"{node.origin}/sim/state") as answer:
                state = await answer.json()
            blocks = sum(pin["blocks"] for pin in state["pins"].values())
            self.shares.append(blocks * BLOCK_TOKENS / capacity_tokens)
            self.waiting.append(state["waiting"])
            await asyncio.sleep(SAMPLE_S)

    @contextlib.asynccontextmanager
    async def watching(self, pool: Fleet, capacity_tokens: int) -> AsyncIterator[None]:
        task = asyncio.ensure_future(self.run(pool, capacity_tokens))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})


async def measure(arm: str, number: int, arguments: argparse.Namespace) -> Result:
    compress = arguments.compress
    ttl_s = TTL_S / compress
    blocks = arguments.blocks * (4 if arm == "ample" else 1)
    shape = Shape(
        prefill=1,
        decode=1,
        time_scale=1 / compress,
        num_blocks=blocks,
        engine_args=("--no-prefix-cache", "--ttl", str(ttl_s), "--tool-rate", "0"),
    )
    router_args = ["--decode-ttl-s", str(ttl_s), "--deadline-margin-s", "6", "--probe-interval-s", "1"]
    if arm != "release":
        router_args += ["--pin-budget", "1", "--release-per-s", "0"]
    with tempfile.TemporaryDirectory(prefix="boomerang-pins-") as folder:
        async with fleet(shape, Path(folder), router_args) as pool:
            load = Load(pool.router.origin, number, arguments.rate, SILENCE_S / compress)
            watch = Watch()
            async with watch.watching(pool, blocks * BLOCK_TOKENS):
                await load.run(arguments.duration_s)
            return await _result(arm, number, pool, load.seen, watch)


async def _result(arm: str, number: int, pool: Fleet, seen: Sequence[TurnSeen], watch: Watch) -> Result:
    good = [turn for turn in seen if not turn.error]
    times = [turn.first_token_s for turn in good if turn.first_token_s is not None]
    again = [turn for turn in good if turn.number > 0]
    async with pool.session.get(f"{pool.router.origin}/metrics") as answer:
        text = await answer.text()
    released = sum(
        float(line.rsplit(" ", 1)[1])
        for line in text.splitlines()
        if line.startswith('boomerang_handles_total{detail="budget",outcome="released"}')
    )
    return Result(
        arm=arm,
        round=number,
        turns=len(seen),
        returning=len(again),
        errors=len(seen) - len(good),
        corruptions=await pool.corruptions() + sum(turn.tainted for turn in seen),
        reused_share=sum(turn.reused_tokens for turn in again)
        / max(sum(turn.could_reuse_tokens for turn in again), 1),
        pinned_max=max(watch.shares),
        pinned_mean=statistics.mean(watch.shares),
        waiting_max=max(watch.waiting),
        p50_s=percentile(times, 0.5),
        p99_s=percentile(times, 0.99),
        released=int(released),
        cold=dict(Counter(turn.reason for turn in again if not turn.reused_tokens)),
    )


def table(results: Sequence[Result], compress: float) -> str:
    """One row a setting: medians over the rounds, with their spread. Times as they would really be."""
    lines = [
        "| setting | turns | returning | errors | wrong KV | pinned, most | pinned, mean | D's queue, most "
        "| reused | released | TTFT p50, s | TTFT p99, s |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for arm in ARMS:
        own = [result for result in results if result.arm == arm]
        if not own:
            continue
        lines.append(
            f"| {arm} | {sum(r.turns for r in own)} | {sum(r.returning for r in own)} "
            f"| {sum(r.errors for r in own)} | {sum(r.corruptions for r in own)} "
            f"| {max(r.pinned_max for r in own):.0%} | {statistics.mean(r.pinned_mean for r in own):.0%} "
            f"| {max(r.waiting_max for r in own)} | {spread([100 * r.reused_share for r in own])} % "
            f"| {sum(r.released for r in own)} | {spread([compress * r.p50_s for r in own])} "
            f"| {spread([compress * r.p99_s for r in own])} |"
        )
    return "\n".join(lines)


def verdict(results: Sequence[Result]) -> str:
    """What is to be shown, round by round; the worst one counts."""
    by = {(result.arm, result.round): result for result in results}
    rounds = sorted({result.round for result in results})
    kept = [by["release", n].reused_share / by["ample", n].reused_share for n in rounds]
    faster = [by["none", n].p99_s / by["release", n].p99_s for n in rounds]
    pinned = max(by["release", n].pinned_max for n in rounds)
    lines = [
        f"pinned share with release, most: {pinned:.1%} (budget {BUDGET:.0%})",
        f"reuse of returning turns, release / ample: {spread([100 * share for share in kept])} %",
        f"TTFT p99, none / release: {spread(faster)}",
        "holds" if pinned <= BUDGET and min(kept) >= 0.95 and min(faster) >= 2 else "DOES NOT HOLD",
    ]
    return "\n".join(lines)


async def run(arguments: argparse.Namespace) -> list[Result]:
    results = []
    for number in range(1, arguments.rounds + 1):
        for arm in ARMS[number % len(ARMS) :] + ARMS[: number % len(ARMS)]:
            result = await measure(arm, number, arguments)
            print(result, flush=True)
            results.append(result)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description="Early release beside none, on a decode node that fills up.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--duration-s", type=float, default=90.0, help="of each run, as it passes")
    parser.add_argument(
        "--rate", type=float, default=2.0, help="conversations that begin in a passing second"
    )
    parser.add_argument("--compress", type=float, default=10.0, help="how many times as fast as really")
    parser.add_argument("--blocks", type=int, default=6_400, help="of D's KV, 16 tokens each")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results = asyncio.run(run(arguments))
    print("\n" + table(results, arguments.compress) + "\n\n" + verdict(results))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([asdict(result) for result in results], indent=2))


if __name__ == "__main__":
    main()
