"""What the live page is told of: turns, sums, and what is amiss."""

from dataclasses import replace

import pytest

from router.telemetry.facts import (
    DiscoveryFailed,
    EndedBy,
    Fact,
    HandleFact,
    LedgerFailed,
    LegFailed,
    NodesListed,
    Outcome,
    PromptMismatch,
    StoreChanged,
    TaskFailed,
)
from router.telemetry.live import MAX_CHARS, PASSING_S, TROUBLES_KEPT, TURNS_KEPT, Live, Sums
from tests.telemetry.test_metrics import TURN


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def told(live: Live, *facts: Fact) -> Live:
    for fact in facts:
        live(fact)
    return live


def test_sums_are_of_turns_whose_tokens_are_known() -> None:
    turn = replace(TURN, prompt_tokens=1000, reused_tokens=600, moved_tokens=500, completion_tokens=7)
    live = told(
        Live(Clock()),
        turn,
        replace(turn, reused_tokens=None, moved_tokens=None, ended_by=EndedBy.FAULT),
        replace(turn, prompt_tokens=None, completion_tokens=None, ended_by=EndedBy.CLIENT),
        replace(turn, ended_by=EndedBy.ROUTER),
        HandleFact(Outcome.USED, "d", 5),
    )
    assert live.sums == Sums(
        turns=4,
        failed=2,
        left=1,
        prompt_tokens=2000,
        reused_tokens=1200,
        moved_tokens=1000,
        completion_tokens=21,
    )
    assert [one.number for one in live.ended] == [1, 2, 3, 4]
    assert live.ended[0].at_s == 100.0


@pytest.mark.parametrize("after", [0, 1, 7, 999, 1001, 1249, 1250, 5000])
def test_turns_since_a_number_are_those_that_are_kept(after: int) -> None:
    live = told(Live(Clock()), *(TURN for _ in range(1250)))
    assert len(live.ended) == TURNS_KEPT
    found = [one.number for one in live.since(after)]
    assert found == list(range(max(after, 250) + 1, 1251))


def test_nothing_has_ended_yet() -> None:
    assert list(Live(Clock()).since(0)) == []


def test_a_store_and_a_source_stay_amiss_until_they_answer() -> None:
    clock = Clock()
    live = told(
        Live(clock),
        StoreChanged("redis://r:1", up=False, reason="refused"),
        DiscoveryFailed("dns://e", "no name"),
    )
    clock.now_s += 10 * PASSING_S
    assert live.troubles() == [
        "the store redis://r:1 does not answer: refused",
        "dns://e cannot be read, its last nodes stand: no name",
    ]
    told(live, NodesListed("dns://e", 2), StoreChanged("redis://r:1", up=True, reason=""))
    assert live.troubles() == []


@pytest.mark.parametrize(
    ("fact", "text"),
    [
        (LedgerFailed("find", "timed out"), "the ledger did not find: timed out"),
        (
            LegFailed("brg-1", "decode", "d:1", "x", with_handle=False, action="fail"),
            "a decode leg failed on d:1: x",
        ),
        (PromptMismatch("m", "p:1", 128), "p:1 read another prompt than was verified"),
        (TaskFailed("sweep", "boom"), "task sweep failed and starts again: boom"),
    ],
)
def test_other_faults_pass(fact: Fact, text: str) -> None:
    clock = Clock()
    live = told(Live(clock), fact)
    (found,) = live.troubles()
    assert text in found
    clock.now_s += PASSING_S
    assert live.troubles() == []


def test_a_leg_that_was_made_up_for_is_no_trouble() -> None:
    leg = LegFailed("brg-1", "prefill", "p:1", "x", with_handle=True, action="cold_retry")
    assert told(Live(Clock()), leg).troubles() == []


def test_troubles_are_bounded_in_number_and_length_and_tell_no_secret() -> None:
    live = told(Live(Clock()), *(DiscoveryFailed(f"http://u:hunter2@h{n}/", "x" * 5000) for n in range(200)))
    found = live.troubles()
    assert len(found) == TROUBLES_KEPT
    assert max(map(len, found)) <= MAX_CHARS + 1
    assert "hunter2" not in "".join(found)
    assert "h199" in found[-1], "the newest are kept"
