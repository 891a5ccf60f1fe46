"""The rules of ``router.ledger.store`` as tests: every ledger passes them.

A test module inherits ``LedgerRules`` (and ``LedgerBounds``, where the ledger itself counts and bounds what
it holds) and gives a ``make`` fixture: a function from limits to a fresh ledger on the ``clock`` fixture.
"""

import asyncio
from dataclasses import replace

import pytest

from router.ledger.store import Absence, Put, Relation
from tests.ledger.play import TTL_S, Clock, Make, Play, asking, handle_of


class LedgerRules:
    """What is found, and who gets the handle."""

    # Nothing known

    async def test_an_unknown_history_is_not_found(self, play: Play) -> None:
        await play.turn(asking("system", "hello"))
        assert await play.ledger.find(asking("other", "hello")) is None

    async def test_without_boundaries_nothing_is_found_and_nothing_kept(self, play: Play) -> None:
        assert await play.ledger.find(asking()) is None
        await play.finish(asking(), None)
        assert await play.ledger.find(asking()) is None
        assert (await play.ledger.stats()).branches == 0

    async def test_tenants_never_meet(self, play: Play) -> None:
        await play.turn(asking("system", "hello", conversation="c", tenant="one"))
        assert await play.ledger.find(asking("system", "hello", conversation="c", tenant="two")) is None

    # A conversation that grows

    async def test_an_extension_takes_the_handle(self, play: Play) -> None:
        first = asking("system", "hello", conversation="c")
        branch, handle = await play.finish(first, None)
        found = await play.find(asking("system", "hello", "hi", "and now?"))
        assert found.branch == branch
        assert found.relation is Relation.EXTENSION
        assert found.depth == 2
        assert found.handle == handle
        assert found.absence is None
        assert found.trace == play.trace(2)
        assert found.turns == 1

    async def test_an_extension_moves_its_branch_on(self, play: Play) -> None:
        history = ["system", "m0"]
        branch, handle = await play.finish(asking(*history), None)
        versions = set()
        for turn in range(1, 6):
            history += [f"a{turn}", f"m{turn}"]
            query = asking(*history)
            found = await play.find(query)
            assert (found.branch, found.turns, found.depth) == (branch, turn, len(history) - 2)
            assert found.handle == handle
            assert found.trace == play.trace(len(history) - 2)
            versions.add(found.version)
            moved, handle = await play.finish(query, found)
            assert moved == branch
        assert len(versions) == 5
        assert (await play.ledger.stats()).branches == 1

    async def test_one_message_more_is_an_extension(self, play: Play) -> None:
        _, handle = await play.turn(asking("m0"))
        found = await play.find(asking("m0", "m1"))
        assert (found.relation, found.handle) == (Relation.EXTENSION, handle)

    async def test_an_extension_takes_it_however_little_it_gains(self, play: Play) -> None:
        query = asking("system", "m0")
        await play.finish(query, None, answer_tokens=1_000_000)
        found = await play.find(asking("system", "m0", "a0", "m1", own_depth=4, take_share=1.0))
        assert found.handle is not None

    async def test_a_handle_is_taken_once(self, play: Play) -> None:
        await play.turn(asking("system", "m0"))
        query = asking("system", "m0", "a0", "m1")
        assert (await play.find(query)).handle is not None
        again = await play.find(query)
        assert again.handle is None
        assert again.absence is Absence.NO_HANDLE
        assert again.relation is Relation.EXTENSION

    async def test_of_many_that_ask_at_once_one_gets_it(self, play: Play) -> None:
        _, handle = await play.turn(asking("system", "m0"))
        query = asking("system", "m0", "a0", "m1")
        found = await asyncio.gather(*(play.find(query) for _ in range(50)))
        assert [one.handle for one in found if one.handle is not None] == [handle]

    async def test_many_rounds_never_have_two_winners(self, play: Play) -> None:
        for turn in range(100):
            first = asking(f"m{turn}")
            _, handle = await play.turn(first)
            queries = [asking(f"m{turn}", f"next {racer}") for racer in range(8)]
            found = await asyncio.gather(*(play.find(query) for query in queries))
            assert [one.handle for one in found if one.handle is not None] == [handle]

    async def test_a_turn_without_a_handle_leaves_its_trace(self, play: Play) -> None:
        query = asking("system", "m0")
        await play.ledger.put(Put(query.keys, None, play.trace(2), None))
        found = await play.find(asking("system", "m0", "a0", "m1"))
        assert (found.handle, found.absence) == (None, Absence.NO_HANDLE)
        assert found.trace == play.trace(2)

    # Two turns extend the same one

    async def test_an_overtaken_extension_begins_a_branch_where_it_left(self, play: Play) -> None:
        await play.turn(asking("system", "m0"))
        one, two = asking("system", "m0", "a0", "one"), asking("system", "m0", "a0", "two")
        found_one, found_two = await play.find(one), await play.find(two)
        branch_one, handle_one = await play.finish(one, found_one)
        branch_two, handle_two = await play.finish(two, found_two)
        assert branch_one == found_one.branch
        assert branch_two != branch_one
        for query, branch, handle in ((one, branch_one, handle_one), (two, branch_two, handle_two)):
            history = "one" if query is one else "two"
            found = await play.find(asking("system", "m0", "a0", history, "a", "m"))
            assert (found.branch, found.depth, found.handle) == (branch, 4, handle)
        # The newest begun there is the first choice where both left.
        assert (await play.find(asking("system", "m0", "else", take_share=1.0))).branch == branch_two

    async def test_an_older_put_does_not_touch_the_branch(self, play: Play) -> None:
        await play.turn(asking("m0"))
        query = asking("m0", "a0", "m1")
        slow, fast = await play.find(query), await play.find(query)
        branch, _ = await play.finish(query, fast)
        await play.finish(query, slow)
        found = [await play.find(asking("m0", "a0", "m1", "a1", f"m{turn}")) for turn in range(2)]
        assert len({one.branch for one in found}) == 2
        assert branch in {one.branch for one in found}
        assert {one.turns for one in found} == {2, 1}

    # Giving back

    async def test_what_was_given_back_can_be_taken_again(self, play: Play) -> None:
        _, handle = await play.turn(asking("m0"))
        query = asking("m0", "a0", "m1")
        found = await play.find(query)
        assert await play.ledger.give_back(found)
        assert (await play.find(query)).handle == handle
        assert (await play.find(query)).absence is Absence.NO_HANDLE

    async def test_the_turn_that_gave_back_still_moves_the_branch_on(self, play: Play) -> None:
        await play.turn(asking("m0"))
        query = asking("m0", "a0", "m1")
        found = await play.find(query)
        assert await play.ledger.give_back(found)
        branch, handle = await play.finish(query, found)
        assert branch == found.branch
        assert (await play.find(asking("m0", "a0", "m1", "a1", "m2"))).handle == handle
        assert (await play.ledger.stats()).handles == 0

    async def test_nothing_is_given_back_to_a_branch_that_moved_on(self, play: Play) -> None:
        _, old = await play.turn(asking("m0"))
        query = asking("m0", "a0", "m1")
        taken, other = await play.find(query), await play.find(query)
        assert taken.handle == old
        _, new = await play.finish(query, other)
        assert not await play.ledger.give_back(taken)
        assert (await play.find(asking("m0", "a0", "m1", "a1", "m2"))).handle == new

    async def test_not_even_where_the_newer_handle_is_taken(self, play: Play) -> None:
        await play.turn(asking("m0"))
        query = asking("m0", "a0", "m1")
        taken, other = await play.find(query), await play.find(query)
        await play.finish(query, other)
        later = asking("m0", "a0", "m1", "a1", "m2")
        assert (await play.find(later)).handle is not None
        assert not await play.ledger.give_back(taken)
        assert (await play.find(later)).absence is Absence.NO_HANDLE

    async def test_nothing_is_given_back_twice(self, play: Play) -> None:
        await play.turn(asking("m0"))
        query = asking("m0", "a0", "m1")
        found = await play.find(query)
        assert await play.ledger.give_back(found)
        assert not await play.ledger.give_back(found)
        assert (await play.ledger.stats()).handles == 1

    async def test_a_turn_without_a_handle_has_nothing_to_give_back(self, play: Play) -> None:
        await play.turn(asking("m0"))
        query = asking("m0", "a0", "m1")
        taken, empty = await play.find(query), await play.find(query)
        assert not await play.ledger.give_back(empty)
        assert (await play.find(query)).handle is None
        assert await play.ledger.give_back(taken)

    async def test_an_expired_handle_is_not_taken_back(self, play: Play, clock: Clock) -> None:
        await play.turn(asking("m0"))
        query = asking("m0", "a0", "m1")
        found = await play.find(query)
        clock.advance(TTL_S)
        assert not await play.ledger.give_back(found)
        assert (await play.find(query)).absence is Absence.EXPIRED

    async def test_nothing_is_given_back_to_an_unknown_branch(self, play: Play) -> None:
        await play.turn(asking("m0"))
        found = await play.find(asking("m0", "a0", "m1"))
        assert not await play.ledger.give_back(replace(found, branch="nobody's"))

    # Regenerate, edit, fork, side requests

    async def test_a_regenerated_prompt_takes_the_handle(self, play: Play) -> None:
        query = asking("system", "m0", own_depth=2)
        branch, handle = await play.finish(query, None)
        found = await play.find(query)
        assert (found.branch, found.relation, found.depth) == (branch, Relation.REGENERATED, 2)
        assert found.handle == handle

    async def test_a_long_answer_is_left_to_its_line(self, play: Play) -> None:
        query = asking("system", "m0", own_depth=2)
        _, handle = await play.finish(query, None, answer_tokens=1_000)
        found = await play.find(query)
        assert (found.relation, found.absence) == (Relation.REGENERATED, Absence.SMALL_GAIN)
        assert (await play.find(asking("system", "m0", "a0", "m1"))).handle == handle

    async def test_the_newest_answer_to_a_prompt_comes_first(self, play: Play) -> None:
        query = asking("system", "m0", own_depth=2)
        branch, _ = await play.finish(query, None)
        for _ in range(3):
            found = await play.find(query)
            branch, handle = await play.finish(query, found)
            assert branch != found.branch
            again = await play.find(query)
            assert (again.branch, again.handle, again.turns) == (branch, handle, 1)
            assert await play.ledger.give_back(again)
        extended = await play.find(asking("system", "m0", "a", "m1"))
        assert (extended.branch, extended.relation) == (branch, Relation.EXTENSION)

    async def test_an_edit_is_found_where_it_left(self, play: Play) -> None:
        branch, handle = await play.finish(asking("system", "m0", "a0", "m1", "a1", "m2"), None)
        found = await play.find(asking("system", "m0", "a0", "m1", "a1", "edited", own_depth=2))
        assert (found.branch, found.relation, found.depth) == (branch, Relation.FORK, 5)
        assert found.handle == handle
        assert found.trace == play.trace(6)

    async def test_both_sides_of_a_fork_live_on(self, play: Play) -> None:
        await play.turn(asking("system", "m0", "a0", "m1"))
        fork = asking("system", "m0", "a0", "edited", own_depth=2)
        found = await play.find(fork)
        assert await play.ledger.give_back(found)
        branch, handle = await play.finish(fork, found)
        assert branch != found.branch
        main = await play.find(asking("system", "m0", "a0", "m1", "a1", "m2"))
        assert (main.branch, main.relation, main.handle) == (found.branch, Relation.EXTENSION, found.handle)
        side = await play.find(asking("system", "m0", "a0", "edited", "a1", "m2"))
        assert (side.branch, side.relation, side.handle) == (branch, Relation.EXTENSION, handle)

    async def test_a_fork_of_small_gain_leaves_the_handle(self, play: Play) -> None:
        _, handle = await play.turn(asking("system", "m0", "a0", "m1", "a1", "m2"))
        side = asking("system", "m0", "title please", own_depth=2)
        found = await play.find(side)
        assert (found.relation, found.depth, found.absence) == (Relation.FORK, 2, Absence.SMALL_GAIN)
        await play.finish(side, found)
        assert (await play.find(asking("system", "m0", "a0", "m1", "a1", "m2", "a2", "m3"))).handle == handle

    @pytest.mark.parametrize(("take_share", "taken"), [(0.0, True), (0.61, True), (0.62, False)])
    async def test_the_share_of_the_held_tokens_decides(
        self, play: Play, take_share: float, taken: bool
    ) -> None:
        # 4 of 6 messages of 100 tokens, of 650 held: 0.615.
        await play.turn(asking("m0", "m1", "m2", "m3", "m4", "m5"))
        found = await play.find(asking("m0", "m1", "m2", "m3", "else", take_share=take_share))
        assert (found.handle is not None) is taken

    async def test_a_stranger_with_the_same_system_prompt_leaves_the_handle(self, play: Play) -> None:
        _, handle = await play.turn(asking("long system", "m0", own_depth=2))
        stranger = asking("long system", "hello", own_depth=2, take_share=0.0)
        found = await play.find(stranger)
        assert (found.relation, found.depth, found.absence) == (Relation.FORK, 1, Absence.SMALL_GAIN)
        assert found.trace == play.trace(2)
        _, own = await play.finish(stranger, found)
        assert (await play.find(asking("long system", "m0", "a0", "m1", own_depth=2))).handle == handle
        assert (await play.find(asking("long system", "hello", "a0", "m1", own_depth=2))).handle == own

    async def test_sub_agents_of_one_conversation_have_their_own_lines(self, play: Play) -> None:
        parent = asking("system", "task", conversation="c", own_depth=2)
        handles = {"parent": (await play.turn(parent))[1]}
        for child in ("one", "two", "three"):
            query = asking("sub system", child, conversation="c", own_depth=2)
            _, handles[child] = await play.turn(query)
        for child in ("three", "one", "two"):
            found = await play.find(asking("sub system", child, "a", "m", conversation="c", own_depth=2))
            assert (found.relation, found.handle) == (Relation.EXTENSION, handles[child])
        found = await play.find(asking("system", "task", "a", "m", conversation="c", own_depth=2))
        assert (found.relation, found.handle) == (Relation.EXTENSION, handles["parent"])

    async def test_a_compacted_history_is_found_where_it_left(self, play: Play) -> None:
        history = ["system", "m0", "a0", "m1", "a1", "m2"]
        _, handle = await play.turn(asking(*history))
        side = asking(*history, "a2", "summarise")
        found = await play.find(side)
        assert (found.relation, found.handle) == (Relation.EXTENSION, handle)
        await play.finish(side, found)
        compacted = await play.find(asking("system", "summary", "m3", own_depth=2))
        assert (compacted.relation, compacted.depth, compacted.handle) == (Relation.FORK, 1, None)

    async def test_earlier_boundaries_still_lead_to_a_branch_that_moved_on(self, play: Play) -> None:
        await play.turn(asking("system", "m0"))
        branch = ""
        for turn in range(1, 4):
            query = asking("system", "m0", *(f"m{index}" for index in range(1, turn + 1)))
            branch, _ = await play.finish(query, await play.find(query))
        found = await play.find(asking("system", "m0", "m1", "edited", take_share=1.0))
        assert (found.branch, found.depth, found.relation) == (branch, 3, Relation.FORK)

    # Several branches at one boundary

    async def test_siblings_have_a_handle_each(self, play: Play) -> None:
        query = asking("system", "m0", own_depth=2)
        cold = [await play.ledger.find(query) for _ in range(6)]
        assert cold == [None] * 6
        handles = [(await play.finish(query, found))[1] for found in cold]
        found = [await play.find(asking("system", "m0", f"a{one}", "m1")) for one in range(6)]
        assert [one.handle for one in found] == handles[::-1]  # newest first
        assert len({one.branch for one in found}) == 6
        assert (await play.find(asking("system", "m0", "a6", "m1"))).absence is Absence.NO_HANDLE

    async def test_a_conversation_id_breaks_the_tie(self, play: Play) -> None:
        handles = {}
        for name in ("one", "two", "three"):
            query = asking("system", "m0", conversation=name)
            handles[name] = (await play.finish(query, None))[1]
        for name in ("two", "one"):
            found = await play.find(asking("system", "m0", "a0", "m1", conversation=name))
            assert found.handle == handles[name]
        # It is a hint: the right history under another id still finds its line.
        other = await play.find(asking("system", "m0", "a0", "m1", conversation="unheard of"))
        assert other.handle == handles["three"]

    async def test_a_branch_with_its_handle_beats_a_newer_one_without(self, play: Play) -> None:
        query = asking("system", "m0")
        _, handle = await play.finish(query, None)
        await play.ledger.put(Put(query.keys, None, play.trace(2), None, "c"))
        found = await play.find(asking("system", "m0", "a0", "m1", conversation="c"))
        assert found.handle == handle

    async def test_an_extension_beats_a_newer_fork(self, play: Play) -> None:
        _, tip = await play.turn(asking("system", "m0"))
        await play.finish(asking("system", "m0", "a0", "m1", conversation="c"), None)
        found = await play.find(asking("system", "m0", "other", "m1", conversation="c", take_share=0.0))
        assert (found.relation, found.handle) == (Relation.EXTENSION, tip)

    async def test_a_fork_with_a_handle_beats_an_extension_without(self, play: Play) -> None:
        tip = asking("system", "m0")
        await play.ledger.put(Put(tip.keys, None, play.trace(2), None))
        _, handle = await play.finish(asking("system", "m0", "a0"), None)
        found = await play.find(asking("system", "m0", "other", "m1"))
        assert (found.relation, found.handle) == (Relation.FORK, handle)
        # With none to be had, the extension is the one to go on from.
        again = await play.find(asking("system", "m0", "other", "m1"))
        assert (again.relation, again.absence) == (Relation.EXTENSION, Absence.NO_HANDLE)

    # Time

    async def test_a_handle_is_good_until_its_deadline(self, play: Play, clock: Clock) -> None:
        _, handle = await play.turn(asking("m0"))
        query = asking("m0", "a0", "m1")
        clock.advance(TTL_S - 0.01)
        found = await play.find(query)
        assert found.handle == handle
        assert await play.ledger.give_back(found)
        clock.advance(0.01)
        late = await play.find(query)
        assert (late.handle, late.absence) == (None, Absence.EXPIRED)
        assert late.trace == found.trace  # traces outlive handles

    async def test_a_handle_that_comes_expired_is_not_given_out(self, play: Play) -> None:
        query = asking("m0")
        await play.finish(query, None, ttl_s=0.0)
        assert (await play.find(asking("m0", "a0", "m1"))).absence is Absence.EXPIRED

    async def test_a_turn_in_time_renews_the_branch(self, play: Play, clock: Clock) -> None:
        history = ["m0"]
        await play.turn(asking(*history))
        for turn in range(1, 5):
            clock.advance(TTL_S - 1)
            history += [f"a{turn}", f"m{turn}"]
            found, _ = await play.turn(asking(*history))
            assert found is not None
            assert found.handle is not None

    async def test_a_handle_comes_back_as_it_went(self, play: Play) -> None:
        handle = replace(
            handle_of(1_000, play.clock.now_s + TTL_S),
            params=b'{ "future_key": [1.50, null], "s": "\\u00e9\xc3\xa9" }',
            media_depth=3,
        )
        for held in (handle.held, None):
            query = asking(f"m{held is None}")
            await play.ledger.put(Put(query.keys, None, play.trace(1), replace(handle, held=held)))
            found = await play.find(asking(*(f"m{held is None}", "a0", "m1")))
            assert found.handle == replace(handle, held=held)

    async def test_closing_is_final_and_may_be_repeated(self, play: Play) -> None:
        await play.turn(asking("m0"))
        await play.ledger.close()
        await play.ledger.close()


class LedgerBounds:
    """What a ledger holds and counts, where it is the ledger itself that does."""

    async def test_sizes(self, play: Play) -> None:
        empty = await play.ledger.stats()
        assert (empty.branches, empty.boundaries, empty.handles, empty.size_bytes) == (0, 0, 0, 0)
        first = asking("system", "m0", own_depth=2)
        await play.turn(first)
        await play.turn(asking("system", "other", own_depth=2))
        stats = await play.ledger.stats()
        assert (stats.branches, stats.boundaries, stats.handles) == (2, 3, 2)
        assert stats.size_bytes > 0
        found = await play.find(asking("system", "m0", "a0", "m1"))
        taken = await play.ledger.stats()
        assert taken.handles == 1
        assert taken.size_bytes < stats.size_bytes
        assert await play.ledger.give_back(found)
        assert await play.ledger.stats() == stats

    async def test_a_sweep_drops_expired_handles(self, play: Play, clock: Clock) -> None:
        for index in range(10):
            await play.finish(asking(f"m{index}"), None, ttl_s=10.0 + 10 * index)
        clock.advance(52.0)
        await play.ledger.sweep()
        stats = await play.ledger.stats()
        assert (stats.branches, stats.handles, stats.expired_handles) == (10, 5, 5)
        assert (await play.find(asking("m0", "a", "m"))).absence is Absence.EXPIRED
        assert (await play.find(asking("m9", "a", "m"))).handle is not None

    async def test_a_sweep_leaves_what_is_good_for_a_moment_more(self, play: Play, clock: Clock) -> None:
        _, handle = await play.finish(asking("m0"), None, ttl_s=10.9)
        clock.advance(10.5)
        await play.ledger.sweep()
        assert (await play.find(asking("m0", "a", "m"))).handle == handle

    async def test_an_expired_handle_counts_once(self, play: Play, clock: Clock) -> None:
        await play.turn(asking("m0"))
        clock.advance(TTL_S + 2)
        for _ in range(3):
            await play.find(asking("m0", "a", "m"))
            await play.ledger.sweep()
        stats = await play.ledger.stats()
        assert (stats.handles, stats.expired_handles, stats.evicted_handles) == (0, 1, 0)

    async def test_branches_age_out(self, make: Make, clock: Clock) -> None:
        play = Play(make(trace_ttl_s=1_000.0), clock)
        await play.turn(asking("old"))
        clock.advance(600.0)
        await play.turn(asking("young"))
        clock.advance(401.0)
        assert await play.ledger.find(asking("old", "a", "m")) is None  # also before a sweep
        await play.ledger.sweep()
        stats = await play.ledger.stats()
        assert (stats.branches, stats.boundaries, stats.evicted_branches) == (1, 1, 0)
        assert (await play.find(asking("young", "a", "m"))).branch

    async def test_siblings_leave_nothing_behind(self, make: Make, clock: Clock) -> None:
        play = Play(make(trace_ttl_s=1_000.0), clock)
        for _ in range(3):
            await play.finish(asking("system", "m0"), None)
        clock.advance(1_000.0)
        await play.ledger.sweep()
        stats = await play.ledger.stats()
        assert (stats.branches, stats.boundaries, stats.handles, stats.size_bytes) == (0, 0, 0, 0)

    async def test_use_keeps_a_branch(self, make: Make, clock: Clock) -> None:
        play = Play(make(trace_ttl_s=1_000.0), clock)
        await play.turn(asking("m0"))
        for _ in range(5):
            clock.advance(900.0)
            await play.find(asking("m0", "a", "m"))
            await play.ledger.sweep()
        assert (await play.ledger.stats()).branches == 1

    async def test_the_least_recently_used_goes_first(self, make: Make, clock: Clock) -> None:
        play = Play(make(max_branches=3), clock)
        for name in ("one", "two", "three"):
            await play.turn(asking(name))
        await play.find(asking("one", "a", "m"))
        await play.turn(asking("four"))
        assert await play.ledger.find(asking("two", "a", "m")) is None
        for name in ("one", "three", "four"):
            await play.find(asking(name, "a", "m"))
        stats = await play.ledger.stats()
        assert (stats.branches, stats.boundaries) == (3, 3)
        assert (stats.evicted_branches, stats.evicted_handles) == (1, 1)

    async def test_entries_are_bounded(self, make: Make, clock: Clock) -> None:
        play = Play(make(max_branches=10), clock)
        for index in range(200):
            await play.turn(asking("system", f"m{index}", own_depth=2))
            assert (await play.ledger.stats()).branches <= 10
        stats = await play.ledger.stats()
        assert (stats.branches, stats.handles, stats.evicted_branches) == (10, 10, 190)
        assert stats.boundaries == 11

    async def test_bytes_are_bounded(self, make: Make, clock: Clock) -> None:
        play = Play(make(max_bytes=100_000), clock)
        for index in range(300):
            await play.turn(asking(*(f"{index}.{message}" for message in range(20))))
            assert (await play.ledger.stats()).size_bytes <= 100_000
        stats = await play.ledger.stats()
        assert stats.evicted_branches == 300 - stats.branches
        assert stats.branches > 5

    async def test_what_is_larger_than_the_whole_is_not_kept(self, make: Make, clock: Clock) -> None:
        play = Play(make(max_bytes=2_000), clock)
        await play.turn(asking(*map(str, range(1_000))))
        stats = await play.ledger.stats()
        assert (stats.branches, stats.boundaries, stats.handles, stats.size_bytes) == (0, 0, 0, 0)

    async def test_a_turn_whose_branch_was_evicted_is_found_by_all_its_boundaries(
        self, make: Make, clock: Clock
    ) -> None:
        play = Play(make(max_branches=1), clock)
        await play.turn(asking("system", "m0"))
        query = asking("system", "m0", "a0", "m1")
        found = await play.find(query)
        await play.turn(asking("other"))
        branch, handle = await play.finish(query, found)
        assert branch != found.branch
        assert not await play.ledger.give_back(found)
        assert (await play.find(asking("system", "else", take_share=1.0))).depth == 1
        assert (await play.find(asking("system", "m0", "a0", "m1", "a1"))).handle == handle

    async def test_one_boundary_leads_to_a_bounded_number_of_branches(self, make: Make, clock: Clock) -> None:
        play = Play(make(max_siblings=2), clock)
        handles = [(await play.finish(asking("system", "m0"), None))[1] for _ in range(5)]
        found = [await play.find(asking("system", "m0", "a0", f"m{one}")) for one in range(3)]
        assert [one.handle for one in found] == [handles[4], handles[3], None]
        assert (await play.ledger.stats()).boundaries == 2
