import json
from dataclasses import replace
from typing import Any

import pytest

from router import __version__
from router.fleet.node import Engine, Node, Role, State
from router.http.probes import MAX_PAIRS, ProbeAnswer, health, hints, live, ready
from router.http.schemas import Health, Live, Ready


def node(key: str, state: State = State.READY, **engine: Any) -> Node:
    role = Role.PREFILL if key.startswith("p") else Role.DECODE
    return Node(key=key, origin=f"http://{key}", role=role, state=state, engine=Engine(**engine))


def body(answer: ProbeAnswer) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(answer.body)
    return parsed


def test_live_asks_about_no_engine() -> None:
    assert live().status == 200
    assert Live.model_validate_json(live().body).version == __version__


def test_ready_with_one_ready_node_of_each_role() -> None:
    answer = ready([node("p1"), node("p2", State.EJECTED), node("d1")], draining=False)
    assert answer.status == 200
    assert Ready.model_validate_json(answer.body) == Ready(status="ready", reasons=())


@pytest.mark.parametrize("state", [state for state in State if state is not State.READY])
def test_not_ready_without_a_ready_node_of_a_role(state: State) -> None:
    answer = ready([node("p1"), replace(node("d1", state), reason="connection refused")], draining=False)
    assert answer.status == 503
    assert body(answer) == {
        "status": "not_ready",
        "reasons": [f"no decode node is ready (1 {state}; d1: connection refused)"],
    }


def test_ready_with_nodes_whose_breaker_alone_is_open() -> None:
    """They are the last resort of turns, and a router that serves is ready."""
    tripped = replace(node("d1", State.EJECTED), reachable=True)
    assert ready([node("p1"), tripped], draining=False).status == 200
    assert ready([node("p1"), replace(tripped, state=State.DRAINING)], draining=False).status == 503


def test_not_ready_without_any_node_names_both_roles() -> None:
    assert body(ready([], draining=False))["reasons"] == [
        "no prefill node is ready (none known)",
        "no decode node is ready (none known)",
    ]


def test_draining_is_not_ready_at_once() -> None:
    answer = ready([node("p1"), node("d1")], draining=True)
    assert answer.status == 503
    assert body(answer) == {"status": "draining", "reasons": ["the router is draining"]}


def test_health_tells_nodes_and_status() -> None:
    full = replace(
        node("p1", version="0.33.0", models=("m",), running=3, waiting=1, kv_usage=0.5), in_flight=2
    )
    answer = health([full, node("d1")], mode="auto", draining=False)
    assert answer.status == 200
    told = Health.model_validate_json(answer.body)
    assert told.status == "ready"
    first = told.nodes[0]
    assert (first.node, first.role, first.state, first.version) == ("p1", "prefill", "ready", "0.33.0")
    assert (first.models, first.in_flight, first.running, first.waiting) == (("m",), 2, 3, 1)
    assert first.kv_usage == 0.5
    assert health([full], mode="auto", draining=False).status == 503


@pytest.mark.parametrize(
    ("mode", "prefill", "decode", "verify"),
    [
        ("auto", {"verifies": True}, {"stamps": True}, "engine"),
        ("auto", {"verifies": True}, {}, "router"),
        ("auto", {"verifies": False}, {"stamps": True}, "router"),
        ("engine", {"verifies": True}, {"stamps": True}, "engine"),
        ("engine", {}, {"stamps": True}, "off"),
        ("router", {"verifies": True}, {"stamps": True}, "router"),
        ("lineage", {}, {}, "lineage"),
        ("off", {"verifies": True}, {"stamps": True}, "off"),
        ("auto", {"push_mode": True}, {"stamps": True}, "off"),
    ],
)
def test_health_tells_how_a_pair_is_verified(
    mode: str, prefill: dict[str, Any], decode: dict[str, Any], verify: str
) -> None:
    told = body(health([node("p1", **prefill), node("d1", **decode)], mode=mode, draining=False))
    assert told["verify"] == {verify: 1}
    (pair,) = told["pairs"]
    assert (pair["prefill"], pair["decode"], pair["verify"]) == ("p1", "d1", verify)
    assert (pair["reason"] == "") == (verify == "engine")


def test_a_cooling_pair_is_off_and_the_others_are_not() -> None:
    told = body(
        health([node("p1"), node("d1"), node("d2")], mode="auto", draining=False, cooling={("p1", "d1")})
    )
    assert {pair["decode"]: pair["verify"] for pair in told["pairs"]} == {"d1": "off", "d2": "router"}
    assert told["verify"] == {"off": 1, "router": 1}


def test_a_large_fleet_is_counted_in_full_and_listed_in_part() -> None:
    fleet = [node(f"p{n}") for n in range(30)] + [node(f"d{n}") for n in range(30)]
    told = body(health(fleet, mode="auto", draining=False))
    assert told["verify"] == {"router": 900}
    assert len(told["pairs"]) == MAX_PAIRS
    assert len(told["nodes"]) == 60


@pytest.mark.parametrize(
    ("fleet", "hint"),
    [
        ([node("p1", push_mode=True), node("d1")], "p1: the connector is in push mode"),
        ([node("p1", prefill_params=False), node("d1")], "p1: prefill answers carry no kv_transfer_params"),
        ([node("p1"), node("d1", whole_handle=False)], "d1: answers carry no handle"),
        ([node("p1"), node("d1", whole_handle=False, stream_handle=False)], "d1: answers carry no handle"),
        ([node("p1"), node("d1", stream_handle=False)], "d1: streamed answers carry no handle"),
        ([node("p1", block_size=16), node("d1", block_size=128)], "differ in block size (16, 128)"),
        ([node("p1", models=("a",)), node("d1", models=("b",))], "no model is served by both"),
    ],
)
def test_hints_name_what_keeps_reuse_from_working(fleet: list[Node], hint: str) -> None:
    (found,) = hints(fleet, mode="auto")
    assert hint in found
    assert body(health(fleet, mode="auto", draining=False))["hints"] == [found]


def test_no_hints_where_nothing_is_known_and_where_reuse_is_off() -> None:
    assert hints([node("p1"), node("d1")], mode="auto") == ()
    assert hints([node("p1", push_mode=True)], mode="off") == ()
    assert hints([node("p1", prefill_params=True), node("d1", whole_handle=True)], mode="auto") == ()


def test_prompts_that_are_computed_twice_are_told_without_reuse_too() -> None:
    (found,) = hints([node("p1", prefill_params=False)], mode="off")
    assert "computed twice" in found


def test_many_nodes_with_one_fault_are_one_hint() -> None:
    (found,) = hints([node(f"d{n}", stream_handle=False) for n in range(5)], mode="auto")
    assert found.startswith("d0, d1, d2 and 2 more: ")
