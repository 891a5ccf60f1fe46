"""Ends of conversations are remembered for turns that began before them, and not for ever."""

import pytest

from router.ledger import ended
from router.ledger.ended import Ended


def test_only_turns_that_began_before_the_end_are_over() -> None:
    ends = Ended(60.0)
    ends.add(b"one", 100.0)
    assert ends.since(b"one", 99.0)
    assert not ends.since(b"one", 100.0)
    assert not ends.since(b"one", 101.0)
    assert not ends.since(b"one", None)
    assert not ends.since(b"other", 99.0)


def test_the_newest_end_counts() -> None:
    ends = Ended(60.0)
    ends.add(b"one", 100.0)
    ends.add(b"one", 110.0)
    assert ends.since(b"one", 105.0)
    assert len(ends) == 1


def test_ends_are_forgotten_in_time() -> None:
    ends = Ended(60.0)
    ends.add(b"one", 100.0)
    ends.add(b"two", 120.0)
    ends.add(b"one", 150.0)
    ends.add(b"three", 181.0)
    assert [ends.since(owner, 90.0) for owner in (b"one", b"two", b"three")] == [True, False, True]


def test_their_number_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ended, "MAX_ENDED", 3)
    ends = Ended(60.0)
    for number in range(5):
        ends.add(b"%d" % number, 100.0)
    assert [ends.since(b"%d" % number, 90.0) for number in range(5)] == [False, False, True, True, True]
