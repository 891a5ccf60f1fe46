"""Many streams at once through one process: do all of them arrive whole, and what does each hold?

    python -m bench.streams [--streams 250 500 1000 2000]

For each number a router of its own (so that no memory is left over from the one before), in front of fake
engines that say `--events` events, one every `--every-s` seconds. Streams begin one after another over the
first third of an answer, so that all are open together; memory is read at its highest. Exit code 1 where a
stream did not arrive whole, or fewer were open together than were asked for.
"""

import argparse
import asyncio
import contextlib
import resource
import sys
import tempfile
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import uvloop

from router.bench.client import NoAnswer, TurnSeen, play, requests
from router.bench.cost import rss_mb
from router.demo.processes import BOOMERANG, free_port, process, wait_ready

FILES_A_STREAM = 3
"""Descriptors of the router in one turn: the client's, and one for each leg."""
FILES_BESIDES = 100


@dataclass(frozen=True, slots=True)
class Load:
    """What one number of streams did. Memory in MiB."""

    streams: int
    whole: int
    most_open: int
    idle_mb: float
    peak_mb: float


def open_turns(origin: str) -> int:
    """How many turns the router says are open."""
    with urllib.request.urlopen(f"{origin}/metrics", timeout=30) as answer:  # noqa: S310 - our own router
        for line in answer.read().decode().splitlines():
            if line.startswith("boomerang_open_turns"):
                return int(float(line.split()[-1]))
    return 0


async def load(origin: str, pid: int, args: argparse.Namespace, streams: int) -> Load:
    """Play one number of streams, and watch the router meanwhile."""
    idle_mb = peak_mb = rss_mb(pid)
    most_open, lasts_s = 0, args.events * args.every_s
    conversations = [requests(f"s{streams}-{number}", 1, args.history_bytes) for number in range(streams)]
    playing = [
        asyncio.ensure_future(play(origin, part, over_s=lasts_s / 3))
        for part in (conversations[at::64] for at in range(min(64, streams)))
    ]
    while not all(task.done() for task in playing):
        await asyncio.wait(playing, timeout=lasts_s / 12)
        most_open = max(most_open, await asyncio.to_thread(open_turns, origin))
        peak_mb = max(peak_mb, rss_mb(pid))
    seen: list[TurnSeen] = []
    for task in playing:
        with contextlib.suppress(NoAnswer, OSError, TimeoutError):
            seen += task.result()
    whole = sum(turn.events == args.events + 1 for turn in seen)  # and the closing one
    return Load(streams, whole, most_open, idle_mb, peak_mb)


def one(args: argparse.Namespace, streams: int, folder: Path) -> Load:
    """One number of streams, with engines and a router of its own."""
    ports = free_port(), free_port(), free_port()
    prefill, decode, router = (f"http://127.0.0.1:{port}" for port in ports)
    engine = [sys.executable, "-m", "router.bench.engine"]
    said = ["--events", str(args.events), "--every-s", str(args.every_s)]
    serve = [*BOOMERANG, "serve", "--port", str(ports[2]), "--prefill", prefill, "--decode", decode]
    commands = (
        ([*engine, "--port", str(ports[0]), *said], f"{prefill}/health"),
        ([*engine, "--port", str(ports[1]), *said], f"{decode}/health"),
        ([*serve, "--log-level", "warning"], f"{router}/ready"),
    )
    with contextlib.ExitStack() as running:
        started = []
        for number, (command, url) in enumerate(commands):
            log = folder / f"{streams}-{number}.log"
            started.append(running.enter_context(process(command, log)))
            wait_ready(command[2], started[-1], log, url)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(load(router, started[-1].pid, args, streams))


def files_for(streams: int) -> None:
    """See to it that this process and those it starts may open enough files. Raises SystemExit."""
    needed = FILES_A_STREAM * streams + FILES_BESIDES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise SystemExit(
            f"{streams} streams need {needed} open files, and the hard limit (ulimit -Hn) is {hard}"
        )
    if soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def table(loads: Sequence[Load]) -> str:
    """What each number of streams did, and what each stream held."""
    lines = [
        "| streams | whole | open together | idle, MiB | at most, MiB | KiB a stream |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {one.streams:,} | {one.whole:,} | {one.most_open:,} | {one.idle_mb:.0f} | {one.peak_mb:.0f} "
        f"| {1024 * (one.peak_mb - one.idle_mb) / one.streams:.1f} |"
        for one in loads
    ]
    return "\n".join(lines)


def main(args: argparse.Namespace) -> int:
    """Play all numbers; the exit code."""
    files_for(max(args.streams))
    with tempfile.TemporaryDirectory(prefix="boomerang-bench-") as folder:
        loads = []
        for streams in args.streams:
            loads.append(one(args, streams, Path(folder)))
            print(f"{streams} done", file=sys.stderr, flush=True)
    print(table(loads))
    return 0 if all(load.whole == load.streams == load.most_open for load in loads) else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--streams", type=int, nargs="+", default=[250, 500, 1000, 2000])
    parser.add_argument("--events", type=int, default=30)
    parser.add_argument("--every-s", type=float, default=1.0)
    parser.add_argument("--history-bytes", type=int, default=8_000)
    sys.exit(main(parser.parse_args()))
