"""The rules of ``router.ledger.store.PinLedger`` as tests: what release and operators see of a ledger.

A test module inherits ``PinRules`` and gives a ``make`` fixture, as for ``tests.ledger.conformance``; what it
makes has to be a ``Ledger`` and a ``PinLedger`` at once.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol, cast

import pytest

from router.ledger.store import (
    Absence,
    Finish,
    Found,
    Handle,
    Leaving,
    Ledger,
    Line,
    PinLedger,
    Put,
    owner_of,
)
from tests.ledger.play import TTL_S, Clock, Make, Play, asking, handle_of


class Both(Ledger, PinLedger, Protocol):
    """What a ledger is that can release."""


class Lines:
    """Conversations on two decode nodes."""

    def __init__(self, ledger: Both, clock: Clock) -> None:
        self.ledger, self.clock, self._play = ledger, clock, Play(ledger, clock)
        self.left: list[tuple[Handle, Leaving]] = []
        ledger.on_left = lambda handle, leaving: self.left.append((handle, leaving))

    async def put(
        self,
        *history: str,
        found: Found | None = None,
        decode: str = "d:1",
        finish: Finish = Finish.STOP,
        conversation: str = "",
        tenant: bytes = b"t",
        ttl_s: float = TTL_S,
        began_s: float | None = None,
    ) -> Handle:
        """End a turn well; the handle that it left, of a hundred tokens a message and 50."""
        query = asking(*history)
        depth = len(history)
        handle = replace(handle_of(100 * depth, self.clock.now_s + ttl_s), decode=decode)
        await self.ledger.put(
            Put(
                query.keys,
                found,
                replace(
                    self._play.trace(depth), decode=decode, finish=finish, plan="pull", reason="extension"
                ),
                handle,
                conversation,
                owner=owner_of(tenant, conversation),
                began_s=began_s,
            )
        )
        return handle

    async def find(self, *history: str) -> Found:
        return await self._play.find(asking(*history))

    async def pinned(self) -> dict[str, tuple[int, int]]:
        """Tokens and handles by node, of nodes that have any."""
        pinned = await self.ledger.pinned()
        return {key: (one.tokens, one.handles) for key, one in pinned.items() if one.handles or one.tokens}

    async def pages(self, limit: int) -> list[Line]:
        """All lines, page by page."""
        found: list[Line] = []
        cursor: str | None = None
        while True:
            page = await self.ledger.conversations(cursor=cursor, limit=limit)
            assert len(page.lines) <= limit
            found += page.lines
            cursor = page.cursor
            if cursor is None:
                return found


class PinRules:
    """What waits, what is taken for release, and what a conversation's end leaves."""

    @pytest.fixture
    def lines(self, make: Make, clock: Clock) -> Lines:
        return Lines(cast(Both, make()), clock)

    # What is pinned

    async def test_nothing_is_pinned_at_first(self, lines: Lines) -> None:
        assert await lines.pinned() == {}
        assert await lines.ledger.oldest("d:1", Finish.STOP) is None
        assert (await lines.ledger.conversations(cursor=None, limit=10)).lines == ()

    async def test_pinned_tokens_by_decode_node(self, lines: Lines) -> None:
        await lines.put("m0")
        await lines.put("m1", "more")
        await lines.put("m2", decode="d:2", finish=Finish.TOOL_CALLS)
        assert await lines.pinned() == {"d:1": (400, 2), "d:2": (150, 1)}

    async def test_a_handle_that_a_turn_has_does_not_wait(self, lines: Lines) -> None:
        await lines.put("m0")
        found = await lines.find("m0", "a0", "m1")
        assert found.handle is not None
        assert await lines.pinned() == {}
        assert await lines.ledger.oldest("d:1", Finish.STOP) is None
        assert await lines.ledger.give_back(found)
        assert await lines.pinned() == {"d:1": (150, 1)}

    async def test_the_next_turns_handle_takes_the_place(self, lines: Lines) -> None:
        await lines.put("m0")
        found = await lines.find("m0", "a0", "m1")
        await lines.put("m0", "a0", "m1", found=found, decode="d:2", finish=Finish.LENGTH)
        assert await lines.pinned() == {"d:2": (350, 1)}
        candidate = await lines.ledger.oldest("d:2", Finish.LENGTH)
        assert candidate is not None
        assert (candidate.branch, candidate.tokens) == (found.branch, 350)

    async def test_an_expired_handle_pins_nothing(self, lines: Lines, clock: Clock) -> None:
        await lines.put("m0")
        clock.advance(TTL_S)
        assert (await lines.find("m0", "a0", "m1")).absence is Absence.EXPIRED
        assert await lines.pinned() == {}

    async def test_a_turn_without_a_handle_pins_nothing(self, lines: Lines) -> None:
        trace = Play(lines.ledger, lines.clock).trace(1)
        await lines.ledger.put(Put(asking("m0").keys, None, trace, None))
        assert await lines.pinned() == {}

    # Whose handle waits longest

    async def test_the_one_that_waits_longest_by_node_and_finish(self, lines: Lines, clock: Clock) -> None:
        since_s = {}
        for name, finish in (("a", Finish.STOP), ("b", Finish.TOOL_CALLS), ("c", Finish.STOP)):
            since_s[name] = clock.now_s
            await lines.put(name, finish=finish)
            clock.advance(1.0)
        await lines.put("d", decode="d:2")
        stop = await lines.ledger.oldest("d:1", Finish.STOP)
        assert stop is not None
        assert (stop.decode, stop.finish, stop.tokens) == ("d:1", Finish.STOP, 150)
        assert stop.waits_since_s == pytest.approx(since_s["a"])
        assert stop.deadline_s == pytest.approx(since_s["a"] + TTL_S)
        tools = await lines.ledger.oldest("d:1", Finish.TOOL_CALLS)
        assert tools is not None
        assert tools.waits_since_s == pytest.approx(since_s["b"])
        assert await lines.ledger.oldest("d:1", Finish.LENGTH) is None
        assert await lines.ledger.oldest("d:3", Finish.STOP) is None

    async def test_what_is_given_back_waits_anew(self, lines: Lines, clock: Clock) -> None:
        await lines.put("a")
        clock.advance(1.0)
        await lines.put("b")
        clock.advance(1.0)
        await lines.ledger.give_back(await lines.find("a", "a0", "m1"))
        oldest = await lines.ledger.oldest("d:1", Finish.STOP)
        assert oldest is not None
        taken = await lines.ledger.take(oldest.branch, oldest.version)
        assert taken is not None
        assert (await lines.find("b", "a0", "m1")).absence is Absence.RELEASED

    # Taking for release

    async def test_what_is_taken_for_release_is_gone_for_turns(self, lines: Lines) -> None:
        handle = await lines.put("m0")
        candidate = await lines.ledger.oldest("d:1", Finish.STOP)
        assert candidate is not None
        assert await lines.ledger.take(candidate.branch, candidate.version) == handle
        assert await lines.ledger.take(candidate.branch, candidate.version) is None
        assert await lines.pinned() == {}
        found = await lines.find("m0", "a0", "m1")
        assert (found.handle, found.absence) == (None, Absence.RELEASED)
        # The branch itself goes on.
        await lines.put("m0", "a0", "m1", found=found)
        assert (await lines.find("m0", "a0", "m1", "a1", "m2")).branch == found.branch

    async def test_what_a_turn_has_is_not_released(self, lines: Lines) -> None:
        await lines.put("m0")
        candidate = await lines.ledger.oldest("d:1", Finish.STOP)
        found = await lines.find("m0", "a0", "m1")
        assert candidate is not None
        assert await lines.ledger.take(candidate.branch, candidate.version) is None
        await lines.put("m0", "a0", "m1", found=found)
        assert await lines.ledger.take(candidate.branch, candidate.version) is None, "the branch moved on"
        assert await lines.ledger.take("no such branch", 1) is None

    async def test_an_expired_handle_is_not_taken(self, lines: Lines, clock: Clock) -> None:
        await lines.put("m0")
        candidate = await lines.ledger.oldest("d:1", Finish.STOP)
        clock.advance(TTL_S)
        assert candidate is not None
        assert await lines.ledger.take(candidate.branch, candidate.version) is None
        assert await lines.pinned() == {}

    async def test_a_turn_and_a_release_never_both_get_it(self, lines: Lines) -> None:
        for number in range(50):
            await lines.put(f"m{number}")
            candidate = await lines.ledger.oldest("d:1", Finish.STOP)
            assert candidate is not None
            taken, found = await asyncio.gather(
                lines.ledger.take(candidate.branch, candidate.version),
                lines.find(f"m{number}", "a0", "m1"),
            )
            assert (taken is None) != (found.handle is None)

    # The end of a conversation

    async def test_an_ended_conversation_gives_up_its_handles(self, lines: Lines) -> None:
        one = await lines.put("m0", conversation="c")
        other = await lines.put("m1", conversation="c", decode="d:2")
        await lines.put("m2", conversation="another")
        await lines.put("m3")
        ended = await lines.ledger.end(owner_of(b"t", "c"))
        assert ended is not None
        assert _sorted(ended) == _sorted((one, other))
        assert await lines.pinned() == {"d:1": (300, 2)}
        assert (await lines.find("m0", "a0", "m1")).absence is Absence.RELEASED
        assert await lines.ledger.end(owner_of(b"t", "c")) is None, "there is no such conversation any more"

    async def test_a_conversation_without_a_handle_is_known_too(self, lines: Lines) -> None:
        await lines.put("m0", conversation="c")
        await lines.find("m0", "a0", "m1")
        assert await lines.ledger.end(owner_of(b"t", "c")) == ()

    async def test_nobody_ends_anothers_conversation(self, lines: Lines) -> None:
        await lines.put("m0", conversation="c", tenant=b"one")
        assert await lines.ledger.end(owner_of(b"two", "c")) is None
        assert await lines.ledger.end(owner_of(b"one", "")) is None
        assert await lines.ledger.end(b"") is None
        assert await lines.pinned() == {"d:1": (150, 1)}

    async def test_an_ended_conversation_may_go_on(self, lines: Lines) -> None:
        await lines.put("m0", conversation="c")
        await lines.ledger.end(owner_of(b"t", "c"))
        found = await lines.find("m0", "a0", "m1")
        handle = await lines.put("m0", "a0", "m1", found=found, conversation="c")
        assert (await lines.find("m0", "a0", "m1", "a1", "m2")).handle == handle
        assert await lines.ledger.end(owner_of(b"t", "c")) == ()

    async def test_a_branch_can_change_hands(self, lines: Lines) -> None:
        """Clients name their conversations as they like, and may begin to do so late."""
        await lines.put("m0", conversation="first name")
        found = await lines.find("m0", "a0", "m1")
        handle = await lines.put("m0", "a0", "m1", found=found, conversation="second name")
        assert await lines.ledger.end(owner_of(b"t", "first name")) is None
        assert await lines.ledger.end(owner_of(b"t", "second name")) == (handle,)

    async def test_an_end_wins_over_the_turn_that_has_the_handle(self, lines: Lines, clock: Clock) -> None:
        await lines.put("m0", conversation="c")
        began_s, found = clock.now_s, await lines.find("m0", "a0", "m1")
        assert found.handle is not None
        clock.advance(1.0)
        assert await lines.ledger.end(owner_of(b"t", "c")) == ()
        assert not await lines.ledger.give_back(found), "it is not to wait again"
        handle = await lines.put("m0", "a0", "m1", found=found, conversation="c", began_s=began_s)
        assert lines.left == [(handle, Leaving.ENDED)]
        assert await lines.pinned() == {}
        assert await lines.ledger.end(owner_of(b"t", "c")) is None, "and the conversation stays ended"
        gone_on = await lines.find("m0", "a0", "m1", "a1", "m2")
        assert (gone_on.handle, gone_on.absence) == (None, Absence.RELEASED)
        assert lines.left == [(handle, Leaving.ENDED)]

    async def test_an_end_wins_over_a_first_turn_under_way(self, lines: Lines, clock: Clock) -> None:
        began_s = clock.now_s
        clock.advance(1.0)
        assert await lines.ledger.end(owner_of(b"t", "c")) is None
        handle = await lines.put("m0", conversation="c", began_s=began_s)
        assert lines.left == [(handle, Leaving.ENDED)]
        other = await lines.put("m1", conversation="another", began_s=began_s)
        assert (await lines.find("m1", "a0", "m1")).handle == other

    async def test_what_begins_after_the_end_is_kept(self, lines: Lines, clock: Clock) -> None:
        await lines.put("m0", conversation="c")
        await lines.ledger.end(owner_of(b"t", "c"))
        clock.advance(1.0)
        began_s, found = clock.now_s, await lines.find("m0", "a0", "m1")
        clock.advance(1.0)
        handle = await lines.put("m0", "a0", "m1", found=found, conversation="c", began_s=began_s)
        assert (await lines.find("m0", "a0", "m1", "a1", "m2")).handle == handle
        assert lines.left == []

    # What leaves unasked

    async def test_a_handle_that_is_superseded_while_it_waits(self, lines: Lines) -> None:
        handle = await lines.put("m0")
        slow, fast = await lines.find("m0", "a0", "m1"), await lines.find("m0", "a0", "m1")
        assert (slow.handle, fast.handle) == (handle, None)
        assert await lines.ledger.give_back(slow)
        await lines.put("m0", "a0", "m1", found=fast)
        assert lines.left == [(handle, Leaving.SUPERSEDED)]
        assert await lines.pinned() == {"d:1": (350, 1)}

    async def test_a_handle_whose_branch_has_no_room(self, make: Make, clock: Clock) -> None:
        lines = Lines(cast(Both, make(max_branches=1)), clock)
        first = await lines.put("m0", "one")
        clock.advance(1.0)
        await lines.put("m0", "two")
        assert lines.left == [(first, Leaving.EVICTED)]
        assert await lines.pinned() == {"d:1": (250, 1)}

    async def test_a_handle_that_is_over_leaves_without_a_word(self, lines: Lines, clock: Clock) -> None:
        await lines.put("m0", ttl_s=5.0)
        found = await lines.find("m0", "a0", "m1")
        clock.advance(5.0)
        await lines.ledger.give_back(found)
        await lines.put("m0", "a0", "m1", found=found, ttl_s=0.0)
        assert lines.left == []

    async def test_a_handle_that_no_boundary_leads_to(self, lines: Lines) -> None:
        handle = await lines.put()
        assert lines.left == [(handle, Leaving.UNKEPT)]

    # What operators see

    async def test_lines(self, lines: Lines, clock: Clock) -> None:
        await lines.put("m0", conversation="c")
        clock.advance(1.0)
        found = await lines.find("m0", "a0", "m1")
        await lines.put("m0", "a0", "m1", found=found, conversation="c", finish=Finish.TOOL_CALLS)
        (line,) = await lines.pages(10)
        assert (line.conversation, line.turns, line.pinned_tokens) == ("c", 2, 350)
        assert (line.trace.decode, line.trace.prefill) == ("d:1", "http://p:8100")
        assert (line.trace.plan, line.trace.reason) == ("pull", "extension")
        assert line.trace.finish is Finish.TOOL_CALLS
        assert line.used_at_s == pytest.approx(clock.now_s)
        assert line.deadline_s == pytest.approx(clock.now_s + TTL_S)
        await lines.find("m0", "a0", "m1", "a1", "m2")
        (line,) = await lines.pages(10)
        assert (line.pinned_tokens, line.deadline_s) == (0, None)

    @pytest.mark.parametrize("limit", [1, 3, 7, 100])
    async def test_pages_hold_every_branch_once(self, limit: int, lines: Lines, clock: Clock) -> None:
        names = [f"c{number}" for number in range(10)]
        for name in names:
            await lines.put(name, conversation=name)
            clock.advance(1.0)
        assert [line.conversation for line in await lines.pages(limit)] == names[::-1]

    async def test_a_cursor_of_nobodys_is_the_beginning(self, lines: Lines) -> None:
        await lines.put("m0")
        for cursor in ("", "what", "a/b/c", "x/nan/nan", "///"):
            page = await lines.ledger.conversations(cursor=cursor, limit=10)
            assert len(page.lines) <= 1
        assert len((await lines.ledger.conversations(cursor="what", limit=10)).lines) == 1


def _sorted(handles: Sequence[Handle]) -> list[Handle]:
    return sorted(handles, key=lambda handle: handle.decode)
