"""The same once P was killed and started again, with or without a prefix cache, as it was not before."""

from pathlib import Path

from tests.engine import planned
from tests.engine.exchange import Engines
from tests.engine.pair import Pair, Setup
from tests.engine.report import Run


def test_planned_turns_are_right_after_the_restarts(
    setup: Setup, engine_pair: Pair, engines: Engines, logs: Path, run: Run
) -> None:
    played = planned.play(engine_pair, logs / "router-planned-again.log", "windmill")
    plans = planned.check(played, engines, engine_pair)
    run.of(setup).notes["planned turns after the restarts"] = f"{plans}; all right"
