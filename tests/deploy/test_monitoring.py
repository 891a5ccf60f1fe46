"""Dashboard, rules and alerts, run by a real Prometheus that scraped a real router."""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.grafana import dashboard
from tests.deploy import scenario
from tests.deploy.prometheus_server import FOLDER, Prometheus, program, promtool, scraping
from tests.ledger import servers

DASHBOARD: dict[str, Any] = json.loads(dashboard.FILE.read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES = [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]
VARIABLES = {
    "$job": ".*",
    "$instance": ".*",
    "$__rate_interval": "4s",
    "$__range": "1h",
}
ALERTS = [
    rule
    for group in yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
]
RECORDED = [
    rule["record"]
    for group in yaml.safe_load((FOLDER / "rules.yaml").read_text())["groups"]
    for rule in group["rules"]
]
NOT_SEEN = {
    "boomerang_task_failures_total": "a fault of ours",
    "boomerang_prompt_mismatches_total": "an engine that reads a prompt in two ways",
    "boomerang_release_checks_total": "releases under load, for minutes",
}
"""What nothing in the scenario does: their metrics are known to docs/metrics.md all the same."""


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """One that has seen the whole scenario."""
    servers.needed()
    program("prometheus")
    folder = tmp_path_factory.mktemp("monitoring")
    with scenario.pool(folder) as pool, scraping(pool.router, folder) as started:
        asyncio.run(scenario.play(pool))
        yield started


def _substituted(expression: str) -> str:
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    assert "$" not in expression
    return expression


def _metrics(expression: str) -> set[str]:
    """The names of metrics in an expression."""
    return set(re.findall(r"\b(?:boomerang_\w+|process_\w+|up)\b(?=[{\[ )]|$)", expression))


@pytest.mark.parametrize(("title", "expression"), QUERIES, ids=lambda value: str(value)[:60])
def test_every_query_of_the_dashboard_returns_data(
    title: str, expression: str, prometheus: Prometheus
) -> None:
    assert prometheus.values(_substituted(expression)), title


def test_the_share_that_came_back_is_the_routers_own(prometheus: Prometheus) -> None:
    (share,) = (target for title, target in QUERIES if title == "Prompt tokens that came back")
    values = prometheus.values(_substituted(share))
    assert 0 < values[-1] < 1


def test_variables_have_values(prometheus: Prometheus) -> None:
    listed = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    assert set(listed) == {"datasource", "job", "instance"}
    for name in ("job", "instance"):
        asked = re.fullmatch(r"label_values\((.*), (\w+)\)", listed[name]["query"]["query"])
        assert asked is not None
        data = prometheus.get("series", **{"match[]": asked[1].replace("$job", ".*")})
        assert {series[asked[2]] for series in data}


def test_every_rule_is_evaluated_well_and_records(prometheus: Prometheus) -> None:
    groups = prometheus.get("rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert {rule["name"] for rule in rules} == {*RECORDED, *(alert["alert"] for alert in ALERTS)}
    assert [(rule["name"], rule.get("lastError")) for rule in rules if rule["health"] != "ok"] == []
    for record in RECORDED:
        assert prometheus.values(record), record


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: str(alert["alert"]))
def test_every_alert_looks_at_metrics_that_are_there(alert: dict[str, Any], prometheus: Prometheus) -> None:
    recorded = set(re.findall(r"\bjob\w*:[\w:]+", alert["expr"]))
    assert recorded <= set(RECORDED)
    metrics = _metrics(alert["expr"])
    assert metrics or recorded
    for metric in metrics:
        assert prometheus.values(metric) or metric in NOT_SEEN, metric


def test_alerts_of_what_the_scenario_did_wait_to_fire(prometheus: Prometheus) -> None:
    found = {alert["labels"]["alertname"] for alert in prometheus.get("alerts")["alerts"]}
    assert {"BoomerangDiscoveryFails", "BoomerangStoreDown"} <= found
    assert not found & {
        "BoomerangDown",
        "BoomerangNoReadyNode",
        "BoomerangTaskFails",
        "BoomerangPromptMismatch",
    }


def test_promtool_finds_nothing_wrong() -> None:
    for name in ("rules.yaml", "alerts.yaml"):
        checked = promtool("check", "rules", "--lint=all", "--lint-fatal", FOLDER / name)
        assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("name", sorted({alert["alert"] for alert in ALERTS}))
def test_each_alert_fires_when_it_should_and_not_when_it_should_not(name: str) -> None:
    file = FOLDER / "tests" / f"{name}.yaml"
    cases = [case for test in yaml.safe_load(file.read_text())["tests"] for case in test["alert_rule_test"]]
    assert {case["alertname"] for case in cases} == {name}
    assert {bool(case["exp_alerts"]) for case in cases} == {True, False}
    tested = promtool("test", "rules", file)
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_no_unit_test_is_left_of_an_alert_that_is_gone() -> None:
    there = {file.stem for file in (FOLDER / "tests").iterdir()}
    assert there == {alert["alert"] for alert in ALERTS}


def test_the_dashboard_is_what_its_program_writes() -> None:
    assert dashboard.written() == dashboard.FILE.read_text(), "run python deploy/grafana/dashboard.py"


def test_panels_are_told_apart_and_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= dashboard.WIDTH
        assert not cells & taken
        taken |= cells
    for key in ("id", "title"):
        values = [panel[key] for panel in DASHBOARD["panels"]]
        assert len(values) == len(set(values))
    assert all(panel["description"] for panel in PANELS)


def test_the_manual_tells_what_to_do_for_each_alert() -> None:
    page = Path(__file__).parents[2] / "docs/observe.md"
    told = re.findall(r"^\| `(Boomerang\w+)`", page.read_text(), re.MULTILINE)
    assert sorted(told) == sorted({alert["alert"] for alert in ALERTS})
