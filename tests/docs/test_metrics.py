"""``docs/metrics.md`` names every metric, its type, its labels and their values, and nothing else."""

import re
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import pytest

from router.app import build
from router.errors import ERROR_ROWS
from router.fleet.node import Circuit, Ejection, State
from router.ledger.gaps import Gaps
from router.ledger.store import Absence, Relation
from router.settings import Settings
from router.telemetry.facts import EndedBy, LegFault, Outcome, Parted, Phase
from router.turn.handle import Uncut, Unusable
from router.turn.plan import Kind, Reason
from router.turn.release import Cause
from router.turn.request import Endpoint, Unsplit

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
TYPES: Final = {"counter", "gauge", "histogram"}


def rows(page: str) -> Iterator[list[str]]:
    """The cells of every table row but heads."""
    for line in page.splitlines():
        if line.startswith("|") and not line.startswith("|---"):
            yield [cell.strip() for cell in line.strip("|").split("|")]


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def told() -> dict[str, tuple[str, frozenset[str]]]:
    """Type and labels of each metric, as the page has them."""
    found: dict[str, tuple[str, frozenset[str]]] = {}
    for cells in rows(PAGE):
        names = quoted(cells[0])
        if len(cells) >= 3 and names and names[0].startswith("boomerang_"):
            assert names[0] not in found, f"{names[0]} is there twice"
            found[names[0]] = (cells[1], frozenset(quoted(cells[2])))
    return found


def made() -> dict[str, tuple[str, frozenset[str]]]:
    """Type and labels of each metric, as a router makes them."""
    router = build(Settings(prefill=("http://p:1",), decode=("http://d:1",)))
    found: dict[str, tuple[str, frozenset[str]]] = {}
    for collector in router.registry._collector_to_names:
        # A metric knows its labels before it has a series; what a collector makes at each scrape does, too.
        declared: list[Any] = [collector] if hasattr(collector, "_labelnames") else list(collector.collect())
        for metric in declared:
            name = getattr(metric, "_name", None) or metric.name
            kind = getattr(metric, "_type", None) or metric.type
            if name.startswith("boomerang_"):
                name = f"{name}_total" if kind == "counter" else name
                found[name] = (kind, frozenset(getattr(metric, "_labelnames", ())))
    return found


def test_the_page_and_the_code_name_the_same_metrics_types_and_labels() -> None:
    assert told() == made()
    assert len(told()) > 45


def test_every_metric_says_what_it_tells() -> None:
    for cells in rows(PAGE):
        if cells[0].startswith("`boomerang_"):
            assert cells[1] in TYPES
            assert cells[3]


VALUES: dict[str, set[str]] = {
    "plan": {*Kind, "none"},
    "ended_by": set(EndedBy),
    "phase": set(Phase),
    "endpoint": set(Endpoint),
    "stream": {"yes", "no"},
    "role": {"prefill", "decode", "release"},
    "state": {*State, "up", "down"},
    "circuit": set(Circuit),
    "why": set(Ejection),
    "fault": set(LegFault),
    "parted": set(Parted),
    "usage": {"fell", "did_not_fall"},
    "finish": {finish.value or "other" for finish in Gaps(480.0).curves(480.0)},
    "silent_s": {f"{silent_s:g}" for curve in Gaps(480.0).curves(480.0).values() for silent_s in curve},
    "verify": {"auto", "engine", "router", "lineage", "off"},
}


def values_told() -> dict[str, set[str]]:
    """What the page lists as values of each label."""
    section = PAGE.partition("## Label values")[2].partition("###")[0]
    found: dict[str, set[str]] = {}
    for cells in rows(section):
        for label in quoted(cells[0]):
            found[label] = set(quoted(cells[1]))
    return found


@pytest.mark.parametrize("label", VALUES)
def test_the_page_lists_all_values_of_a_label(label: str) -> None:
    assert values_told()[label] == {str(value) for value in VALUES[label]}


def test_values_that_the_code_has_as_plain_words_are_all_there() -> None:
    """Actions and operations are written where they are published."""
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "router").rglob("*.py"))
    turn = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "router" / "turn").glob("*.py"))
    actions = set(re.findall(r'_failed\(error, "(\w+)"', turn)) | set(re.findall(r'action="(\w+)"', turn))
    assert values_told()["action"] == actions
    failures = set(re.findall(r'LedgerFailed\("(\w+)"', source))
    scripts = {path.stem for path in (ROOT / "router" / "ledger" / "lua").glob("*.lua")} - {"common"}
    assert values_told()["operation"] == failures | scripts | {"pipeline"}
    assert values_told()["code"] <= {row.code for row in ERROR_ROWS.values()}


def every_label() -> set[str]:
    return {label for _, labels in made().values() for label in labels}


def test_every_label_is_explained() -> None:
    after = PAGE.partition("## Label values")[2]
    free = {"node", "status", "source", "server", "task", "version"}
    assert every_label() - free == set(values_told()) | {"reason", "outcome", "detail"}
    for label in {*free, "reason", "outcome", "detail"}:
        assert f"`{label}`" in after


def first_cells(heading: str) -> set[str]:
    section = PAGE.partition(f"### {heading}\n")[2].partition("\n##")[0]
    return {word for cells in rows(section) for word in quoted(cells[0])} - {"reason", "outcome"}


def test_every_reason_is_explained() -> None:
    enums: tuple[type[StrEnum], ...] = (Reason, Absence, Relation, Uncut, Unsplit)
    assert first_cells("Reasons") == {str(reason) for enum in enums for reason in enum} | {"none"}


def test_every_outcome_is_explained() -> None:
    assert first_cells("Handles") == {str(outcome) for outcome in Outcome}
    section = PAGE.partition("### Handles\n")[2].partition("\n##")[0]
    details = {word for cells in rows(section) for word in quoted(cells[1])}
    assert details >= {str(word) for enum in (Unusable, Cause) for word in enum}
