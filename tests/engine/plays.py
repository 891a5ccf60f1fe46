"""Which steps are played on which setup, streamed and not."""

from dataclasses import dataclass

from tests.engine.conversation import Change, Step, notes, script
from tests.engine.pair import Setup
from tests.engine.play import Turn

UNSEEN = tuple(
    Step(f"streamed {turn}", "streamed", Change.ASK, text, None)
    for turn, text in enumerate((notes("zinc", 16), "Which is late?", "Which is not?"), start=1)
)
"""Streamed turns of a stock vLLM before 0.33: their handles are seen by nobody, so there is none to use."""

PLAYS: dict[Setup, dict[bool, tuple[Step, ...]]] = {
    Setup.STOCK: {True: UNSEEN, False: script("whole", "tin")},
    Setup.PLUGIN: {True: script("streamed", "zinc"), False: script("whole", "tin")},
}
"""Per setup: what is played streamed (True), and what is not."""


@dataclass(frozen=True, slots=True)
class Aging:
    """A turn whose handle is left to grow old while other tests run."""

    turn: Turn
    ended_s: float
    """On the monotonic clock."""
