"""What the ledger keeps in Redis: how much, where, for how long, and how often it asks."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from router.ledger.redis import MAX_HANDLE_BYTES, RECOUNTED, RedisLedger
from router.ledger.redis_slots import SLOT_TAGS, branch_place
from router.ledger.store import Absence, Finish, Handle, Leaving, LedgerUnavailable, Put, Relation
from tests.ledger import servers
from tests.ledger.play import Clock, Play, asking, handle_of
from tests.ledger.redis_play import redis_ledger
from tests.ledger.servers import Server


@pytest.fixture
def own() -> Iterator[Server]:
    """A server of this test's own, whose keys can be counted."""
    servers.needed()
    with servers.server() as one:
        yield one


def calls(server: Server, command: str) -> int:
    """How often a client sent ``command``."""
    for line in server.say("INFO", "commandstats").splitlines():
        name, _, rest = line.partition(":calls=")
        if name == f"cmdstat_{command}":
            return int(rest.split(",")[0])
    return 0


def put_of(play: Play, *history: str, own_depth: int) -> Put:
    query = asking(*history)
    depth = len(history)
    handle = handle_of(100 * depth, play.clock.now_s + 400)
    return Put(query.keys, None, play.trace(depth), handle, own_depth=own_depth)


async def test_a_turn_that_goes_on_asks_once(own: Server) -> None:
    async with redis_ledger(own.url) as ledger:
        play = Play(ledger, Clock(time.time()))
        await ledger.put(put_of(play, "system", "m0", own_depth=2))
        before = calls(own, "evalsha")
        found = await play.find(asking("system", "m0", "a0", "m1", own_depth=2))
        assert found.handle is not None
        assert calls(own, "evalsha") == before + 1
        assert await ledger.find(asking("other", "m0", own_depth=2)) is None
        assert calls(own, "evalsha") == before + 3, "the first turn asks for its shared beginning, too"
        assert calls(own, "eval") <= 2, "scripts are sent once"


async def test_scripts_that_the_server_forgot_are_sent_again(own: Server) -> None:
    async with redis_ledger(own.url) as ledger:
        play = Play(ledger, Clock(time.time()))
        for turn in range(3):
            own.say("SCRIPT", "FLUSH")
            await ledger.put(put_of(play, f"m{turn}", own_depth=1))
            own.say("SCRIPT", "FLUSH")
            found = await play.find(asking(f"m{turn}", "a", "m"))
            own.say("SCRIPT", "FLUSH")
            assert await ledger.give_back(found)


async def test_a_shared_beginning_leads_to_the_newest_trace(own: Server) -> None:
    async with redis_ledger(own.url) as ledger:
        play = Play(ledger, Clock(time.time()))
        for name in ("one", "two"):
            put = put_of(play, "system", "tools", name, own_depth=3)
            branch = await ledger.put(replace(put, trace=replace(put.trace, prefill=name)))
            found = await play.find(asking("system", "tools", f"after {name}", own_depth=3))
            assert (found.branch, found.trace.prefill) == (branch, name)
            assert (found.depth, found.relation) == (2, Relation.FORK)
            assert found.absence is Absence.SMALL_GAIN
            assert not await ledger.give_back(found)
        shorter = await play.find(asking("system", "no tools", "m", own_depth=3))
        assert (shorter.depth, shorter.trace.prefill) == (1, "two")


async def test_what_was_found_at_a_shared_beginning_begins_a_branch_of_its_own(own: Server) -> None:
    async with redis_ledger(own.url) as ledger:
        play = Play(ledger, Clock(time.time()))
        first = await ledger.put(put_of(play, "system", "one", own_depth=2))
        found = await play.find(asking("system", "two", own_depth=2))
        assert found.branch == first
        second = await ledger.put(replace(put_of(play, "system", "two", own_depth=2), found=found))
        assert second != first
        for name, branch in (("one", first), ("two", second)):
            again = await play.find(asking("system", name, "a", "m", own_depth=2))
            assert (again.branch, again.relation) == (branch, Relation.EXTENSION)
            assert again.handle is not None


async def test_conversations_with_one_system_prompt_are_spread(own: Server) -> None:
    async with redis_ledger(own.url) as ledger:
        play = Play(ledger, Clock(time.time()))
        tags = [
            (await ledger.put(put_of(play, "system", f"m{at}", own_depth=2))).partition("-")[0]
            for at in range(600)
        ]
        assert len(set(tags)) > SLOT_TAGS / 2
        assert max(tags.count(tag) for tag in set(tags)) < 40, "about ten each"


async def test_every_key_ends_by_itself(own: Server) -> None:
    async with redis_ledger(own.url, trace_ttl_s=0.5) as ledger:
        clock = Clock(time.time())
        play = Play(ledger, clock)
        for at in range(10):
            query = asking("system", f"m{at}", own_depth=2)
            put = put_of(play, "system", f"m{at}", own_depth=2)
            await ledger.put(replace(put, handle=handle_of(100, clock.now_s + 0.3)))
            await ledger.find(query)
        assert int(own.say("DBSIZE")) > 20
        ttl = "local n = 0 for _, k in ipairs(redis.call('KEYS', '*')) do local t = redis.call('PTTL', k)"
        assert own.say("EVAL", ttl + " if t == -1 or t > 1100 then n = n + 1 end end return n", "0") == "0"
        async with asyncio.timeout(30):
            while own.say("DBSIZE") != "0":
                await asyncio.sleep(0.05)


async def test_a_router_whose_clock_is_behind_gets_no_handle_past_its_end(own: Server) -> None:
    behind = Clock(time.time() - 86_400)
    async with redis_ledger(own.url, now=behind) as ledger:
        put = put_of(Play(ledger, behind), "m0", own_depth=1)
        assert put.handle is not None
        await ledger.put(replace(put, handle=replace(put.handle, deadline_s=behind.now_s + 0.2)))
        async with asyncio.timeout(30):
            while "h" in own.say("EVAL", "return redis.call('KEYS', '*}h*')[1] and 'h' or ''", "0"):
                await asyncio.sleep(0.02)
        found = await ledger.find(asking("m0", "a0", "m1"))  # by its own clock it is in time
        assert found is not None
        assert (found.handle, found.absence) == (None, Absence.EXPIRED)


async def test_branches_are_bounded_and_the_least_used_goes_first(own: Server) -> None:
    clock = Clock(time.time())
    async with redis_ledger(own.url, now=clock, max_branches=SLOT_TAGS) as ledger:
        play = Play(ledger, clock)
        for at in range(3_000):
            clock.advance(0.001)
            await ledger.put(put_of(play, f"m{at}", own_depth=1))
        stats = await ledger.stats()
        assert stats.branches <= SLOT_TAGS
        assert stats.branches == stats.handles
        assert stats.evicted_branches == stats.evicted_handles == 3_000 - stats.branches
        newest = [await ledger.find(asking(f"m{at}", "a", "m")) for at in (2_999, 0)]
        assert newest[0] is not None
        assert newest[0].handle is not None
        assert newest[1] is None


async def test_what_is_pinned_follows_what_expires_and_what_is_evicted(own: Server) -> None:
    clock = Clock(time.time())
    async with redis_ledger(own.url, now=clock, max_branches=20 * SLOT_TAGS) as ledger:
        play = Play(ledger, clock)
        for at in range(300):
            await play.finish(asking(f"late {at}"), None, ttl_s=5.0)
        (before,) = (await ledger.pinned()).values()
        assert (before.handles, before.tokens) == (300, 300 * 150)
        clock.advance(6.0)
        for at in range(2_000):
            await play.finish(asking(f"m{at}"), None)
        stats, (after,) = await ledger.stats(), (await ledger.pinned()).values()
        assert after.handles == stats.handles == stats.branches <= 20 * SLOT_TAGS
        assert after.tokens == after.handles * 150
        assert stats.evicted_branches == 2_300 - stats.branches
        assert stats.expired_handles + stats.evicted_handles == 2_300 - stats.handles


async def test_release_passes_over_what_has_expired(own: Server) -> None:
    clock = Clock(time.time())
    async with redis_ledger(own.url, now=clock) as ledger:
        play = Play(ledger, clock)
        for at in range(5):
            await play.finish(asking(f"late {at}"), None, ttl_s=5.0)
            clock.advance(0.1)
        branch, _ = await play.finish(asking("good"), None)
        clock.advance(6.0)
        candidate = await ledger.oldest("http://d:8200", Finish.OTHER)
        assert candidate is not None
        assert candidate.branch == branch
        assert {key: one.handles for key, one in (await ledger.pinned()).items()} == {"http://d:8200": 1}


async def test_a_handle_that_is_given_back_while_release_looks_is_told_of(
    own: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(time.time())
    left: list[tuple[Handle, Leaving]] = []
    async with redis_ledger(own.url, now=clock, on_left=lambda *told: left.append(told)) as ledger:
        _, handle = await Play(ledger, clock).finish(asking("m0"), None)
        pipeline = ledger._calls.pipeline

        async def in_between(key: bytes, commands: list[tuple[Any, ...]]) -> list[Any]:
            if commands[0][0] != "HMGET":
                return await pipeline(key, commands)
            found = await ledger.find(asking("m0", "a0", "m1"))
            told = await pipeline(key, commands)
            assert found is not None
            assert await ledger.give_back(found)
            return told

        monkeypatch.setattr(ledger._calls, "pipeline", in_between)
        assert await ledger.oldest("http://d:8200", Finish.OTHER) is None
        assert left == [(handle, Leaving.BUDGET)]


async def test_two_routers_never_release_the_same(own: Server) -> None:
    async with redis_ledger(own.url, prefix="p") as one, redis_ledger(own.url, prefix="p") as two:
        play = Play(one, Clock(time.time()))
        for at in range(100):
            await play.finish(asking(f"m{at}"), None)
            candidate = await two.oldest("http://d:8200", Finish.OTHER)
            assert candidate is not None
            taken = await asyncio.gather(
                *(ledger.take(candidate.branch, candidate.version) for ledger in (one, two) * 2)
            )
            assert sum(handle is not None for handle in taken) == 1
        assert await two.pinned() == {}


async def test_one_boundary_leads_to_a_bounded_number_of_branches(own: Server) -> None:
    async with redis_ledger(own.url, max_siblings=2) as ledger:
        play = Play(ledger, Clock(time.time()))
        handles = []
        for _ in range(5):
            put = put_of(play, "system", "m0", own_depth=1)
            await ledger.put(put)
            handles.append(put.handle)
        found = [await play.find(asking("system", "m0", "a0", f"m{one}")) for one in range(3)]
        assert [one.handle for one in found] == [handles[4], handles[3], None]


async def test_a_long_conversation_keeps_its_beginning(own: Server) -> None:
    """Boundaries stand in an index of their time; what is in use is carried over into the next."""
    clock = Clock(1_000_000.0)
    async with redis_ledger(own.url, now=clock, trace_ttl_s=600.0) as ledger:
        play = Play(ledger, clock)
        history = ["m0"]
        branch, _ = await play.finish(asking(*history), None)
        for turn in range(12):
            clock.advance(300.0)
            history += [f"a{turn}", f"m{turn}"]
            found, _ = await play.turn(asking(*history))
            assert found is not None
            assert found.handle is not None
        fork = await play.find(asking("m0", "other", take_share=1.0))
        assert (fork.branch, fork.depth) == (branch, 1)
        regular = await play.find(asking(*history[:9], "other", take_share=1.0))
        assert regular.depth == 9
        # A boundary that is only looked up stays, too.
        for _ in range(4):
            clock.advance(500.0)
            assert (await play.find(asking("m0", "other", take_share=1.0))).depth == 1


async def test_a_handle_without_end_is_not_kept_whole(own: Server) -> None:
    async with redis_ledger(own.url) as ledger:
        play = Play(ledger, Clock(time.time()))
        put = put_of(play, "m0", own_depth=1)
        assert put.handle is not None
        noise = bytes(at * at % 251 for at in range(4 * MAX_HANDLE_BYTES))
        large = replace(put.handle, params=noise[: 2 * MAX_HANDLE_BYTES], engine_id="e" * MAX_HANDLE_BYTES)
        left: list[tuple[Handle, Leaving]] = []
        ledger.on_left = lambda handle, leaving: left.append((handle, leaving))
        await ledger.put(replace(put, handle=large))
        assert left == [(large, Leaving.UNKEPT)]
        found = await play.find(asking("m0", "a0", "m1"))
        assert (found.handle, found.absence) == (None, Absence.NO_HANDLE)
        assert found.trace == put.trace
        own.kill()
        with pytest.raises(LedgerUnavailable):
            await ledger.put(replace(put, handle=large))
        assert left == [(large, Leaving.UNKEPT)], "whoever put it tells of it then"


@pytest.mark.parametrize("deadline_s", [float("nan"), float("-inf"), float("inf"), 1e300])
async def test_odd_deadlines(own: Server, deadline_s: float) -> None:
    async with redis_ledger(own.url) as ledger:
        put = Put(asking("m0").keys, None, Play(ledger, Clock()).trace(1), handle_of(100, deadline_s))
        await ledger.put(put)
        found = await ledger.find(asking("m0", "a0", "m1"))
        assert found is not None
        assert (found.handle is not None) is (deadline_s > time.time())


async def test_values_of_another_writer_are_no_values(own: Server) -> None:
    async with redis_ledger(own.url) as ledger:
        play = Play(ledger, Clock(time.time()))
        await ledger.put(put_of(play, "m0", own_depth=1))
        spoil = "for _, k in ipairs(redis.call('KEYS', '*}h*')) do redis.call('SET', k, 'x', 'KEEPTTL') end"
        own.say("EVAL", spoil + " return 1", "0")
        found = await ledger.find(asking("m0", "a0", "m1"))
        assert found is not None
        assert (found.handle, found.absence) == (None, Absence.NO_HANDLE)
        spoil = "for _, k in ipairs(redis.call('KEYS', '*}b*')) do redis.call('HSET', k, 't', 'x') end"
        own.say("EVAL", spoil + " return 1", "0")
        assert await ledger.find(asking("m0", "a0", "m1")) is None


async def test_two_pools_in_one_store_do_not_meet(own: Server) -> None:
    async with redis_ledger(own.url, prefix="one") as one, redis_ledger(own.url, prefix="two") as two:
        play = Play(one, Clock(time.time()))
        await one.put(put_of(play, "m0", own_depth=1))
        assert await two.find(asking("m0", "a0", "m1")) is None
        assert (await two.stats()).branches == 0
        async with redis_ledger(own.url, prefix="one") as other:
            found = await other.find(asking("m0", "a0", "m1"))
            assert found is not None
            assert found.handle is not None


@pytest.mark.parametrize("limit", ["max_branches", "trace_ttl_s", "max_siblings", "turn_s"])
@pytest.mark.parametrize("value", [0, -1, float("nan")])
async def test_limits_are_checked(limit: str, value: float) -> None:
    with pytest.raises(ValueError, match=limit):
        async with redis_ledger("redis://127.0.0.1:1", **{limit: value}):  # type: ignore[arg-type]
            pass


@pytest.mark.parametrize("prefix", ["a{b", "}"])
async def test_a_prefix_does_not_break_keys_apart(prefix: str) -> None:
    with pytest.raises(ValueError, match="brace"):
        async with redis_ledger("redis://127.0.0.1:1", prefix=prefix):
            pass


async def test_two_ledgers_race_for_single_handles(own: Server) -> None:
    async with redis_ledger(own.url, prefix="race") as one, redis_ledger(own.url, prefix="race") as two:
        play = Play(one, Clock(time.time()))

        async def winners(ledger: RedisLedger, at: int) -> bool:
            found = await ledger.find(asking(f"m{at}", "a", "m"))
            return found is not None and found.handle is not None

        for at in range(300):
            await one.put(put_of(play, f"m{at}", own_depth=1))
            won = await asyncio.gather(*(winners(ledger, at) for ledger in (one, two) * 2))
            assert won.count(True) == 1


async def test_an_owner_keeps_the_newest_of_many_branches(
    own: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("router.ledger.redis_pins.MAX_OWNED", 3)
    async with redis_ledger(own.url) as ledger:
        play = Play(ledger, Clock(time.time()))
        for turn in range(6):
            await ledger.put(replace(put_of(play, f"m{turn}", own_depth=1), owner=b"one"))
        ended = await ledger.end(b"one")
        assert ended is not None
        assert len(ended) == 3
        newest = await ledger.find(asking("m5", "a", "m"))
        assert newest is not None
        assert newest.handle is None
        assert await ledger.end(b"one") is None


async def test_a_branch_that_the_server_dropped_stands_in_nobodys_way(own: Server) -> None:
    async with redis_ledger(own.url) as ledger:
        play = Play(ledger, Clock(time.time()))
        branches = {await ledger.put(put_of(play, "same", f"m{n}", own_depth=1)) for n in range(2)}
        node = handle_of(1, 0).decode
        head = await ledger.oldest(node, Finish.OTHER)
        assert head is not None
        place = branch_place(head.branch)
        assert place is not None
        key = ledger._slot(place[0]) + b"b" + place[1]
        await ledger._calls.pipeline(key, [("DEL", key)])
        await ledger.oldest(node, Finish.OTHER)
        left = await ledger.oldest(node, Finish.OTHER)
        assert left is not None
        assert {head.branch, left.branch} == branches


@pytest.mark.parametrize("dropped", ["P", "H", "b", "w-http://d:8200"])
async def test_sums_are_right_again_after_the_server_has_dropped_a_key(own: Server, dropped: str) -> None:
    async with redis_ledger(own.url, prefix="x") as ledger:
        play = Play(ledger, Clock(time.time()))
        branches = [await ledger.put(put_of(play, "same", f"m{n}", own_depth=1)) for n in range(3)]
        whole = (await ledger.pinned())["http://d:8200"]
        place = branch_place(branches[0])
        assert place is not None
        slot = ledger._slot(place[0])
        key = slot + (b"b" + place[1] if dropped == "b" else dropped.encode())
        await ledger._calls.pipeline(key, [("DEL", key)])
        for _ in range(SLOT_TAGS // RECOUNTED):
            await ledger.sweep()
        again = (await ledger.pinned())["http://d:8200"]
        # What a dropped branch held nobody can find, but its node keeps it until its time is over.
        assert again == whole
        assert (await ledger.stats()).handles == 3
        if dropped == "b":
            await ledger.oldest("http://d:8200", Finish.OTHER)  # it takes away what leads nowhere
        oldest = await ledger.oldest("http://d:8200", Finish.OTHER)
        assert oldest is not None
        assert oldest.branch == (branches[1] if dropped == "b" else branches[0])


async def test_what_a_dropped_branch_held_is_counted_no_longer_than_it_is_kept(own: Server) -> None:
    clock = Clock(time.time())
    async with redis_ledger(own.url, prefix="x", now=clock) as ledger:
        play = Play(ledger, clock)
        gone = await ledger.put(put_of(play, "same", "m0", own_depth=1))
        clock.advance(100.0)
        await ledger.put(put_of(play, "same", "m1", own_depth=1))
        place = branch_place(gone)
        assert place is not None
        key = ledger._slot(place[0]) + b"b" + place[1]
        await ledger._calls.pipeline(key, [("DEL", key)])
        clock.advance(350.0)
        for _ in range(SLOT_TAGS // RECOUNTED):
            await ledger.sweep()
        assert (await ledger.pinned())["http://d:8200"].handles == 1
        assert (await ledger.stats()).handles == 1


async def test_a_sweep_drops_what_is_over_from_the_sums(own: Server) -> None:
    clock = Clock(time.time())
    async with redis_ledger(own.url, prefix="x", now=clock) as ledger:
        play = Play(ledger, clock)
        for number in range(20):
            await ledger.put(put_of(play, f"m{number}", own_depth=1))
        clock.advance(401.0)
        for _ in range(SLOT_TAGS // RECOUNTED):
            await ledger.sweep()
        assert await ledger.pinned() == {}
        assert (await ledger.stats()).expired_handles == 20
