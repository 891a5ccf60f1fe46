"""What a fault of one node costs a pool under load.

    python -m bench.fleet.faults kill  [--duration-s 300]   SIGKILL of a random node every 20 s; it comes back
    python -m bench.fleet.faults drain [--duration-s 120]   every node drained, restarted, put back, in turn
    python -m bench.fleet.faults hang  [--duration-s 60]    a node is stopped (SIGSTOP) and answers no more

Exits with 1 where a promise is broken: wrong KV, hung requests, or more errors than the fault may cost.
"""

import argparse
import asyncio
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

import aiohttp

from bench.fleet.agents import HUNG_S, Load, TurnSeen
from bench.fleet.nodes import Fleet, Program, Shape, fleet
from router.bench.figures import percentile
from router.demo.processes import free_port

KILL_EVERY_S: Final = 20.0
DOWN_S: Final = 5.0
TOKEN: Final = "bench"  # noqa: S105 - a token for loopback, for as long as a run lasts
PROBE_EVERY_S: Final = 1.0
PROBE_WITHIN_S: Final = 1.0
EJECTED_WITHIN_S: Final = 2 * (PROBE_EVERY_S + PROBE_WITHIN_S)
"""Two probes in a row have to fail."""
OTHER_TURNS: Final = "others, from then on"
OTHERS: Final = 1.2
"""How much later, at the 99th percentile, turns may get their first token that a fault is none of."""


@dataclass(slots=True)
class Happened:
    """What was done to the pool. Times since the load began, in seconds."""

    faults: list[tuple[float, str]] = field(default_factory=list)
    began_s: float = 0.0
    """The wall clock's time at the first one."""
    ejected_after_s: float | None = None

    def tell(self, load: Load, what: str) -> None:
        at_s = load.elapsed_s()
        self.began_s = self.began_s or time.time()
        self.faults.append((at_s, what))
        print(f"{at_s:6.1f} s  {what}", flush=True)


Script = Callable[[Fleet, Load, float, Happened], Awaitable[None]]


async def kill(pool: Fleet, load: Load, duration_s: float, happened: Happened) -> None:
    """One random node at a time: killed, gone for a while, started again on the same port."""
    draw = random.Random(load.seed)
    while load.elapsed_s() + KILL_EVERY_S < duration_s:
        await asyncio.sleep(KILL_EVERY_S - DOWN_S)
        node = draw.choice(pool.nodes)
        happened.tell(load, f"kill -9 {node.name}")
        node.kill()
        await asyncio.sleep(DOWN_S)
        node.start()
        await node.ready(pool.session)
        happened.tell(load, f"{node.name} is back")


async def drain(pool: Fleet, load: Load, duration_s: float, happened: Happened) -> None:
    """Every node in turn: drained until it is empty, restarted, put back."""
    del duration_s
    await asyncio.sleep(10)
    for node in pool.nodes:
        key = f"{node.name[0]}:127.0.0.1:{node.port}"
        await _admin(pool, "POST", f"/admin/nodes/{key}/drain")
        happened.tell(load, f"drain {node.name}")
        while await _legs_on(pool, key):
            await asyncio.sleep(0.2)
        node.stop()
        node.start()
        await node.ready(pool.session)
        await _admin(pool, "POST", f"/admin/nodes/{key}/undrain")
        happened.tell(load, f"{node.name} is back")
        await asyncio.sleep(2 * PROBE_EVERY_S)


async def hang(pool: Fleet, load: Load, duration_s: float, happened: Happened) -> None:
    """After a third of the time one prefill node accepts connections and answers nothing any more."""
    await asyncio.sleep(duration_s / 3)
    node = pool.prefill[0]
    node.kill(signal.SIGSTOP)
    happened.tell(load, f"stop {node.name}")
    key, stopped_s = f"p:127.0.0.1:{node.port}", load.elapsed_s()
    while (await _node(pool, key))["state"] == "ready":
        await asyncio.sleep(0.1)
    happened.ejected_after_s = load.elapsed_s() - stopped_s
    happened.tell(load, f"{node.name} is ejected")


async def _admin(pool: Fleet, method: str, path: str) -> dict[str, object]:
    headers = {"authorization": f"Bearer {TOKEN}"}
    async with pool.session.request(method, f"{pool.admin_origin}{path}", headers=headers) as answer:
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {await answer.text()}")
        told: dict[str, object] = await answer.json()
        return told


async def _node(pool: Fleet, key: str) -> dict[str, object]:
    told = await _admin(pool, "GET", "/admin/nodes")
    nodes = told["nodes"]
    if not isinstance(nodes, list):
        raise TypeError("no list of nodes")
    return next(node for node in nodes if node["node"] == key)


async def _legs_on(pool: Fleet, key: str) -> int:
    return int(str((await _node(pool, key))["in_flight"]))


@dataclass(frozen=True, slots=True)
class Promise:
    """What a script may cost: a share of all turns that end in an error."""

    script: Script
    errors: float


SCRIPTS: Final = {
    "kill": Promise(kill, 0.005),
    "drain": Promise(drain, 0.0),
    "hang": Promise(hang, 0.0),
}


def report(
    seen: Sequence[TurnSeen], corruptions: int, happened: Happened, allowed: float
) -> tuple[str, bool]:
    """The account of a run, and whether the promises were kept."""
    errors = [turn for turn in seen if turn.error]
    hung = [turn for turn in errors if turn.total_s >= HUNG_S or turn.error == "hung"]
    tainted = sum(turn.tainted for turn in seen)
    times = [turn.first_token_s for turn in seen if turn.first_token_s is not None]
    lines = [
        f"turns {len(seen)}, wrong KV {corruptions + tainted}, hung {len(hung)}",
        f"errors {len(errors)} ({len(errors) / len(seen):.2%}, allowed {allowed:.2%})",
        f"TTFT p50 {percentile(times, 0.5):.2f} s, p99 {percentile(times, 0.99):.2f} s",
        f"plans {dict(Counter(turn.plan for turn in seen).most_common())}",
        *(f"  {count} × {text}" for text, count in Counter(turn.error for turn in errors).most_common(8)),
    ]
    if happened.ejected_after_s is not None:
        lines.append(f"ejected after {happened.ejected_after_s:.1f} s (set: {EJECTED_WITHIN_S:.1f} s)")
    in_time = happened.ejected_after_s is None or happened.ejected_after_s <= EJECTED_WITHIN_S + 1.0
    kept = in_time and not corruptions and not tainted and not hung and len(errors) <= allowed * len(seen)
    return "\n".join(lines), kept


def before_and_after(pool: Fleet, node: Program, happened: Happened) -> tuple[str, bool]:
    """TTFT before the fault, and after it of those turns that had nothing to do with the node.

    By the router's own account: which turns lost a leg on the node only it can tell.
    """
    key, lines = f"p:127.0.0.1:{node.port}", pool.logged()
    touched = {line["turn_id"] for line in lines if line.get("node") == key and "turn_id" in line}
    times_s: dict[str, list[float]] = {"before": [], OTHER_TURNS: [], "touched": []}
    for line in lines:
        if "first_byte_s" not in line:
            continue
        began_s = _seconds(line["time"]) - line["total_s"]
        name = "before" if began_s < happened.began_s else OTHER_TURNS
        times_s["touched" if line["turn_id"] in touched else name].append(line["first_byte_s"])
    rows, p99_s = [], dict[str, float]()
    for name, times in times_s.items():
        if times:
            p99_s[name] = percentile(times, 0.99)
            told = f"TTFT p50 {percentile(times, 0.5):.2f} s, p99 {p99_s[name]:.2f} s"
            rows.append(f"{name}: {len(times)} turns, {told}")
    others, before = p99_s.get(OTHER_TURNS, 0.0), p99_s.get("before", 0.0)
    rows.append(f"p99 of the others is {others / before:.2f} times what it was before (allowed {OTHERS:.1f})")
    return "\n".join(rows), others <= OTHERS * before


def _seconds(stamp: str) -> float:
    return datetime.fromisoformat(stamp).timestamp()


async def run(name: str, arguments: argparse.Namespace) -> bool:
    promise = SCRIPTS[name]
    router = [
        *("--admin-port", str(free_port()), "--admin-token", TOKEN),
        *("--probe-interval-s", str(PROBE_EVERY_S), "--probe-timeout-s", str(PROBE_WITHIN_S)),
    ]
    with tempfile.TemporaryDirectory(prefix="boomerang-fleet-") as folder:
        async with fleet(Shape(time_scale=arguments.time_scale), Path(folder), router) as pool:
            load, happened = Load(pool.router.origin, arguments.seed, arguments.rate), Happened()
            playing = asyncio.create_task(load.run(arguments.duration_s))
            await promise.script(pool, load, arguments.duration_s, happened)
            await playing
            stopped: list[Program] = [pool.prefill[0]] if name == "hang" else []
            corruptions = await pool.corruptions(but=stopped)
            text, kept = report(load.seen, corruptions, happened, promise.errors)
            print("\n" + text)
            if name == "hang":
                told, unaffected = before_and_after(pool, pool.prefill[0], happened)
                print(told)
                kept = kept and unaffected
            if await _in_flight(pool):
                print("turns are still counted as open")
                return False
            return kept


async def _in_flight(pool: Fleet) -> int:
    async with pool.session.get(f"{pool.router.origin}/metrics") as answer:
        text = await answer.text()
    lines = (line for line in text.splitlines() if line.startswith("boomerang_open_turns"))
    return sum(int(float(line.rsplit(" ", 1)[1])) for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="What a fault of one node costs a pool under load.")
    parser.add_argument("fault", choices=SCRIPTS)
    parser.add_argument("--duration-s", type=float, default=300.0)
    parser.add_argument("--rate", type=float, default=0.5, help="conversations that begin in a second")
    parser.add_argument("--time-scale", type=float, default=4.0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    try:
        kept = asyncio.run(run(arguments.fault, arguments))
    except aiohttp.ClientError as error:
        sys.exit(f"the router's admin port does not answer: {error}")
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    main()
