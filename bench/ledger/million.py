"""A million handles that wait, in memory: how large one is, and how long a put and a take last then.

    python -m bench.ledger.million [--handles 1000000] [--blocks 100]

Needs about 3 GB. Exit code 1 where a median is over 50 µs.
"""

import argparse
import asyncio
import gc
import resource
import statistics
import sys
import time
from random import Random

from router.ledger.memory import MemoryLedger
from router.ledger.store import Handle, Put, Query, Trace
from router.turn.digest import Digests
from tests.ledger.play import keys_of

BLOCK_TOKENS = 16
LIMIT_S = 50e-6
SAMPLES = 20_000


def turn(at: int, blocks: int, random: Random, deadline_s: float) -> Put:
    """A conversation's first turn, every object its own, as in a router."""
    ids = ",".join(str(random.randrange(60_000)) for _ in range(blocks))
    name = f"{at:08x}"
    params = (
        f'{{"do_remote_decode":true,"do_remote_prefill":false,"remote_block_ids":[[{ids}]],'
        f'"remote_engine_id":"0d2e4b1c-76d0-4c5b-9a6b-ff2c{name}",'
        f'"remote_request_id":"chatcmpl-{name}-d1-{name}","remote_host":"10.12.3.44","remote_port":5600,'
        f'"tp_size":4,"remote_num_tokens":{blocks * BLOCK_TOKENS},'
        '"remote_blocks_expiry_time":123456.789,"transfer_mode":"pull"}'
    ).encode()
    tokens = blocks * BLOCK_TOKENS
    handle = Handle(
        params=params,
        decode="http://decode-3.pool:8000",
        engine_id=f"0d2e4b1c-76d0-4c5b-9a6b-ff2c{name}",
        tokens=tokens,
        prompt_tokens=tokens - 100 - at % 50,
        deadline_s=deadline_s,
        held=Digests(tokens, random.randbytes(8 * (tokens // 128)), random.randbytes(8)),
    )
    trace = Trace(
        "http://prefill-1.pool:8000", "http://decode-3.pool:8000", tokens - 100, 6_000 + at, 0, time.time()
    )
    return Put(keys_of("system", name), None, trace, handle)


async def main(handles: int, blocks: int) -> int:
    random = Random(1)
    ledger = MemoryLedger(max_branches=2 * handles, max_bytes=1 << 40, now=time.monotonic)
    before_bytes = _resident_bytes()
    deadline_s = time.monotonic() + 3600
    puts: list[float] = []
    gc.disable()
    for at in range(handles):
        one = turn(at, blocks, random, deadline_s + at % 480)
        began_s = time.perf_counter()
        await ledger.put(one)
        took_s = time.perf_counter() - began_s
        if at >= handles - SAMPLES:
            puts.append(took_s)
    grown_bytes = _resident_bytes() - before_bytes
    stats = await ledger.stats()
    takes: list[float] = []
    for _ in range(min(SAMPLES, handles)):
        keys = keys_of("system", f"{random.randrange(handles):08x}", "answer", "next")
        query = Query(keys, (100, 200, 300, 400), own_depth=2)
        began_s = time.perf_counter()
        await ledger.find(query)
        takes.append(time.perf_counter() - began_s)
    print(f"{stats.handles:,} handles of {blocks} blocks: {grown_bytes / handles:,.0f} bytes each")
    print(f"as the ledger itself estimates: {stats.size_bytes / handles:,.0f} bytes each")
    for name, times in (("put", puts), ("take", takes)):
        ordered = sorted(times)
        print(
            f"{name}: median {1e6 * statistics.median(ordered):.1f} µs,"
            f" p99 {1e6 * ordered[int(len(ordered) * 0.99)]:.1f} µs"
        )
    return 0 if all(statistics.median(times) < LIMIT_S for times in (puts, takes)) else 1


def _resident_bytes() -> int:
    """The most that was resident so far."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--handles", type=int, default=1_000_000)
    parser.add_argument("--blocks", type=int, default=100)
    given = parser.parse_args()
    sys.exit(asyncio.run(main(given.handles, given.blocks)))
