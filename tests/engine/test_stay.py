"""A router that plans: short questions stay on D where P would have to read first, and are answered right."""

from pathlib import Path

from tests.engine import planned
from tests.engine.exchange import Engines
from tests.engine.pair import Pair, Setup
from tests.engine.report import Run


def test_planned_turns_are_right(
    setup: Setup, engine_pair: Pair, engines: Engines, logs: Path, run: Run
) -> None:
    played = planned.play(engine_pair, logs / "router-planned.log", "lighthouse")
    run.of(setup).notes["planned turns"] = f"{planned.check(played, engines, engine_pair)}; all right"
