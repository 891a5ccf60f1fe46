"""Dashboard, rules and alerts, run by a real Prometheus that scraped a real router."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.grafana import dashboard
from tests.deploy import scenario
from tests.deploy.prometheus_server import FOLDER, ROOT, Prometheus, program, promtool, scraping
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
"""Metrics of what nothing in the scenario does, and why."""


def _substituted(expression: str) -> str:
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    assert "$" not in expression
    return expression


def _metrics(expression: str) -> set[str]:
    """The names of metrics in an expression."""
    return set(re.findall(r"\b(?:boomerang_\w+|process_\w+|up)\b(?=[{\[ )]|$)", expression))


def test_a_real_prometheus_gets_data_for_everything(tmp_path: Path) -> None:
    # One test, as parallel ones would play the whole scenario several times.
    servers.needed()
    program("prometheus")
    with scenario.pool(tmp_path) as pool, scraping(pool.router, tmp_path) as prometheus:
        asyncio.run(scenario.play(pool))
        _dashboard_has_data(prometheus)
        _variables_have_values(prometheus)
        _rules_are_well_and_record(prometheus)
        _alerts_look_at_what_is_there(prometheus)


def _dashboard_has_data(prometheus: Prometheus) -> None:
    found = {query: prometheus.values(_substituted(query[1])) for query in QUERIES}
    assert [query for query, values in found.items() if not values] == []
    (share,) = (values for (title, _), values in found.items() if title == "Prompt tokens that came back")
    assert 0 < share[-1] < 1


def _variables_have_values(prometheus: Prometheus) -> None:
    listed = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    assert set(listed) == {"datasource", "job", "instance"}
    for name in ("job", "instance"):
        asked = re.fullmatch(r"label_values\((.*), (\w+)\)", listed[name]["query"]["query"])
        assert asked is not None
        data = prometheus.get("series", **{"match[]": asked[1].replace("$job", ".*")})
        assert {series[asked[2]] for series in data}


def _rules_are_well_and_record(prometheus: Prometheus) -> None:
    groups = prometheus.get("rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert {rule["name"] for rule in rules} == {*RECORDED, *(alert["alert"] for alert in ALERTS)}
    assert [(rule["name"], rule.get("lastError")) for rule in rules if rule["health"] != "ok"] == []
    assert [record for record in RECORDED if not prometheus.values(record)] == []


def _alerts_look_at_what_is_there(prometheus: Prometheus) -> None:
    metrics = {metric for alert in ALERTS for metric in _metrics(alert["expr"])}
    assert metrics > NOT_SEEN.keys()
    assert {metric for metric in metrics if not prometheus.values(metric)} <= NOT_SEEN.keys()
    alerts = prometheus.get("alerts")["alerts"]
    assert {"BoomerangDiscoveryFails", "BoomerangStoreDown"} <= {
        alert["labels"]["alertname"] for alert in alerts
    }
    firing = {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}
    assert not firing & {
        "BoomerangDown",
        "BoomerangNoReadyNode",
        "BoomerangTaskFails",
        "BoomerangPromptMismatch",
    }


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: str(alert["alert"]))
def test_every_alert_is_made_of_what_is_documented_or_recorded(alert: dict[str, Any]) -> None:
    recorded = set(re.findall(r"\bjob\w*:[\w:]+", alert["expr"]))
    assert recorded <= set(RECORDED)
    metrics = {metric.removesuffix("_bucket") for metric in _metrics(alert["expr"])}
    assert metrics or recorded
    page = (ROOT / "docs/metrics.md").read_text()
    assert [metric for metric in metrics - {"up"} if f"| `{metric}` |" not in page] == []


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
    assert dashboard.written() == dashboard.FILE.read_text(), "run python -m deploy.grafana.dashboard"


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
    page = ROOT / "docs/observe.md"
    told = re.findall(r"^\| `(Boomerang\w+)`", page.read_text(), re.MULTILINE)
    assert sorted(told) == sorted({alert["alert"] for alert in ALERTS})
