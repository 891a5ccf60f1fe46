"""The core loops that are guarded do what they say."""

from typing import Any

import pytest

from bench.loops.cases import AT_MOST, LOOPS, body
from router.ledger.store import Relation
from router.turn.plan import Kind


@pytest.mark.parametrize("name", LOOPS)
def test_each_loop_can_be_repeated(name: str) -> None:
    loop = LOOPS[name]()
    first, second = loop(), loop()
    assert first is not None
    assert type(first) is type(second)


def result(name: str) -> Any:
    return LOOPS[name]()()


def test_they_take_the_way_that_their_names_tell() -> None:
    assert result("plan among 3 + 3 nodes").kind is Kind.LOCAL
    assert result("ledger, two turns of 20 messages").relation is Relation.EXTENSION
    assert len(result("lineage of a next turn, 100 KB").keys) == 102
    assert (
        result("lineage at first sight, 400 KB").keys[:100] == result("lineage at first sight, 100 KB").keys
    )
    assert result("verify 8k tokens") == 8_192 - 100
    for name in ("tap 64 events", "tap 64 events with ids"):
        assert result(name).complete
        assert result(name).answer.params


def test_histories_are_of_the_size_that_names_tell() -> None:
    for size_bytes in (100_000, 400_000):
        assert len(body(size_bytes)) == pytest.approx(size_bytes, rel=0.15)


def test_loops_are_measured_against_loops_that_there_are() -> None:
    assert {name for pair in AT_MOST for name in pair[:2]} <= set(LOOPS)
