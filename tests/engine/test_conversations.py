"""Many growing conversations at once, as agents have them: reuse on every turn after the first, all right.

``BOOMERANG_CONVERSATIONS`` is their number. With the plugin everything is streamed; a stock engine's streams
carry no handle, so nothing is streamed there.
"""

import os

import pytest

from tests.engine.conversation import notes
from tests.engine.exchange import Engines
from tests.engine.pair import Setup
from tests.engine.play import Checked, Player, Turn, check
from tests.engine.report import CONVERSATIONS_VARIABLE, Run, grown

CONVERSATIONS = int(os.environ.get(CONVERSATIONS_VARIABLE, "10"))
AT_ONCE = 2
QUESTIONS = (
    "Which line is the latest?",
    "And which one is done first?",
    "Name the two that wait longest.",
    "Is any number there twice?",
    "Write the sum of the last column.",
)
SUBJECTS = ("figs", "pears", "plums", "dates", "limes", "nuts", "leeks", "beans", "oats", "hops")


@pytest.fixture(scope="session")
def grew(
    setup: Setup, player: Player, turns: dict[str, Turn], engines: Engines, run: Run
) -> dict[str, list[Checked]]:
    assert turns  # they come first: their references are the clock of the test of expiry
    texts = {
        f"{SUBJECTS[at % len(SUBJECTS)]} {at + 1}": (
            notes(f"{at + 1} {SUBJECTS[at % len(SUBJECTS)]}", 14),
            *QUESTIONS,
        )
        for at in range(CONVERSATIONS)
    }
    played = player.grow_many(texts, streamed=setup is Setup.PLUGIN, at_once=AT_ONCE)
    beside = check([turn for each in played.values() for turn in each], engines)
    run.of(setup).conversations = {
        name: [beside[turn.name] for turn in each] for name, each in played.items()
    }
    return run.of(setup).conversations


def test_every_turn_after_the_first_is_reused(grew: dict[str, list[Checked]]) -> None:
    later = [each.turn for played in grew.values() for each in played[1:]]
    assert len(later) == CONVERSATIONS * len(QUESTIONS)
    cold = [(turn.name, turn.plan, turn.reason) for turn in later if turn.reused_tokens == 0]
    assert cold == [], grown(grew)
    assert all("remote_request_id" in turn.prefill_legs[-1].sent for turn in later)


def test_no_answer_is_wrong(grew: dict[str, list[Checked]]) -> None:
    wrong = [each.turn.name for played in grew.values() for each in played if not each.is_right]
    assert wrong == [], grown(grew)
