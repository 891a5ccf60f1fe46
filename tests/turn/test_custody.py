"""A handle in a turn's hands is used once, given back if never sent, or lost; and each is told once."""

import asyncio
from dataclasses import replace

import pytest

from router.ledger.memory import MemoryLedger
from router.ledger.store import (
    Found,
    Handle,
    Ledger,
    LedgerStats,
    LedgerUnavailable,
    Put,
    Query,
    Relation,
    Trace,
)
from router.telemetry.facts import Fact, Facts, HandleFact, Outcome, Parted
from router.turn.custody import Custody
from router.turn.digest import chain
from router.turn.release import Cause, Releases

KEYS = (b"a" * 16, b"b" * 16)
TRACE = Trace("p1", "d1", prompt_tokens=200, prompt_bytes=800, reused_tokens=0, computed_at_s=1.0)
HANDLE = Handle(
    params=b'{"remote_num_tokens":300}',
    decode="d1",
    engine_id="engine-a",
    tokens=300,
    prompt_tokens=200,
    deadline_s=1000.0,
)


def now() -> float:
    return 1.0


async def a_ledger() -> MemoryLedger:
    """A ledger that knows one turn, and holds its handle."""
    ledger = MemoryLedger(now=now)
    await ledger.put(Put(KEYS[:1], None, TRACE, HANDLE))
    return ledger


QUERY = Query(KEYS, (400, 800), own_depth=1)


async def take(ledger: Ledger) -> Found:
    found = await ledger.find(QUERY)
    assert found is not None
    return found


def held(custody: Custody) -> Handle | None:
    return custody.handle


def listening() -> tuple[Facts, list[Fact]]:
    facts = Facts()
    heard: list[Fact] = []
    facts.subscribe(heard.append)
    return facts, heard


async def test_what_was_never_sent_is_given_back_and_serves_the_next_turn() -> None:
    ledger = await a_ledger()
    facts, heard = listening()
    custody = Custody(await take(ledger), ledger, facts)
    assert held(custody) == HANDLE
    assert (await take(ledger)).handle is None, "while it is in custody nobody else has it"
    await custody.close()
    assert held(custody) is None
    assert heard == [HandleFact(Outcome.GIVEN_BACK, "d1", 300)]
    assert (await take(ledger)).handle == HANDLE


async def test_what_was_sent_is_gone() -> None:
    ledger = await a_ledger()
    facts, heard = listening()
    custody = Custody(await take(ledger), ledger, facts)
    custody.sent()
    assert held(custody) is None
    await custody.close()
    assert heard == [HandleFact(Outcome.LOST, "d1", 300, "leg_ended")], "as nobody told what became of it"
    assert (await take(ledger)).handle is None


async def test_what_became_of_it_is_told_once_by_who_sent_it() -> None:
    ledger = await a_ledger()
    facts, heard = listening()
    custody = Custody(await take(ledger), ledger, facts)
    custody.sent()
    custody.tell(Outcome.FAILED, 300, "overdue")
    custody.returned()
    assert held(custody) is None, "its course is over"
    await custody.close()
    assert heard == [HandleFact(Outcome.FAILED, "d1", 300, "overdue")]


async def test_what_turned_out_not_to_be_sent_may_be_sent_again_or_given_back() -> None:
    ledger = await a_ledger()
    facts, heard = listening()
    custody = Custody(await take(ledger), ledger, facts)
    custody.sent()
    custody.returned()
    assert held(custody) == HANDLE
    custody.sent()
    assert held(custody) is None
    custody.returned()
    await custody.close()
    assert heard == [HandleFact(Outcome.GIVEN_BACK, "d1", 300)]
    assert (await take(ledger)).handle == HANDLE


async def test_what_is_dropped_is_lost_for_good() -> None:
    ledger = await a_ledger()
    facts, heard = listening()
    custody = Custody(await take(ledger), ledger, facts)
    custody.dropped("engine_restarted")
    assert held(custody) is None
    custody.dropped("engine_restarted")
    custody.returned()
    assert held(custody) is None, "nothing brings it back"
    await custody.close()
    assert heard == [HandleFact(Outcome.LOST, "d1", 300, "engine_restarted")]
    assert (await take(ledger)).handle is None


async def test_what_was_sent_cannot_be_dropped_any_more() -> None:
    ledger = await a_ledger()
    facts, heard = listening()
    custody = Custody(await take(ledger), ledger, facts)
    custody.sent()
    custody.dropped("holder_gone")
    assert heard == []


async def test_closing_twice_gives_back_once() -> None:
    ledger = await a_ledger()
    facts, heard = listening()
    custody = Custody(await take(ledger), ledger, facts)
    await custody.close()
    taken = await take(ledger)
    custody.returned()
    await custody.close()
    assert taken.handle == HANDLE
    assert (await take(ledger)).handle is None, "the other turn has it, and it is not there a second time"
    assert len(heard) == 1


async def test_a_branch_that_moved_on_does_not_take_it_back() -> None:
    ledger = await a_ledger()
    facts, heard = listening()
    found = await take(ledger)
    custody = Custody(found, ledger, facts)
    await ledger.put(Put(KEYS, found, TRACE, None))
    await custody.close()
    assert heard == [HandleFact(Outcome.LOST, "d1", 300, "moved_on")]


class Down:
    """A ledger that broke after the handle was taken."""

    async def find(self, query: Query) -> Found | None:
        raise LedgerUnavailable("down")

    async def give_back(self, found: Found) -> bool:
        raise LedgerUnavailable("down")

    async def put(self, turn: Put) -> str:
        raise LedgerUnavailable("down")

    async def sweep(self) -> None:
        raise LedgerUnavailable("down")

    async def stats(self) -> LedgerStats:
        raise LedgerUnavailable("down")

    async def close(self) -> None:
        raise LedgerUnavailable("down")


async def test_a_ledger_that_is_down_costs_the_handle_and_nothing_else() -> None:
    facts, heard = listening()
    custody = Custody(await take(await a_ledger()), Down(), facts)
    await custody.close()
    assert heard == [HandleFact(Outcome.LOST, "d1", 300, "ledger_down")]
    assert held(custody) is None


async def test_whoever_does_not_wait_for_the_ledger_counts_the_handle() -> None:
    class Slow(Down):
        async def give_back(self, found: Found) -> bool:
            await asyncio.Event().wait()
            return True

    releases = Releases(now)
    custody = Custody(await take(await a_ledger()), Slow(), Facts(), releases)
    closing = asyncio.ensure_future(custody.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert (len(releases), releases.lost_tokens("d1")) == (0, 300)


async def test_a_turn_that_found_no_handle_has_nothing_to_give_back() -> None:
    ledger = await a_ledger()
    await take(ledger)
    without = await take(ledger)
    facts, heard = listening()
    for found in (None, without):
        custody = Custody(found, ledger, facts)
        assert held(custody) is None
        custody.dropped("holder_gone")
        custody.tell(Outcome.USED, 5)
        await custody.close()
    assert heard == []


@pytest.mark.parametrize("relation", list(Relation))
async def test_only_an_extension_supersedes_what_it_took(relation: Relation) -> None:
    found = Found("b", 1, 1, relation, TRACE, 1, HANDLE, None)
    assert Custody(found, Down(), Facts()).superseded is (relation is Relation.EXTENSION)
    assert not Custody(None, Down(), Facts()).superseded


async def test_an_outcome_is_told_of_the_node_that_holds_the_kv() -> None:
    facts, heard = listening()
    custody = Custody(await take(await a_ledger()), Down(), facts)
    custody.sent()
    custody.tell(Outcome.CUT, 128, "router")
    assert heard == [HandleFact(Outcome.CUT, "d1", 128, "router", Parted.ANSWER)]


async def test_what_nobody_can_use_any_more_is_to_be_released() -> None:
    ledger, releases = await a_ledger(), Releases(now)
    found = await take(ledger)
    await ledger.put(Put(KEYS, found, TRACE, None))
    await Custody(found, ledger, Facts(), releases).close()
    ledger = await a_ledger()
    custody = Custody(await take(ledger), ledger, Facts(), releases)
    custody.superfluous("pair_cooling")
    assert held(custody) is None
    await custody.close()
    assert [(due.handle, due.cause) for due in releases.waiting()] == [(HANDLE, Cause.SUPERSEDED)] * 2
    assert (await take(ledger)).handle is None


async def test_what_somebody_may_still_read_is_never_released() -> None:
    """A leg that failed or broke off may go on reading; a ledger that did not answer may have it back."""
    releases = Releases(now)
    failed, broken_off, unsure, dead = [
        Custody(await take(await a_ledger()), ledger, Facts(), releases)
        for ledger in (await a_ledger(), await a_ledger(), Down(), await a_ledger())
    ]
    failed.sent()
    failed.tell(Outcome.FAILED, 300, "overdue")
    broken_off.sent()
    dead.dropped("engine_restarted")
    for custody in (failed, broken_off, unsure, dead):
        await custody.close()
    assert len(releases) == 0
    assert releases.pinned_tokens("d1") == 900, "and they are pinned, but for those of a process that is gone"


async def test_what_was_used_or_given_back_is_not_pinned_besides() -> None:
    releases = Releases(now)
    for outcome in (Outcome.USED, Outcome.CUT, Outcome.RELEASED):
        custody = Custody(await take(await a_ledger()), Down(), Facts(), releases)
        custody.sent()
        custody.tell(outcome, 300)
        await custody.close()
    ledger = await a_ledger()
    await Custody(await take(ledger), ledger, Facts(), releases).close()
    assert (len(releases), releases.pinned_tokens("d1")) == (0, 0)


ANSWER_UNKNOWN = replace(HANDLE, held=chain(range(200)))
ANSWER_KNOWN = replace(HANDLE, held=chain(range(300)))


@pytest.mark.parametrize(
    ("relation", "outcome", "tokens", "handle", "parted"),
    [
        (Relation.EXTENSION, Outcome.USED, 300, HANDLE, None),
        (Relation.EXTENSION, Outcome.FAILED, 300, HANDLE, None),
        (Relation.EXTENSION, Outcome.CUT, 256, ANSWER_KNOWN, Parted.ANSWER),
        (Relation.EXTENSION, Outcome.CUT, 128, ANSWER_KNOWN, Parted.ANSWER),
        (Relation.EXTENSION, Outcome.CUT, 64, ANSWER_KNOWN, Parted.HISTORY),
        (Relation.EXTENSION, Outcome.CUT, 128, ANSWER_UNKNOWN, None),
        (Relation.EXTENSION, Outcome.CUT, 64, ANSWER_UNKNOWN, Parted.HISTORY),
        (Relation.EXTENSION, Outcome.CUT, 128, HANDLE, Parted.ANSWER),
        (Relation.EXTENSION, Outcome.DIVERGED, 300, ANSWER_KNOWN, Parted.HISTORY),
        (Relation.FORK, Outcome.CUT, 128, ANSWER_KNOWN, Parted.EDIT),
        (Relation.REGENERATED, Outcome.CUT, 192, ANSWER_KNOWN, Parted.EDIT),
        (Relation.FORK, Outcome.DIVERGED, 300, ANSWER_KNOWN, Parted.EDIT),
    ],
)
def test_where_a_handles_tokens_part_from_the_prompt(
    relation: Relation, outcome: Outcome, tokens: int, handle: Handle, parted: Parted | None
) -> None:
    facts, heard = listening()
    custody = Custody(Found("b", 1, 1, relation, TRACE, 1, handle, None), Down(), facts)
    custody.sent()
    custody.tell(outcome, tokens)
    (fact,) = heard
    assert isinstance(fact, HandleFact)
    assert fact.parted is parted
