"""A store that is killed, frozen, or refuses: turns go cold at once, and later it is asked again."""

import asyncio
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from router.ledger.breaker import OPENS_AFTER
from router.ledger.redis import RedisLedger
from router.ledger.store import Absence, Finish, Handle, Leaving, LedgerUnavailable, Put
from tests.ledger import servers
from tests.ledger.play import Clock, Play, asking, handle_of
from tests.ledger.redis_play import redis_ledger
from tests.ledger.servers import Server

TURN_S = 0.1
SECRET = "s3cr3t-w0rd"


@pytest.fixture
def own() -> Iterator[Server]:
    servers.needed()
    with servers.server() as one:
        yield one


class States:
    """What was told of the servers."""

    def __init__(self) -> None:
        self.told: list[tuple[bool, str]] = []

    def __call__(self, server: str, up: bool, reason: str) -> None:
        assert SECRET not in server + reason
        self.told.append((up, reason))


async def unanswered(ledger: RedisLedger) -> str:
    with pytest.raises(LedgerUnavailable) as failed:
        await ledger.find(asking("m0", "a0", "m1"))
    return str(failed.value)


async def until_it_answers(ledger: RedisLedger) -> None:
    """What the router's sweep does every second."""
    async with asyncio.timeout(30):
        while True:
            try:
                return await ledger.sweep()
            except LedgerUnavailable:
                await asyncio.sleep(0.02)


async def test_a_frozen_server_is_soon_not_asked_any_more(own: Server) -> None:
    states = States()
    async with redis_ledger(own.url, turn_s=TURN_S, answer_s=0.3, on_state=states) as ledger:
        play = Play(ledger, Clock(time.time()))
        await until_it_answers(ledger)
        _, handle = await play.turn(asking("m0"))
        own.freeze()
        told = [await unanswered(ledger) for _ in range(OPENS_AFTER)]
        assert told == [f"no answer within {s:g} s" for s in (TURN_S, TURN_S / 2, TURN_S / 2)]
        began_s = time.monotonic()
        for _ in range(100):
            assert "is not asked" in await unanswered(ledger)
        assert time.monotonic() - began_s < 100 * TURN_S / 2, (
            "turns wait for a server that is known to be down"
        )
        with pytest.raises(LedgerUnavailable):
            await ledger.sweep()  # it is asked in the background, and still does not answer
        with pytest.raises(LedgerUnavailable):
            await ledger.stats()
        own.thaw()
        await until_it_answers(ledger)
        assert [up for up, _ in states.told] == [False, True]
        # Those who gave up may have taken it on the frozen server; what they got is given back, or gone.
        found = await play.find(asking("m0", "a0", "m1"))
        assert found.handle in (handle, None)
        await play.turn(asking("other"))
        assert (await play.find(asking("other", "a0", "m1"))).handle is not None


async def test_a_killed_server_comes_back_empty(own: Server) -> None:
    states = States()
    async with redis_ledger(own.url, on_state=states) as ledger:
        play = Play(ledger, Clock(time.time()))
        await play.turn(asking("m0"))
        own.kill()
        for _ in range(OPENS_AFTER):
            assert "Connection" in await unanswered(ledger)
        assert "is not asked" in await unanswered(ledger)
        own.start()
        await until_it_answers(ledger)
        assert await ledger.find(asking("m0", "a0", "m1")) is None
        await play.turn(asking("m0"))
        assert (await play.find(asking("m0", "a0", "m1"))).handle is not None
        assert [up for up, _ in states.told] == [False, True]


async def test_a_server_that_restarts_costs_one_turn_its_reuse_at_most(own: Server) -> None:
    async with redis_ledger(own.url) as ledger:
        play = Play(ledger, Clock(time.time()))
        await play.turn(asking("m0"))
        own.kill()
        own.start()
        with contextlib.suppress(LedgerUnavailable):  # on a connection whose end was not read yet
            await ledger.find(asking("m0", "a0", "m1"))
        assert await ledger.find(asking("m0", "a0", "m1")) is None
        await play.turn(asking("m0"))
        assert (await play.find(asking("m0", "a0", "m1"))).handle is not None


async def test_nothing_listens_there(own: Server) -> None:
    own.kill()
    async with redis_ledger(own.url) as ledger:
        for _ in range(OPENS_AFTER):
            await unanswered(ledger)
        with pytest.raises(LedgerUnavailable):
            await Play(ledger, Clock(time.time())).turn(asking("m0"))


async def test_a_handle_that_comes_too_late_goes_back(own: Server) -> None:
    async with redis_ledger(own.url, turn_s=TURN_S) as ledger:
        play = Play(ledger, Clock(time.time()))
        await play.turn(asking("warm"))
        _, handle = await play.turn(asking("m0"))
        own.freeze()
        assert "no answer" in await unanswered(ledger)
        own.thaw()
        async with asyncio.timeout(30):
            while (found := await play.find(asking("m0", "a0", "m1"))).handle is None:
                assert found.absence is Absence.NO_HANDLE
                await asyncio.sleep(0.01)
        assert found.handle == handle


async def test_what_is_taken_for_release_too_late_is_released_all_the_same(own: Server) -> None:
    left: list[tuple[Handle, Leaving]] = []
    async with redis_ledger(
        own.url, turn_s=TURN_S, on_left=lambda handle, why: left.append((handle, why))
    ) as ledger:
        play = Play(ledger, Clock(time.time()))
        await until_it_answers(ledger)
        _, ended = await play.turn(asking("m0", conversation="c"))
        query = asking("m1")
        owned = handle_of(100, time.time() + 400)
        branch = await ledger.put(Put(query.keys, None, play.trace(1), owned, owner=b"one"))
        candidate = await ledger.oldest(ended.decode, Finish.OTHER)
        assert candidate is not None
        assert candidate.branch != branch
        own.freeze()
        with pytest.raises(LedgerUnavailable):
            await ledger.take(candidate.branch, candidate.version)
        assert left == []
        own.thaw()
        async with asyncio.timeout(30):
            while not left:
                await asyncio.sleep(0.01)
        assert left == [(ended, Leaving.BUDGET)]
        await until_it_answers(ledger)
        assert (await play.find(asking("m0", "a0", "m1"))).absence is Absence.RELEASED
        assert await ledger.end(b"one") == (owned,)


async def test_an_end_that_is_given_up_half_way_releases_what_it_has_taken(
    own: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[tuple[Handle, Leaving]] = []
    async with redis_ledger(own.url, on_left=lambda handle, why: left.append((handle, why))) as ledger:
        play = Play(ledger, Clock(time.time()))
        handles = [handle_of(100, time.time() + 400) for _ in range(2)]
        for at, handle in enumerate(handles):
            await ledger.put(Put(asking(f"m{at}").keys, None, play.trace(1), handle, owner=b"one"))
        release, is_half_way = ledger._release, asyncio.Event()

        async def then_freeze(*where: bytes, **options: Any) -> tuple[bool, Handle | None]:
            taken = await release(*where, **options)
            own.freeze()
            is_half_way.set()
            return taken

        with monkeypatch.context() as patched:
            patched.setattr(ledger, "_release", then_freeze)
            ending = asyncio.ensure_future(ledger.end(b"one"))
            await is_half_way.wait()
            ending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await ending
        assert [why for _, why in left] == [Leaving.ENDED], "the first is taken, the second under way"
        own.thaw()
        await until_it_answers(ledger)
        waiting = await ledger.end(b"one") or ()
        assert {one.params for one in (*waiting, *(handle for handle, _ in left))} == {
            one.params for one in handles
        }


async def test_a_late_handle_that_cannot_go_back_is_counted(own: Server) -> None:
    left: list[tuple[Handle, Leaving]] = []
    async with redis_ledger(
        own.url, turn_s=TURN_S, on_left=lambda handle, why: left.append((handle, why))
    ) as ledger:
        play = Play(ledger, Clock(time.time()))
        await play.turn(asking("warm"))
        _, handle = await play.turn(asking("m0"))
        own.freeze()
        for _ in range(OPENS_AFTER):  # the first takes it, and from the last on nothing can go back
            await unanswered(ledger)
        own.thaw()
        async with asyncio.timeout(30):
            while not left:
                await asyncio.sleep(0.01)
        assert left == [(handle, Leaving.UNSURE)]


async def test_a_client_that_leaves_while_the_store_is_asked_loses_no_handle(own: Server) -> None:
    async with redis_ledger(own.url) as ledger:
        play = Play(ledger, Clock(time.time()))
        _, handle = await play.turn(asking("m0"))
        query = asking("m0", "a0", "m1")
        own.freeze()
        leaving = asyncio.ensure_future(ledger.find(query))
        await asyncio.sleep(0.05)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        own.thaw()
        async with asyncio.timeout(30):
            while (found := await play.find(query)).handle is None:
                await asyncio.sleep(0.01)
        assert found.handle == handle


async def test_more_turns_than_connections_wait_for_one(own: Server) -> None:
    async with redis_ledger(own.url, access={"max_connections": 3}) as ledger:
        play = Play(ledger, Clock(time.time()))
        await asyncio.gather(*(play.turn(asking(f"m{at}")) for at in range(200)))
        assert (await ledger.stats()).branches == 200
        clients = own.say("CLIENT", "LIST").splitlines()
        assert len(clients) <= 3 + 1, "three of the ledger's, and this one"


async def test_a_closed_ledger_is_not_there(own: Server) -> None:
    async with redis_ledger(own.url) as ledger:
        await Play(ledger, Clock(time.time())).turn(asking("m0"))
    assert await unanswered(ledger) == "the ledger is closed"


async def test_a_full_server_makes_turns_cold_and_recovers(own: Server) -> None:
    async with redis_ledger(own.url) as ledger:
        play = Play(ledger, Clock(time.time()))
        await play.turn(asking("m0"))
        own.say("CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(LedgerUnavailable, match=r"OutOfMemory|OOM"):
            await play.finish(asking("m1"), None)
        own.say("CONFIG", "SET", "maxmemory", "0")
        await play.turn(asking("m1"))
        assert (await play.find(asking("m1", "a", "m"))).handle is not None


@pytest.fixture
def locked() -> Iterator[Server]:
    """A server that wants a user and a password, and lets that user do what the ledger needs."""
    servers.needed()
    with servers.server() as one:
        one.say(
            "ACL", "SETUSER", "router", "on", f">{SECRET}", "~boomerang:*", "-@all", "+@read", "+@write",
            "+evalsha", "+eval", "+time", "-@dangerous",
        )  # fmt: skip
        one.say("ACL", "SETUSER", "default", "off")
        yield one


async def test_a_user_of_few_rights_and_a_password_that_is_rotated(locked: Server, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(f"{SECRET}\n")
    url = locked.url.replace("//", "//router@")
    access = {"password_file": file}
    async with redis_ledger(url, prefix="boomerang", access=access) as ledger:
        play = Play(ledger, Clock(time.time()))
        found, handle = await play.turn(asking("m0", own_depth=1))
        assert found is None
        found = await play.find(asking("m0", "a0", "m1"))
        assert found.handle == handle
        assert await ledger.give_back(found)
        assert (await ledger.stats()).branches == 1
        await ledger.sweep()
    file.write_text("an old one")
    async with redis_ledger(url, prefix="boomerang", access=access) as ledger:
        assert SECRET not in await unanswered(ledger)
        file.write_text(SECRET)
        found = await ledger.find(asking("m0", "a0", "m1"))
        assert found is not None, "the file is read again for every connection"
    file.unlink()
    async with redis_ledger(url, prefix="boomerang", access=access) as ledger:
        assert "FileNotFoundError" in await unanswered(ledger)


async def test_a_password_in_the_address(locked: Server) -> None:
    url = locked.url.replace("//", f"//router:{SECRET}@")
    async with redis_ledger(url, prefix="boomerang") as ledger:
        await Play(ledger, Clock(time.time())).turn(asking("m0"))
    async with redis_ledger(url.replace(SECRET, f"{SECRET}x"), prefix="boomerang") as ledger:
        assert SECRET not in await unanswered(ledger)
    async with redis_ledger(locked.url, prefix="boomerang") as ledger:
        assert "uthenticat" in await unanswered(ledger), "each server says it in its own words"
    async with redis_ledger(url, prefix="another") as ledger:
        assert "NoPermission" in await unanswered(ledger)


async def test_each_call_is_timed_and_what_a_server_is_thought_of_can_be_asked(own: Server) -> None:
    calls: list[tuple[str, float]] = []

    def on_call(operation: str, seconds: float) -> None:
        calls.append((operation, seconds))

    async with redis_ledger(own.url, turn_s=TURN_S, answer_s=0.3, on_call=on_call) as ledger:
        assert ledger.servers_up() == {}, "nobody was asked yet"
        play = Play(ledger, Clock(time.time()))
        await until_it_answers(ledger)
        await play.turn(asking("m0"))
        assert list(ledger.servers_up().values()) == [True]
        assert {operation for operation, _ in calls} >= {"find", "put"}
        own.freeze()
        calls.clear()
        for _ in range(OPENS_AFTER + 2):
            await unanswered(ledger)
        assert [operation for operation, _ in calls] == ["find"] * OPENS_AFTER, "the others were not made"
        assert all(seconds >= TURN_S * 0.45 for _, seconds in calls), "one that times out is timed, too"
        assert list(ledger.servers_up().values()) == [False]
        own.thaw()
        await until_it_answers(ledger)
        assert list(ledger.servers_up().values()) == [True]
