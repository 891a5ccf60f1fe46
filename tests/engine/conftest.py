"""Fixtures: a real pair of each setup, the recorder in front of it, the router, and the turns played there.

All tests of one setup run before those of the other, so that there are never two pairs, and the modules run
in the order of ``ORDER``: whatever kills an engine comes after whatever reads its log.
"""

import faulthandler
import os
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.engine import front, pair, play, report
from tests.engine.conversation import opening
from tests.engine.exchange import Engines
from tests.engine.front import Front
from tests.engine.pair import Pair, Setup
from tests.engine.play import Checked, Player, Turn
from tests.engine.plays import PLAYS, Aging
from tests.engine.recorder import Recorder

ORDER = (
    "test_exchange",
    "test_check",
    "test_turns",
    "test_conversations",
    "test_expiry",
    "test_leaving",
    "test_release",
    "test_ending",
    "test_stay",
    "test_wrong_handle",
    "test_restart",
    "test_stay_restarted",
    "test_whole_run",
)
CLIENT_TIMEOUT_S = 240.0


@pytest.fixture(scope="session", params=list(Setup), ids=str)
def setup(request: pytest.FixtureRequest) -> Setup:
    chosen: Setup = request.param
    return chosen


@pytest.fixture(scope="session")
def run(request: pytest.FixtureRequest) -> report.Run:
    """What the tests find out, for the report."""
    return request.config.stash[report.RUN]


@pytest.fixture(scope="session")
def logs(setup: Setup, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp(f"engine-logs-{setup}")


@pytest.fixture(scope="session")
def engine_pair(setup: Setup, logs: Path, run: report.Run) -> Iterator[Pair]:
    """The real 1P1D pair. Its logs stay in pytest's temporary directory."""
    pair.install()
    with pair.serve(setup, logs) as started:
        run.version = report.engine_version(started.prefill.url)
        run.of(setup).parts = report.parts_on(started.logs)
        yield started


@pytest.fixture(scope="session")
def client() -> Iterator[httpx.Client]:
    # No connection is used twice: vLLM closes idle ones after 5 s, and turns can be further apart.
    limits = httpx.Limits(max_keepalive_connections=0)
    with httpx.Client(timeout=CLIENT_TIMEOUT_S, limits=limits) as opened:
        yield opened


@pytest.fixture(scope="session")
def engines(engine_pair: Pair, client: httpx.Client) -> Engines:
    """The same pair, spoken to directly: for references and hand-made exchanges."""
    spoken_to = Engines(engine_pair.prefill.url, engine_pair.decode.url, client)
    spoken_to.meet()
    return spoken_to


@pytest.fixture(scope="session")
def recorder(engine_pair: Pair) -> Iterator[Recorder]:
    with Recorder(engine_pair.prefill.url, engine_pair.decode.url) as started:
        yield started


@pytest.fixture(scope="session")
def router(recorder: Recorder, engines: Engines, logs: Path) -> Iterator[Front]:
    """The router as its own process, with the recorder as its engines, which have met by now."""
    with front.serve(recorder.urls["prefill"], recorder.urls["decode"], logs / "router.log") as started:
        yield started


@pytest.fixture(scope="session")
def player(router: Front, recorder: Recorder) -> Iterator[Player]:
    with play.playing(router.url, recorder) as started:
        yield started


@pytest.fixture(scope="session")
def aging(player: Player, setup: Setup) -> Aging:
    turn = player.turn("aging 1", opening("barrels", 16), streamed=setup is Setup.PLUGIN)
    return Aging(turn, time.monotonic())


@pytest.fixture(scope="session")
def turns(setup: Setup, player: Player, aging: Aging) -> dict[str, Turn]:
    """All steps of a setup's plays; by name. ``aging`` has begun by then."""
    played: dict[str, Turn] = {}
    for streamed, steps in PLAYS[setup].items():
        played |= player.script(steps, streamed=streamed)
    return played


@pytest.fixture(scope="session")
def checked(turns: dict[str, Turn], engines: Engines, setup: Setup, run: report.Run) -> dict[str, Checked]:
    """The same turns beside their references; by name."""
    beside = play.check(list(turns.values()), engines)
    run.of(setup).checked = list(beside.values())
    return beside


def pytest_configure(config: pytest.Config) -> None:
    config.stash[report.RUN] = report.Run()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent

    def place(item: pytest.Item) -> tuple[int, int]:
        parameters = item.callspec.params if isinstance(item, pytest.Function) else {}
        setups = [str(each) for each in Setup]
        return (setups.index(str(parameters["setup"])), ORDER.index(item.path.stem))

    ours = [item for item in items if item.path.parent == here]
    others = [item for item in items if item.path.parent != here]
    items[:] = [*others, *sorted(ours, key=place)]


def pytest_runtest_setup() -> None:
    # Engines start and turns are played within a fixture, which takes longer than a hung unit test is given.
    # Every wait in here has a limit of its own.
    faulthandler.cancel_dump_traceback_later()


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    """Print the tables, also with -q and when all is well: they are what the run is for."""
    found = config.stash[report.RUN]
    stats = terminalreporter.stats
    report.write_facts(
        found, [each.nodeid for each in (*stats.get("failed", ()), *stats.get("error", ()))], os.environ
    )
    if not found.sections:
        return
    terminalreporter.section("turns through the router")
    terminalreporter.write_line(report.summary(found))
    if exitstatus == 0 and (path := report.write(report.text(found, os.environ))) is not None:
        terminalreporter.write_line(f"written: {path}")
