"""Processes that race for single handles: how often one has one winner, and never more.

    python -m bench.ledger.races [--races 10000] [--racers 4] [--store URL]

Exit code 1 where a handle had no winner, or more than one.
"""

import argparse
import asyncio
import contextlib
import json
import sys
import time
import uuid
from collections import Counter

from router.ledger.address import parse_address
from router.ledger.connection import Access
from router.ledger.redis import RedisLedger
from router.ledger.store import Handle, Put, Query, Trace
from tests.ledger import servers
from tests.ledger.play import keys_of

AT_ONCE = 32
PATIENCE_S = 30.0
LEAD_S = 3.0
"""Time for all racers to start, so that they run at the same time."""


def ledger_of(store: str, prefix: str) -> RedisLedger:
    access = Access(parse_address(store), connect_s=PATIENCE_S, answer_s=PATIENCE_S)
    return RedisLedger(access, now=time.time, prefix=prefix, turn_s=PATIENCE_S)


async def prepare(store: str, prefix: str, races: int) -> None:
    """A branch with a handle for each race."""
    ledger = ledger_of(store, prefix)
    limit = asyncio.Semaphore(AT_ONCE)

    async def put(at: int) -> None:
        params = b'{"remote_request_id":"%d"}' % at
        handle = Handle(params, "http://d", "e", 200, 100, time.time() + 600)
        trace = Trace("http://p", "http://d", 100, 400, 0, time.time())
        async with limit:
            await ledger.put(Put(keys_of("system", f"m{at}"), None, trace, handle, own_depth=2))

    await asyncio.gather(*(put(at) for at in range(races)))
    await ledger.close()


async def race(store: str, prefix: str, races: int, start_at_s: float) -> list[int]:
    """Ask for every handle, in the order of all; those that were won."""
    ledger = ledger_of(store, prefix)
    await ledger.sweep()
    limit = asyncio.Semaphore(AT_ONCE)
    won: list[int] = []

    async def ask(at: int) -> None:
        keys = keys_of("system", f"m{at}", "a", "m")
        async with limit:
            found = await ledger.find(Query(keys, (1, 2, 3, 4), own_depth=2))
        if found is not None and found.handle is not None:
            won.append(at)

    await asyncio.sleep(max(start_at_s - time.time(), 0))
    await asyncio.gather(*(ask(at) for at in range(races)))
    await ledger.close()
    return won


async def main(races: int, racers: int, store: str | None) -> int:
    with contextlib.ExitStack() as stack:
        url = store or stack.enter_context(servers.server()).url
        prefix = f"race-{uuid.uuid4().hex}"
        await prepare(url, prefix, races)
        arguments = ["-m", "bench.ledger.races", "--races", str(races), "--store", url]
        arguments += ["--as-racer", prefix, "--start-at", str(time.time() + LEAD_S)]
        running = [
            await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE)
            for _ in range(racers)
        ]
        results = [json.loads((await one.communicate())[0]) for one in running]
    winners = Counter(at for won in results for at in won)
    several = sum(count > 1 for count in winners.values())
    shares = ", ".join(f"{len(won)}" for won in results)
    print(
        f"{races} races of {racers} processes: won {shares}; none {races - len(winners)}, several {several}"
    )
    return 0 if len(winners) == races and not several else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--races", type=int, default=10_000)
    parser.add_argument("--racers", type=int, default=4)
    parser.add_argument("--store", help="a store that runs already")
    parser.add_argument("--as-racer", help=argparse.SUPPRESS)
    parser.add_argument("--start-at", type=float, default=0.0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.as_racer:
        print(json.dumps(asyncio.run(race(given.store, given.as_racer, given.races, given.start_at))))
        sys.exit(0)
    sys.exit(asyncio.run(main(given.races, given.racers, given.store)))
