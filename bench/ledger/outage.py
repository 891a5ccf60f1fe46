"""A store that is frozen, killed and started again under load: what a turn pays, and when reuse is back.

    python -m bench.ledger.outage [--phase-s 6] [--conversations 6]

Exit code 1 where a client got an error, an engine used wrong KV, a lookup took more than twice the time-out
(or any time worth mentioning once the breaker was open), or reuse did not return.
"""

import argparse
import asyncio
import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import aiohttp

from bench.ledger.pool import corruptions, pool
from bench.ledger.talk import Seen, Talk, reuse
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
FIRST_S = 1.0
"""How much of a phase counts as its begin: the breaker opens, or closes."""


@dataclass(frozen=True, slots=True)
class Phase:
    name: str
    began_s: float


async def play(server: Server, phase_s: float, conversations: int) -> tuple[list[Phase], list[Seen], int]:
    """Conversations that begin anew again and again, while the store goes through its phases."""
    steps: Sequence[tuple[str, Callable[[], None]]] = (
        ("well", lambda: None),
        ("frozen", server.freeze),
        ("thawed", server.thaw),
        ("killed", server.kill),
        ("started again", server.start),
    )
    url = server.url
    async with pool([url, url], options=OPTIONS) as nodes, aiohttp.ClientSession() as session:
        talk = Talk(session, lambda at, turn: nodes.routers[(at + turn) % 2])
        stop = asyncio.Event()

        async def converse(at: int) -> None:
            number = 0
            while not stop.is_set():
                await talk.converse(at + conversations * number, 10, pause_s=0.03)
                number += 1

        await talk.converse(-1, 4)  # connections, scripts, code
        talk.seen.clear()
        playing = [asyncio.ensure_future(converse(at)) for at in range(conversations)]
        phases = []
        for name, step in steps:
            phases.append(Phase(name, time.monotonic()))
            await asyncio.to_thread(step)
            await asyncio.sleep(phase_s)
        phases.append(Phase("", time.monotonic()))
        stop.set()
        await asyncio.gather(*playing)
        wrong = await corruptions(session, nodes)
    return phases, talk.seen, wrong


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


async def main(phase_s: float, conversations: int) -> int:
    with servers.server() as server:
        quick = await waits(server)
        phases, seen, wrong = await play(server, phase_s, conversations)
    print(f"| store | turns | p50, p99 of its first {FIRST_S:g} s | p50, p99 then | reused then | errors |")
    print("|---|---|---|---|---|---|")
    reused: dict[str, float] = {}
    for phase, following in pairwise(phases):
        of = [one for one in seen if phase.began_s <= one.began_s < following.began_s]
        first = [one.took_s for one in of if one.began_s < phase.began_s + FIRST_S]
        later = [one for one in of if one.began_s >= phase.began_s + FIRST_S]
        took = [one.took_s for one in later]
        errors = sum(one.status != 200 for one in of)
        reused[phase.name] = reuse(later)
        print(
            f"| {phase.name} | {len(of)} | {_ms(percentile(first, 0.5))}, {_ms(percentile(first, 0.99))}"
            f" | {_ms(percentile(took, 0.5))}, {_ms(percentile(took, 0.99))} | {reuse(later):.0%}"
            f" | {errors} |"
        )
    print(f"\ncorruptions: {wrong}")
    good = not wrong and all(one.status == 200 for one in seen)
    back = all(reused[name] > 0.8 * reused["well"] for name in ("thawed", "started again"))
    return 0 if good and back and quick else 1


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms" if seconds >= 0.01 else f"{1000 * seconds:.2f} ms"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--phase-s", type=float, default=6.0)
    parser.add_argument("--conversations", type=int, default=6)
    given = parser.parse_args()
    sys.exit(asyncio.run(main(given.phase_s, given.conversations)))
