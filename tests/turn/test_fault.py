"""What a leg failed of is one word, whatever the error says."""

import pytest

from router.engines.upstream import (
    Answer,
    Broken,
    Exhausted,
    NeverSent,
    Stale,
    TimedOut,
    TooLarge,
    Unsendable,
)
from router.telemetry.facts import LegFault
from router.turn.answer import DecodeFailed
from router.turn.fault import fault_of
from router.turn.prefill import PrefillFailed, PromptDiffers
from router.turn.refusal import Refused

ANSWER = Answer(500, (), b"")


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (NeverSent("refused"), LegFault.UNREACHABLE),
        (Exhausted("no files"), LegFault.EXHAUSTED),
        (Unsendable("a line break"), LegFault.UNREACHABLE),
        (TimedOut("connect", 2.0), LegFault.UNREACHABLE),
        (TimedOut("answer", 2.0), LegFault.TIMED_OUT),
        (TimedOut("first token", 2.0), LegFault.TIMED_OUT),
        (Stale("closed"), LegFault.STALE),
        (Broken("reset"), LegFault.BROKEN),
        (TooLarge("a book"), LegFault.TOO_LARGE),
        (Refused("prefill", "p", Answer(400, (), b"")), LegFault.REFUSED),
        (PrefillFailed("status 500", answer=ANSWER), LegFault.STATUS),
        (PrefillFailed("finish reason abort"), LegFault.NONSENSE),
        (PrefillFailed("no answer", cause=TimedOut("answer", 2.0)), LegFault.TIMED_OUT),
        (PrefillFailed("reset", cause=Broken("reset")), LegFault.BROKEN),
        (PromptDiffers("another prompt"), LegFault.PROMPT_DIFFERS),
        (DecodeFailed("status 500", ANSWER), LegFault.STATUS),
        (DecodeFailed("no JSON"), LegFault.NONSENSE),
        (ValueError("an event too large"), LegFault.BROKEN),
        (None, LegFault.BROKEN),
    ],
)
def test_each_error_has_its_word(error: Exception | None, fault: LegFault) -> None:
    assert fault_of(error) is fault


@pytest.mark.parametrize(
    ("status", "fault"),
    [
        (400, LegFault.REFUSED),
        (429, LegFault.REFUSED),
        (500, LegFault.STATUS),
        (503, LegFault.STATUS),
        (302, LegFault.STATUS),
    ],
)
def test_a_status_that_is_no_success_has_its_word(status: int, fault: LegFault) -> None:
    assert LegFault.of_status(status) is fault
