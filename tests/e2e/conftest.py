"""How long the long runs are, and from which seed: by environment, so that CI and a desk can differ."""

import os
import secrets
from collections.abc import Callable

import pytest

DEFAULT_TURNS = 1_500
SHORT_SOCKET_TURNS, LONG_SOCKET_TURNS = 100, 1_000


def turns_wanted() -> int:
    """``BOOMERANG_TURNS``: in-process turns per mode."""
    return int(os.environ.get("BOOMERANG_TURNS", DEFAULT_TURNS))


@pytest.fixture
def turns() -> int:
    return turns_wanted()


@pytest.fixture
def socket_turns() -> int:
    """As many turns over sockets as go with the length of the run."""
    return SHORT_SOCKET_TURNS if turns_wanted() <= DEFAULT_TURNS else LONG_SOCKET_TURNS


@pytest.fixture
def seed() -> int:
    """``BOOMERANG_SEED``: a number, or ``random``; a failure tells which it was."""
    given = os.environ.get("BOOMERANG_SEED", "1")
    return secrets.randbelow(1 << 32) if given == "random" else int(given)


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Print a line that is seen also where the test passes."""

    def line(text: str) -> None:
        with capsys.disabled():
            print(f"\n{text}", end="")  # noqa: T201 - the result of a long run is for the reader

    return line
