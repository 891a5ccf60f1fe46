"""What a lookup and a put cost in Redis: time of the turn, time of the server, memory.

    python -m bench.ledger.latency [--turns 2000] [--store URL]

Handles of 1,500 blocks with the digests of their 24,000 tokens, at the end of ten messages.
"""

import argparse
import asyncio
import contextlib
import statistics
import time
import uuid
from collections.abc import Awaitable
from dataclasses import replace
from typing import Any

from redis.asyncio import Redis

from router.ledger.address import parse_address
from router.ledger.connection import Access
from router.ledger.redis import RedisLedger
from router.ledger.store import Finish, Put, Query
from tests.ledger import servers
from tests.ledger.play import keys_of
from tests.ledger.test_codec import TRACE, handle

MESSAGES = 10


async def _took(call: Awaitable[Any]) -> float:
    began_s = time.perf_counter()
    await call
    return time.perf_counter() - began_s


async def main(turns: int, store: str | None) -> None:
    with contextlib.ExitStack() as stack:
        address = parse_address(store or stack.enter_context(servers.server()).url)
        # Keys as long as those of a router, where nobody else's can be in the way.
        prefix = f"bench-{uuid.uuid4().hex}" if store else "boomerang"
        ledger = RedisLedger(Access(address), now=time.time, turn_s=5.0, prefix=prefix)
        server: Any = Redis(host=address.hosts[0][0], port=address.hosts[0][1])

        async def used() -> int:
            return int((await server.info("memory"))["used_memory"])

        await ledger.sweep()
        empty_bytes = await used()
        waits = replace(handle("runs"), deadline_s=time.time() + 600)
        histories = [
            ["system", *(f"{at}.{message}" for message in range(MESSAGES - 1))] for at in range(turns)
        ]
        puts = [
            await _took(ledger.put(Put(keys_of(*one), None, TRACE, waits, own_depth=2))) for one in histories
        ]
        full_bytes = await used()
        sizes = tuple(range(1, MESSAGES + 3))
        finds = [
            await _took(ledger.find(Query(keys_of(*one, "answer", "next"), sizes, own_depth=2)))
            for one in histories
        ]
        bare_bytes = await used()
        script = (await server.info("commandstats"))["cmdstat_evalsha"]
        look = {
            "what is pinned": await _took(ledger.pinned()),
            "the oldest": await _took(ledger.oldest(waits.decode, Finish.STOP)),
            "sizes": await _took(ledger.stats()),
        }
        await ledger.close()
        await server.aclose()
    for name, times in (("put (first turn)", puts), ("find", finds)):
        ordered = sorted(times)
        p99_ms = 1000 * ordered[int(len(ordered) * 0.99)]
        print(f"{name}: median {1000 * statistics.median(ordered):.2f} ms, p99 {p99_ms:.2f} ms")
    print(f"of which the server takes {script['usec_per_call'] / 1000:.2f} ms")
    print(f"a branch of {MESSAGES} messages: {(bare_bytes - empty_bytes) / turns:,.0f} bytes")
    print(f"with its handle: {(full_bytes - empty_bytes) / turns:,.0f} bytes")
    print("a look at " + ", ".join(f"{name}: {1000 * took_s:.1f} ms" for name, took_s in look.items()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--turns", type=int, default=2_000)
    parser.add_argument("--store", help="a store that runs already, and nothing else uses")
    given = parser.parse_args()
    asyncio.run(main(given.turns, given.store))
