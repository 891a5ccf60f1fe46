"""Time to first token of the planner beside simpler policies, interleaved in one run.

    python -m bench.fleet.compare [--rounds 3] [--duration-s 60] [--rate 0.6] [--json FILE]

Each round starts the pool anew for each policy and plays the same conversations. ``load`` in the table is the
share of the time that the prefill nodes were busy under ``round_robin``.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from bench.fleet.agents import Load, TurnSeen
from bench.fleet.nodes import Fleet, Shape, fleet
from router.bench.figures import percentile, spread

POLICIES: Final = ("planned", "round_robin", "sticky")


@dataclass(frozen=True, slots=True)
class Result:
    """One policy in one round. Times in seconds."""

    policy: str
    round: int
    turns: int
    errors: int
    corruptions: int
    p50_s: float
    p99_s: float
    reused_share: float
    load: float
    estimate_error: float | None
    """Median of |estimate - measured| / measured, of the turns that were estimated."""


async def measure(policy: str, number: int, shape: Shape, rate: float, duration_s: float) -> Result:
    with tempfile.TemporaryDirectory(prefix="boomerang-fleet-") as folder:
        async with fleet(shape, Path(folder), ["--policy", policy]) as pool:
            load = Load(pool.router.origin, number, rate)
            await load.run(duration_s)
            return await _result(policy, number, pool, load.seen, duration_s)


async def _result(
    policy: str, number: int, pool: Fleet, seen: Sequence[TurnSeen], duration_s: float
) -> Result:
    good = [turn for turn in seen if not turn.error and turn.first_token_s is not None]
    times = [turn.first_token_s for turn in good if turn.first_token_s is not None]
    prompt = sum(turn.prompt_tokens for turn in good)
    logged = pool.turns_logged()
    off = [
        abs(turn["estimate_s"] - turn["first_byte_s"]) / turn["first_byte_s"]
        for turn in logged
        if turn.get("estimate_s") and turn.get("first_byte_s")
    ]
    busy_s = 0.0
    for node in pool.prefill:
        async with pool.session.get(f"{node.origin}/sim/state") as answer:
            busy_s += (await answer.json())["counters"]["prefill_busy_s"]
    return Result(
        policy=policy,
        round=number,
        turns=len(seen),
        errors=len(seen) - len(good),
        corruptions=await pool.corruptions() + sum(turn.tainted for turn in seen),
        p50_s=percentile(times, 0.5),
        p99_s=percentile(times, 0.99),
        reused_share=sum(turn.reused_tokens for turn in good) / prompt if prompt else 0.0,
        load=busy_s / (duration_s * len(pool.prefill)),
        estimate_error=statistics.median(off) if off else None,
    )


def table(results: Sequence[Result]) -> str:
    """One row a policy: medians over the rounds, with their spread."""
    lines = [
        "| policy | turns | errors | wrong KV | reused | TTFT p50, s | TTFT p99, s | busy | estimate off |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for policy in dict.fromkeys(result.policy for result in results):
        own = [result for result in results if result.policy == policy]
        offs = [result.estimate_error for result in own if result.estimate_error is not None]
        lines.append(
            f"| {policy} | {sum(r.turns for r in own)} | {sum(r.errors for r in own)} "
            f"| {sum(r.corruptions for r in own)} | {statistics.median(r.reused_share for r in own):.0%} "
            f"| {spread([r.p50_s for r in own])} | {spread([r.p99_s for r in own])} "
            f"| {statistics.median(r.load for r in own):.0%} "
            f"| {f'{statistics.median(offs):.0%}' if offs else '–'} |"
        )
    return "\n".join(lines)


def ratios(results: Sequence[Result], base: str = "planned") -> str:
    """How much better the planner is, round by round; above 1 it is the faster one."""
    lines = []
    for policy in dict.fromkeys(result.policy for result in results if result.policy != base):
        for name in ("p50_s", "p99_s"):
            values = [
                getattr(other, name) / getattr(own, name)
                for own in results
                if own.policy == base
                for other in results
                if other.policy == policy and other.round == own.round
            ]
            lines.append(f"{policy} / {base}, TTFT {name[:-2]}: {spread(values)}")
    return "\n".join(lines)


async def run(arguments: argparse.Namespace) -> list[Result]:
    shape = Shape(time_scale=arguments.time_scale)
    results = []
    for number in range(1, arguments.rounds + 1):
        turned = POLICIES[number % len(POLICIES) :] + POLICIES[: number % len(POLICIES)]
        for policy in turned:
            result = await measure(policy, number, shape, arguments.rate, arguments.duration_s)
            print(result, flush=True)
            results.append(result)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description="TTFT of the planner beside simpler policies.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--duration-s", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=0.6, help="conversations that begin in a second")
    parser.add_argument("--time-scale", type=float, default=4.0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results = asyncio.run(run(arguments))
    print("\n" + table(results) + "\n\n" + ratios(results))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([asdict(result) for result in results], indent=2))


if __name__ == "__main__":
    main()
