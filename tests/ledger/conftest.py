"""What the ledger tests share. Asserts of the conformance suite explain themselves like those of a test."""

import pytest

pytest.register_assert_rewrite(
    "tests.ledger.conformance", "tests.ledger.conformance_pins", "tests.ledger.play"
)

from tests.ledger.play import Clock, Make, Play  # noqa: E402 - the rewriting has to be registered first


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def play(make: Make, clock: Clock) -> Play:
    """Turns against a fresh ledger; ``make`` is the test module's own."""
    return Play(make(), clock)
