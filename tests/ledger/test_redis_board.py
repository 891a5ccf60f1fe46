"""Notes that routers leave for each other in Redis."""

import time
from collections.abc import Iterator

import pytest

from router.ledger import redis_board
from router.ledger.store import LedgerUnavailable
from tests.ledger import servers
from tests.ledger.play import Clock
from tests.ledger.redis_play import redis_ledger
from tests.ledger.servers import Server


@pytest.fixture
def own() -> Iterator[Server]:
    servers.needed()
    with servers.server() as one:
        yield one


async def test_each_reads_the_newest_note_of_all_others(own: Server) -> None:
    clock = Clock(time.time())
    async with (
        redis_ledger(own.url, prefix="a", now=clock) as one,
        redis_ledger(own.url, prefix="a", now=clock) as two,
        redis_ledger(own.url, prefix="b", now=clock) as stranger,
    ):
        assert await one.exchange(b"first") == []
        clock.advance(2.0)
        assert [(note.value, note.age_s) for note in await two.exchange(b"hello")] == [(b"first", 2.0)]
        await one.exchange(b"second")
        assert [note.value for note in await two.exchange(b"hello")] == [b"second"]
        assert [note.value for note in await one.exchange(b"second")] == [b"hello"]
        assert await stranger.exchange(b"of another pool") == []


async def test_old_notes_go_and_there_are_never_many(own: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_board, "MAX_NOTES", 3)
    clock = Clock(time.time())
    async with redis_ledger(own.url, prefix="a", now=clock, trace_ttl_s=100.0) as reader:
        for number in range(5):
            async with redis_ledger(own.url, prefix="a", now=clock, trace_ttl_s=100.0) as gone:
                await gone.exchange(b"%d" % number)
            clock.advance(1.0)
        assert [note.value for note in await reader.exchange(b"")] == [b"4", b"3"]
        assert own.say("HLEN", "a:1:{00}N") == "3"
        clock.advance(99.0)
        assert await reader.exchange(b"") == []
        assert own.say("HLEN", "a:1:{00}N") == "1"
        own.say("HSET", "a:1:{00}N", "nobody", "x")
        assert await reader.exchange(b"") == [], "nobody's note"


async def test_a_store_that_is_gone(own: Server) -> None:
    async with redis_ledger(own.url) as ledger:
        own.kill()
        with pytest.raises(LedgerUnavailable):
            await ledger.exchange(b"hello")
