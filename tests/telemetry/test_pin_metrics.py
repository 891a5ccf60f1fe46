"""What a scrape tells of pins."""

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from router.ledger.gaps import Gaps
from router.telemetry.facts import UsageAfterRelease
from router.telemetry.metrics import Metrics
from router.telemetry.pin_metrics import PinCollector
from router.turn.releasing import NodePins


def scrape(*pins: NodePins, queued: int = 0) -> list[str]:
    registry = CollectorRegistry()
    registry.register(PinCollector(lambda: pins, lambda: queued, Gaps(480.0)))
    return generate_latest(registry).decode().splitlines()


def test_pins_by_node() -> None:
    lines = scrape(NodePins("d:1", 4_000, 3, 0.25), NodePins("d:2", 0, 0, None), queued=7)
    assert 'boomerang_pinned_tokens{node="d:1"} 4000.0' in lines
    assert 'boomerang_pinned_handles{node="d:1"} 3.0' in lines
    assert 'boomerang_pinned_share{node="d:1"} 0.25' in lines
    assert 'boomerang_pinned_tokens{node="d:2"} 0.0' in lines
    assert not [line for line in lines if line.startswith('boomerang_pinned_share{node="d:2"')]
    assert "boomerang_release_queue 7.0" in lines


def test_the_chance_to_go_on_by_finish_and_silence() -> None:
    lines = [line for line in scrape() if line.startswith("boomerang_return_probability{")]
    kinds = {line.split('finish="')[1].split('"')[0] for line in lines}
    silences = {line.split('silent_s="')[1].split('"')[0] for line in lines}
    assert kinds == {"tool_calls", "stop", "length", "other"}
    assert silences == {"0", "1", "10", "60", "300"}
    assert all(0.0 <= float(line.rsplit(" ", 1)[1]) <= 1.0 for line in lines)


@pytest.mark.parametrize(("before", "after", "usage"), [(0.5, 0.2, "fell"), (0.5, 0.5, "did_not_fall")])
def test_whether_a_nodes_own_usage_fell(before: float, after: float, usage: str) -> None:
    registry = CollectorRegistry()
    Metrics(registry)(UsageAfterRelease("d:1", 4_000, before, after))
    text = generate_latest(registry).decode()
    assert f'boomerang_release_checks_total{{node="d:1",usage="{usage}"}} 1.0' in text
