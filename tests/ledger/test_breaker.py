"""The breaker of a store."""

from router.ledger.breaker import Breaker


def test_it_opens_after_failures_in_a_row() -> None:
    breaker = Breaker(opens_after=3)
    assert [breaker.failed(f"r{at}") for at in range(5)] == [False, False, True, False, False]
    assert breaker.open
    assert breaker.reason == "r4"


def test_an_answer_between_failures_keeps_it_closed() -> None:
    breaker = Breaker(opens_after=2)
    for _ in range(5):
        assert not breaker.failed("r")
        assert not breaker.answered()
    assert not breaker.open


def test_one_answer_closes_it_and_is_told_once() -> None:
    breaker = Breaker(opens_after=1)
    assert breaker.failed("r")
    assert [breaker.answered(), breaker.answered()] == [True, False]
    assert not breaker.open
    assert breaker.reason == ""
    assert breaker.failed("again"), "and it opens anew"
