"""Pages of branches while these are being used: every page ends, and the pages come to an end."""

import pytest

from router.ledger import listing
from router.ledger.memory import MemoryLedger
from router.ledger.store import Line
from tests.ledger.play import Clock, Play, asking

COUNT = 40


async def ledger_of(clock: Clock) -> tuple[MemoryLedger, Play]:
    ledger = MemoryLedger(now=clock, trace_ttl_s=10_000.0)
    play = Play(ledger, clock)
    for number in range(COUNT):
        await play.finish(asking(f"m{number}", conversation=f"c{number}"), None)
        clock.advance(1.0)
    return ledger, play


async def test_what_is_not_used_meanwhile_is_listed_once(clock: Clock) -> None:
    ledger, play = await ledger_of(clock)
    seen: list[Line] = []
    cursor: str | None = None
    for used in range(100):
        page = await ledger.conversations(cursor=cursor, limit=4)
        seen += page.lines
        cursor = page.cursor
        if cursor is None:
            break
        # The branch that the cursor names moves, and others with it.
        await play.find(asking(f"m{COUNT - 1 - 4 * used - 3}", "a0", "m"))
        clock.advance(1.0)
    assert cursor is None
    names = [line.conversation for line in seen]
    assert set(names) == {f"c{number}" for number in range(COUNT)}
    assert len(names) == COUNT


async def test_branches_of_one_moment_are_all_listed(clock: Clock) -> None:
    ledger = MemoryLedger(now=clock)
    play = Play(ledger, clock)
    for number in range(10):
        await play.finish(asking(f"m{number}", conversation=f"c{number}"), None)
    names: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        page = await ledger.conversations(cursor=cursor, limit=3)
        names += [line.conversation for line in page.lines]
        cursor = page.cursor
    assert names == [f"c{number}" for number in reversed(range(10))]


async def test_a_page_looks_at_a_bounded_number_of_branches(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "MAX_PASSED", 5)
    ledger, play = await ledger_of(clock)
    first = await ledger.conversations(cursor=None, limit=4)
    for number in range(20, 40):  # among them the one that the cursor names
        await play.find(asking(f"m{number}", "a0", "m"))
        clock.advance(1.0)
    names: list[str] = []
    cursor, pages = first.cursor, 0
    while cursor is not None:
        page = await ledger.conversations(cursor=cursor, limit=4)
        names += [line.conversation for line in page.lines]
        cursor, pages = page.cursor, pages + 1
        assert pages < 50
    assert set(names) >= {f"c{number}" for number in range(20)}


async def test_what_is_too_old_is_not_listed(clock: Clock) -> None:
    ledger, _ = await ledger_of(clock)
    clock.advance(10_000.0 - COUNT / 2)
    page = await ledger.conversations(cursor=None, limit=100)
    assert 0 < len(page.lines) < COUNT
    assert page.cursor is None
