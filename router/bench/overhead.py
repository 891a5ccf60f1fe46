"""What a router costs: CPU per turn and time to first token, interleaved beside others in one run."""

import argparse
import asyncio
import contextlib
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import uvloop

from router.bench.client import play, requests
from router.bench.figures import percentile, spread
from router.demo.processes import free_port, process, wait_ready

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Contestant:
    """What stands between client and engines. ``pid`` is None where nothing does."""

    name: str
    origin: str
    pid: int | None


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


def cpu_s(pid: int) -> float:
    """CPU time of a process and its threads so far, and of its children that it has waited for."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(value) for value in fields[11:15]) / _TICKS_PER_S


def rss_mb(pid: int) -> float:
    """Resident memory of a process, in MiB."""
    line = next(
        line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS")
    )
    return int(line.split()[1]) / 1024


@contextlib.contextmanager
def _running(name: str, command: Sequence[str], url: str, folder: Path) -> Iterator[int]:
    """A process that answers ``url``; its id. Raises NotStarted."""
    log = folder / f"{name}.log"
    with process(command, log) as started:
        wait_ready(name, started, log, url)
        yield started.pid


@contextlib.contextmanager
def contestants(args: argparse.Namespace, folder: Path) -> Iterator[list[Contestant]]:
    """All of them, each in front of the same two engines."""
    python = sys.executable
    ports = [free_port() for _ in range(5)]
    origins = [f"http://127.0.0.1:{port}" for port in ports]
    prefill, decode = origins[:2]
    nodes = ["--prefill", prefill, "--decode", decode]
    with contextlib.ExitStack() as stack:
        for role, port in zip(("prefill", "decode"), ports[:2], strict=True):
            engine = [python, "-m", "router.bench.engine", "--port", str(port), "--events", str(args.events)]
            engine += ["--every-s", str(args.every_ms / 1e3)]
            stack.enter_context(_running(f"engine-{role}", engine, f"http://127.0.0.1:{port}/health", folder))
        found = [Contestant("direct", decode, None)]
        for name, command, origin, path in (
            (
                "boomerang",
                [
                    *(python, "-m", "router", "serve", *nodes, "--port", str(ports[2])),
                    *("--log-level", "warning"),
                    *("--stay-max-tokens", "0"),  # both legs in every turn, as the others
                ],
                origins[2],
                "/ready",
            ),
            (
                "plain httpx proxy",
                [python, "-m", "router.bench.plain", *nodes, "--port", str(ports[3])],
                origins[3],
                "/health",
            ),
            (
                "vllm-router",
                [
                    *(str(args.vllm_router), "--vllm-pd-disaggregation", *nodes),
                    *("--host", "127.0.0.1", "--port", str(ports[4]), "--log-level", "warning"),
                    *("--prometheus-port", str(free_port())),
                ],
                origins[4],
                "/health",
            ),
        ):
            if name == "vllm-router" and args.vllm_router is None:
                continue
            pid = stack.enter_context(_running(name.replace(" ", "-"), command, origin + path, folder))
            found.append(Contestant(name, origin, pid))
        yield found


def measure(one: Contestant, streams: int, number: int, args: argparse.Namespace) -> Result:
    """Play one round. Raises NoAnswer."""
    conversations = [
        requests(f"r{number}s{stream}", args.turns, args.history_bytes) for stream in range(streams)
    ]
    before_s = cpu_s(one.pid) if one.pid is not None else 0.0
    began_s = time.perf_counter()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        seen = runner.run(play(one.origin, conversations))
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


def ratios(results: Sequence[Result], own: str = "boomerang") -> str:
    """``own`` against every other, within each round; below 1 it costs less."""
    lines = []
    for streams in sorted({result.streams for result in results}):
        for other in dict.fromkeys(r.name for r in results if r.name not in (own, "direct")):
            for name, text in (("cpu_ms", "CPU per turn"), ("ttft_p50_ms", "TTFT p50")):
                values = [
                    getattr(mine, name) / getattr(theirs, name)
                    for mine in results
                    if mine.name == own and mine.streams == streams
                    for theirs in results
                    if (theirs.name, theirs.streams, theirs.round) == (other, streams, mine.round)
                    and getattr(theirs, name)
                ]
                if values:
                    lines.append(f"{streams:>4} streams, {text}: {own} / {other} = {spread(values)}")
    return "\n".join(lines)


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
        args.json.write_text(json.dumps([asdict(result) for result in results], indent=2))
    return 0
