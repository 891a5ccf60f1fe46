"""Metrics of several processes: real ones, as prometheus-client chooses its files when it is imported."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from router.telemetry import shared_metrics

PLAY = """
import asyncio, os, signal, sys
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from router.telemetry import shared_metrics
from router.telemetry.facts import StoreChanged
from router.telemetry.metrics import Metrics, build_info
from prometheus_client import CollectorRegistry

assert shared_metrics.shared()

class State:
    def __init__(self):
        self.open_turns, self.state, self.branches, self.expired = 0, "starting", 0, 0

    def collect(self):
        node = GaugeMetricFamily("boomerang_node_state", "State.", labels=("role", "node", "state"))
        node.add_metric(("decode", "d", self.state), 1)
        yield node
        yield GaugeMetricFamily("boomerang_open_turns", "Open.", value=self.open_turns)
        yield GaugeMetricFamily("boomerang_ledger_branches", "Branches.", value=self.branches)
        yield CounterMetricFamily("boomerang_ledger_expired_handles", "Expired.", value=self.expired)

registry = CollectorRegistry()
metrics = Metrics(registry)
build_info(registry, "1", "auto")
state = State()
shared = shared_metrics.SharedMetrics((state,))
write = lambda: asyncio.run(shared.write())
"""


@pytest.fixture
def play(tmp_path: Path) -> Callable[[str], str]:
    """Runs a process that shares its metrics with all others of the test; what it printed."""

    def run(source: str) -> str:
        environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-c", PLAY + source],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def value(scraped: str, series: str) -> float | None:
    lines = [line for line in scraped.splitlines() if line.startswith(f"{series} ")]
    assert len(lines) <= 1
    return float(lines[0].split()[1]) if lines else None


def test_in_one_process_nothing_is_shared() -> None:
    assert not shared_metrics.shared()


def test_gauges_and_counters_of_all_become_one(play: Callable[[str], str]) -> None:
    play(
        "state.open_turns, state.state, state.branches, state.expired = 3, 'ready', 70, 2\n"
        "metrics(StoreChanged('s', False, 'why')); write()"
    )
    scraped = play(
        "state.open_turns, state.state, state.branches, state.expired = 4, 'down', 70, 1\n"
        "metrics(StoreChanged('s', False, 'why')); write(); print(shared.scrape().decode())"
    )
    assert value(scraped, "boomerang_open_turns") == 7
    assert value(scraped, "boomerang_ledger_branches") == 70, "all look at the same store"
    assert value(scraped, "boomerang_ledger_expired_handles_total") == 3
    assert value(scraped, 'boomerang_store_changes_total{state="down"}') == 2
    assert value(scraped, 'boomerang_build_info{verify="auto",version="1"}') == 1
    for seen in ("ready", "down"):
        assert value(scraped, f'boomerang_node_state{{node="d",role="decode",state="{seen}"}}') == 1
    assert "pid=" not in scraped


def test_what_is_written_again_replaces_what_was(play: Callable[[str], str]) -> None:
    scraped = play(
        "state.open_turns, state.expired = 5, 3; write()\n"
        "state.open_turns, state.expired, state.state = 1, 4, 'ready'; write()\n"
        "print(shared.scrape().decode())"
    )
    assert value(scraped, "boomerang_open_turns") == 1
    assert value(scraped, "boomerang_ledger_expired_handles_total") == 4, "a counter moves by the difference"
    assert value(scraped, 'boomerang_node_state{node="d",role="decode",state="starting"}') == 0
    assert value(scraped, 'boomerang_node_state{node="d",role="decode",state="ready"}') == 1


def test_of_a_process_that_ended_its_gauges_go_and_its_counts_stay(play: Callable[[str], str]) -> None:
    pid = play("state.open_turns, state.expired = 3, 2; write(); print(os.getpid())").strip()
    scraped = play(
        f"state.open_turns = 1; write(); shared_metrics.forget({pid}); print(shared.scrape().decode())"
    )
    assert value(scraped, "boomerang_open_turns") == 1
    assert value(scraped, "boomerang_ledger_expired_handles_total") == 2


COUNTED = """
from router.telemetry.facts import HandleFact, Outcome
fact = HandleFact(Outcome.USED, "d", 100)
"""


def test_what_is_counted_is_there_at_once_whoever_is_asked(play: Callable[[str], str]) -> None:
    """A process that is killed leaves all that it counted."""
    series = 'boomerang_handle_tokens_total{outcome="used"}'
    play(COUNTED + "metrics(fact)")
    assert value(play(COUNTED + "metrics(fact); print(shared.scrape().decode())"), series) == 200
    assert value(play("print(shared.scrape().decode())"), series) == 200
