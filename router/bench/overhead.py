"""What a router costs: CPU per turn and time to first token, interleaved beside others in one run."""

import argparse
import asyncio
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path

import uvloop

from router.bench.client import play, requests
from router.bench.contestants import DIRECT, OWN, PLAIN, RUST, SHARED, WORKERS, Contestant, contestants
from router.bench.cost import cpu_s, rss_mb
from router.bench.figures import percentile, spread


@dataclass(frozen=True, slots=True)
class Result:
    """One contestant in one round. CPU in milliseconds per turn, times in milliseconds."""

    name: str
    streams: int
    round: int
    cpu_ms: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    events_per_s: float
    rss_mb: float
    reused_share: float
    """Of the turns, as the router's plan says; 0 for those that say nothing."""


def measure(one: Contestant, streams: int, number: int, args: argparse.Namespace) -> Result:
    """Play one round, of conversations that nobody has had before. Raises NoAnswer."""
    begin = f"{one.name}, {streams} streams, round {number}"
    tag = blake2b(begin.encode(), digest_size=6).hexdigest()
    conversations = [
        requests(f"{tag}-{stream:03}", args.turns, args.history_bytes) for stream in range(streams)
    ]
    over_s = 0.0 if args.together else args.events * args.every_ms / 1e3
    before_s = cpu_s(one.pid) if one.pid is not None else 0.0
    began_s = time.perf_counter()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        seen = runner.run(play(one.origin, conversations, over_s=over_s))
    took_s = time.perf_counter() - began_s
    used_s = (cpu_s(one.pid) if one.pid is not None else 0.0) - before_s
    firsts = [turn.first_s * 1e3 for turn in seen]
    return Result(
        name=one.name,
        streams=streams,
        round=number,
        cpu_ms=used_s * 1e3 / len(seen),
        ttft_p50_ms=statistics.median(firsts),
        ttft_p99_ms=percentile(firsts, 0.99),
        events_per_s=sum(turn.events for turn in seen) / took_s,
        rss_mb=rss_mb(one.pid) if one.pid is not None else 0.0,
        reused_share=sum(turn.plan in ("pull", "local", "stay") for turn in seen) / len(seen),
    )


def table(results: Sequence[Result]) -> str:
    """Medians over the rounds, with their spread, and ratios to vllm-router where it took part."""
    lines = [
        "| streams | contestant | CPU per turn, ms | TTFT p50, ms | TTFT p99, ms | events/s | MiB | reuse |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for streams in sorted({result.streams for result in results}):
        for name in dict.fromkeys(result.name for result in results):
            own = [r for r in results if r.name == name and r.streams == streams]
            lines.append(
                f"| {streams} | {name} | {spread([r.cpu_ms for r in own])} "
                f"| {spread([r.ttft_p50_ms for r in own])} | {spread([r.ttft_p99_ms for r in own])} "
                f"| {statistics.median(r.events_per_s for r in own):,.0f} "
                f"| {max(r.rss_mb for r in own):.0f} | {statistics.median(r.reused_share for r in own):.0%} |"
            )
    return "\n".join(lines)


def ratios(results: Sequence[Result]) -> str:
    """Ours against the other routers, and our other modes against the usual one, within each round."""
    names = list(dict.fromkeys(result.name for result in results))
    pairs = [(mine, other) for mine in names if mine.startswith(OWN) for other in (RUST, PLAIN)]
    pairs += [(mode, OWN) for mode in names if mode.startswith(OWN) and mode != OWN]
    pairs += [(mode, SHARED) for mode in names if mode.endswith(WORKERS)]
    lines = []
    for streams in sorted({result.streams for result in results}):
        for mine, other in pairs:
            for name, text in (("cpu_ms", "CPU per turn"), ("ttft_p50_ms", "TTFT p50")):
                values = _each_round(results, streams, mine, other, name)
                if values:
                    lines.append(f"{streams:>4} streams, {text}: {mine} / {other} = {spread(values)}")
        usual = {r.round: r.ttft_p99_ms for r in results if (r.name, r.streams) == (OWN, streams)}
        added = [
            usual[r.round] - r.ttft_p99_ms
            for r in results
            if (r.name, r.streams) == (DIRECT, streams) and r.round in usual
        ]
        if added:
            lines.append(f"{streams:>4} streams, TTFT p99 over direct (one leg), ms: {OWN} {spread(added)}")
        for mode in (name for name in names if name.endswith(WORKERS)):
            share = streams // int(mode.split()[1])
            if values := _each_round(results, streams, mode, SHARED, "cpu_ms", other_streams=share):
                lines.append(
                    f"{streams:>4} streams, CPU per turn: {mode} / {SHARED} at {share} = {spread(values)}"
                )
    return "\n".join(lines)


def _each_round(
    results: Sequence[Result],
    streams: int,
    mine: str,
    other: str,
    name: str,
    *,
    other_streams: int | None = None,
) -> list[float]:
    """One figure of ``mine`` over that of ``other`` (perhaps of fewer streams), round by round."""
    beside = streams if other_streams is None else other_streams
    theirs = {r.round: getattr(r, name) for r in results if r.name == other and r.streams == beside}
    own = {r.round: getattr(r, name) for r in results if r.name == mine and r.streams == streams}
    return [own[number] / theirs[number] for number in own if theirs.get(number)]


def main(args: argparse.Namespace) -> int:
    """Run all rounds and print the table; the exit code."""
    results = []
    with (
        tempfile.TemporaryDirectory(prefix="boomerang-bench-") as folder,
        contestants(args, Path(folder)) as all_of_them,
    ):
        for one in all_of_them:  # what is loaded or compiled at a first turn is not what a turn costs
            measure(one, 2, 0, args)
        for number in range(1, args.rounds + 1):
            turned = all_of_them[number % len(all_of_them) :] + all_of_them[: number % len(all_of_them)]
            for streams in args.streams:
                results += [measure(one, streams, number, args) for one in turned]
            print(f"round {number} of {args.rounds}", file=sys.stderr, flush=True)
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}\n")
    print(table(results) + "\n\n" + ratios(results))
    if args.json is not None:
        told = {name: str(value) if isinstance(value, Path) else value for name, value in vars(args).items()}
        document = {"settings": told, "results": [asdict(result) for result in results]}
        args.json.write_text(json.dumps(document, indent=2, default=str))
    return 0
