"""Fixtures: the real pair, the recorder in front of it, the router, and the turns played through them."""

import faulthandler
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.engine import pair, report
from tests.engine.exchange import Engines
from tests.engine.play import Checked, Turn, check, play
from tests.engine.recorder import Recorder

ROOT = Path(__file__).parents[2]
ROUTER_DEADLINE_S = 60.0

# A busy machine can hold a leg up for tens of seconds, and a pull that is given up would be a cold turn here.
PULL_TIMEOUT_S = 120.0
CLIENT_TIMEOUT_S = 240.0


@pytest.fixture(scope="session")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("engine-logs")


@pytest.fixture(scope="session")
def engine_pair(logs: Path, request: pytest.FixtureRequest) -> Iterator[pair.Pair]:
    """The real 1P1D pair. Its logs stay in pytest's temporary directory."""
    pair.install()
    started = pair.start(logs)
    try:
        request.config.stash[report.VERSION] = report.engine_version(started.prefill_url)
        yield started
    finally:
        pair.stop(started)


@pytest.fixture(scope="session")
def client() -> Iterator[httpx.Client]:
    # No connection is used twice: vLLM closes idle ones after 5 s, and turns can be further apart.
    limits = httpx.Limits(max_keepalive_connections=0)
    with httpx.Client(timeout=CLIENT_TIMEOUT_S, limits=limits) as opened:
        yield opened


@pytest.fixture(scope="session")
def engines(engine_pair: pair.Pair, client: httpx.Client) -> Engines:
    """The same pair, spoken to directly: for references and hand-made exchanges."""
    return Engines(engine_pair.prefill_url, engine_pair.decode_url, client)


@pytest.fixture(scope="session")
def recorder(engine_pair: pair.Pair) -> Iterator[Recorder]:
    with Recorder(engine_pair.prefill_url, engine_pair.decode_url) as started:
        yield started


@pytest.fixture(scope="session")
def router_url(recorder: Recorder, logs: Path) -> Iterator[str]:
    """The router as its own process, in router mode, with the recorder as its engines."""
    (port,) = pair.free_ports(1)
    command = [sys.executable, "-m", "router", "serve"]
    command += ["--prefill", recorder.urls["prefill"], "--decode", recorder.urls["decode"]]
    command += ["--host", "127.0.0.1", "--port", str(port), "--store", "memory", "--verify", "router"]
    command += ["--pull-timeout-s", str(PULL_TIMEOUT_S), "--prefill-lease-s", str(pair.PREFILL_LEASE_S)]
    # The router's settings may also come from the environment; here only the command line counts.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("BOOMERANG_")}
    log = logs / "router.log"
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=out, stderr=subprocess.STDOUT)
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_ready(url, process, log)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_ready(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + ROUTER_DEADLINE_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            if httpx.get(f"{url}/ready", timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    pytest.fail(f"the router is not ready; its log:\n{log.read_text(errors='replace')[-4000:]}")


@pytest.fixture(scope="session")
def turns(router_url: str, recorder: Recorder, client: httpx.Client) -> dict[str, Turn]:
    """All steps, played through the router; by name."""
    return play(router_url, recorder, client)


@pytest.fixture(scope="session")
def checked(turns: dict[str, Turn], engines: Engines, request: pytest.FixtureRequest) -> dict[str, Checked]:
    """The same turns beside their references; by name."""
    beside = check(turns, engines)
    request.config.stash[report.CHECKED] = list(beside.values())
    return beside


def pytest_runtest_setup() -> None:
    # Engines start and turns are played within a fixture, which takes longer than a hung unit test is given.
    # Every wait in here has a limit of its own.
    faulthandler.cancel_dump_traceback_later()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the table, also with -q and when all is well: it is what the run is for."""
    checked = config.stash.get(report.CHECKED, None)
    if checked is None:
        return
    terminalreporter.section("turns through the router")
    terminalreporter.write_line(report.table(checked))
    terminalreporter.write_line(f"differences within rounding: {report.rounding_count(checked)}")
    control = config.stash.get(report.CONTROL, "was not run")
    path = report.write(report.text(checked, config.stash[report.VERSION], control))
    if path is not None:
        terminalreporter.write_line(f"written: {path}")
