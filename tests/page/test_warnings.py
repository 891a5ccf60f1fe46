"""What the page warns of."""

from dataclasses import dataclass, replace

from router.check.findings import Finding, Verdict
from router.check.quick import PairMode
from router.fleet.node import Node, Role, State, node_of
from router.page.schemas import Warned
from router.page.warnings import (
    MAX_WARNINGS,
    gathered,
    of_doubts,
    of_findings,
    of_mode,
    of_nodes,
    of_pairs,
    of_pins,
    of_troubles,
)


def node(at: int, state: State, reason: str = "") -> Node:
    return replace(node_of(f"http://n:{at}", Role.DECODE), state=state, reason=reason)


@dataclass(frozen=True)
class Pins:
    node: str
    share: float | None


def levels(found: list[Warned]) -> list[str]:
    return [one.level for one in found]


def test_unsafe_and_useless_modes_are_warned_of() -> None:
    assert levels(of_mode("lineage")) == ["error"]
    assert "known to be wrong" in of_mode("lineage")[0].text
    assert levels(of_mode("off")) == ["warning"]
    assert of_mode("auto") == of_mode("router") == of_mode("engine") == []


def test_nodes_that_get_no_turns_are_told_with_the_reason() -> None:
    found = of_nodes(
        [
            node(1, State.READY, "probed"),
            node(2, State.EJECTED, "connection refused"),
            node(3, State.DRAINING, "drained by an operator"),
            node(4, State.STARTING),
        ]
    )
    assert {(one.level, one.text) for one in found} == {
        ("error", "d:n:2 is down: connection refused"),
        ("warning", "d:n:3 is draining: drained by an operator"),
        ("warning", "d:n:4 is not ready yet"),
    }


def test_many_dead_nodes_are_few_lines() -> None:
    found = of_nodes([node(at, State.EJECTED, "x") for at in range(1, 41)])
    assert len(found) == 4
    assert found[-1].text == "37 more nodes are down"


def test_pins_over_their_budget() -> None:
    pins = [Pins(f"d:{n}", 0.6) for n in range(5)] + [Pins("d:low", 0.5), Pins("d:unknown", None)]
    (found,) = of_pins(pins, 0.5)
    assert found.text == (
        "handles pin more KV than the budget of 50% on d:0 (60%), d:1 (60%), d:2 (60%) and 2 more"
    )
    assert of_pins(pins[-2:], 0.5) == []


def test_doubts_name_no_model() -> None:
    found = of_doubts({("p:1", "d:1")}, ["a model that a client made up"], ["http://p:1"])
    assert levels(found) == ["warning", "error", "error"]
    assert "p:1 > d:1" in found[0].text
    assert "made up" not in "".join(one.text for one in found)
    assert of_doubts((), (), ()) == []


def test_equal_findings_are_one() -> None:
    findings = [
        Finding("block_size", f"p:{n}", Verdict.WARNING, "not told", "start /metrics") for n in range(5)
    ]
    found = of_findings(["a hint"], [*findings, Finding("models", "p > d", Verdict.ERROR, "none in common")])
    assert [(one.level, one.text) for one in found] == [
        ("warning", "a hint"),
        ("warning", "p:0, p:1, p:2 and 2 more: block_size: not told; start /metrics"),
        ("error", "p > d: models: none in common"),
    ]


def test_pairs_without_the_plugin_are_a_note_and_pairs_without_reuse_a_warning() -> None:
    lacking = "the decode node does not stamp, as far as answers have told"
    found = of_pairs(
        [
            PairMode("p1", "d", "engine", ""),
            PairMode("p2", "d", "router", lacking),
            PairMode("p3", "d", "router", lacking),
            PairMode("p4", "d", "off", "the connector is in push mode"),
        ]
    )
    assert {(one.level, one.text) for one in found} == {
        ("note", f"2 of 4 pairs are verified by the router, as {lacking}"),
        ("warning", "1 of 4 pairs are without reuse: the connector is in push mode"),
    }


def test_the_gravest_come_first_none_twice_and_not_too_many() -> None:
    found = gathered(
        [Warned("note", "n")],
        of_troubles(["a", "b", "a"]),
        of_troubles(str(n) for n in range(100)),
        of_mode("lineage"),
    )
    assert len(found) == MAX_WARNINGS
    assert found[0].level == "error"
    assert [one.text for one in found[1:3]] == ["a", "b"]
