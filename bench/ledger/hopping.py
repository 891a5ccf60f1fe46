"""Two routers, one store: conversations that hop between them, beside one router that has them all.

    python -m bench.ledger.hopping [--conversations 50] [--turns 20] [--store URL]

Without ``--store`` a server of its own is started. Exit code 1 where the two differ by more than 2 % of the
tokens, a client got an error, or an engine used wrong KV.
"""

import argparse
import asyncio
import contextlib
import sys
from collections import Counter
from random import Random

import aiohttp

from bench.ledger.pool import corruptions, metric, pool
from bench.ledger.talk import Talk, reuse
from router.bench.figures import percentile
from tests.ledger import servers

TOLERANCE = 0.02
OPTIONS = ("--policy", "sticky", "--store-timeout-s", "5", "--store-connect-timeout-s", "5")
"""The planner would weigh a pull against a prefill, which costs nothing here; and this is not about time."""


async def run(name: str, stores: list[str], conversations: int, turns: int) -> tuple[float, bool]:
    """Play, and print a row; the share of reused tokens, and whether all went well."""
    random = Random(7)
    async with (
        pool(stores, options=OPTIONS) as nodes,
        aiohttp.ClientSession() as session,
    ):
        talk = Talk(session, lambda _at, _turn: random.choice(nodes.routers))
        await talk.play(conversations, turns)
        wrong = await corruptions(session, nodes)
        cold = sum(
            [await metric(session, router, "boomerang_ledger_failures_total") for router in nodes.routers]
        )
    failed = sum(one.status != 200 for one in talk.seen)
    plans = Counter(f"{one.plan} ({one.reason})" for one in talk.seen)
    share = reuse(talk.seen)
    p99_ms = 1000 * percentile([one.took_s for one in talk.seen], 0.99)
    played = ", ".join(f"{count} {plan}" for plan, count in sorted(plans.items()))
    print(
        f"| {name} | {len(talk.seen)} | {played} | {share:.1%} | {p99_ms:.0f} ms | {cold:.0f} | {failed}"
        f" | {wrong} |",
        flush=True,
    )
    return share, not failed and not wrong and len(talk.seen) == conversations * turns


async def main(conversations: int, turns: int, store: str | None) -> int:
    print("| routers | turns | plans | reused | turn p99 | store failures | client errors | corruptions |")
    print("|---|---|---|---|---|---|---|---|")
    with contextlib.ExitStack() as stack:
        url = store or stack.enter_context(servers.server()).url
        one, well = await run("one, in memory", ["memory"], conversations, turns)
        two, as_well = await run("two, one Redis", [url, url], conversations, turns)
    print(f"\nreuse differs by {two - one:+.2%}")
    return 0 if well and as_well and abs(two - one) <= TOLERANCE else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--conversations", type=int, default=50)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--store", help="a store that runs already")
    given = parser.parse_args()
    sys.exit(asyncio.run(main(given.conversations, given.turns, given.store)))
