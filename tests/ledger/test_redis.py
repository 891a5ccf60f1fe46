"""The ledger in Redis keeps the rules of every ledger, on one server and on a cluster of three."""

import uuid
from collections.abc import AsyncIterator, Iterator
from random import Random
from typing import Any

import pytest

from router.ledger.address import parse_address
from router.ledger.connection import Access
from router.ledger.memory import MemoryLedger
from router.ledger.redis import RedisLedger
from router.ledger.store import Found, Put
from tests.ledger import servers
from tests.ledger.conformance import LedgerRules
from tests.ledger.conformance_pins import PinRules
from tests.ledger.play import TTL_S, Clock, Make, Play, asking, handle_of

PATIENCE_S = 10.0
"""Tests share their processor: these are not about time-outs."""


@pytest.fixture(scope="session")
def single() -> Iterator[str]:
    servers.needed()
    with servers.server() as one:
        yield one.url


@pytest.fixture(scope="session")
def cluster() -> Iterator[str]:
    servers.needed()
    with servers.cluster() as nodes:
        yield servers.cluster_url(nodes)


class Made:
    """Makes ledgers with a prefix of their own, and closes them."""

    def __init__(self, url: str, clock: Clock) -> None:
        self._url, self._clock = url, clock
        self.ledgers: list[RedisLedger] = []

    def __call__(self, **limits: Any) -> RedisLedger:
        access = Access(parse_address(self._url), connect_s=PATIENCE_S, answer_s=PATIENCE_S)
        prefix = f"t{uuid.uuid4().hex}"
        ledger = RedisLedger(access, now=self._clock, prefix=prefix, turn_s=PATIENCE_S, **limits)
        self.ledgers.append(ledger)
        return ledger

    async def close(self) -> None:
        for ledger in self.ledgers:
            await ledger.close()


class TestOneServer(LedgerRules, PinRules):
    """Everything that every ledger does."""

    @pytest.fixture
    async def make(self, single: str, clock: Clock) -> AsyncIterator[Make]:
        made = Made(single, clock)
        yield made
        await made.close()

    @pytest.mark.parametrize("seed", range(10))
    async def test_it_answers_as_the_ledger_in_memory_does(self, make: Make, clock: Clock, seed: int) -> None:
        random = Random(seed)
        both = (make(), MemoryLedger(now=clock))
        under_way: list[tuple[tuple[str, ...], list[Found | None]]] = []
        branches: dict[str, str] = {}
        for _ in range(150):
            match random.choice(("find", "find", "put", "put", "put", "give_back", "wait", "fail")):
                case "find":
                    history = tuple(random.choices("ab", k=random.randint(1, 6)))
                    query = asking(
                        *history,
                        own_depth=random.randint(1, 3),
                        take_share=random.choice((0.0, 0.5, 1.0)),
                        conversation=random.choice(("", "one", "two")),
                    )
                    found = [await ledger.find(query) for ledger in both]
                    assert _same(found, branches), (history, found)
                    under_way.append((history, found))
                case "put" if under_way:
                    history, found = under_way.pop(random.randrange(len(under_way)))
                    ttl_s = random.choice((None, 0.0, 5.0, TTL_S))
                    depth = len(history)
                    handle = None if ttl_s is None else handle_of(100 * depth, clock.now_s + ttl_s)
                    trace = Play(both[0], clock).trace(depth)
                    name = random.choice(("", "one", "two"))
                    keys = asking(*history).keys
                    ids = [
                        await ledger.put(Put(keys, one, trace, handle, name))
                        for ledger, one in zip(both, found, strict=True)
                    ]
                    assert branches.setdefault(ids[0], ids[1]) == ids[1]
                case "give_back" if under_way:
                    _, found = random.choice(under_way)
                    if found[0] is not None and found[1] is not None:
                        assert await both[0].give_back(found[0]) == await both[1].give_back(found[1])
                case "wait":
                    clock.advance(random.choice((0.5, 5.0, 60.0)))
                case "fail" if under_way:
                    under_way.pop(random.randrange(len(under_way)))
                case _:
                    pass
        stats = [await ledger.stats() for ledger in both]
        assert stats[0].branches == stats[1].branches > 3


def _same(found: list[Found | None], branches: dict[str, str]) -> bool:
    one, other = found
    if one is None or other is None:
        return one is other
    return branches[one.branch] == other.branch and all(
        getattr(one, name) == getattr(other, name)
        for name in ("depth", "relation", "trace", "turns", "handle", "absence")
    )


class TestCluster(LedgerRules, PinRules):
    """The same, on three servers."""

    @pytest.fixture
    async def make(self, cluster: str, clock: Clock) -> AsyncIterator[Make]:
        made = Made(cluster, clock)
        yield made
        await made.close()
