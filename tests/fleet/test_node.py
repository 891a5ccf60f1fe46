"""What nodes are called, and what makes one."""

from dataclasses import fields, replace

import pytest

from router.fleet.node import Circuit, Engine, Node, Role, State, another_process, node_of, process_of


@pytest.mark.parametrize(
    ("origin", "key"),
    [
        ("http://10.0.0.1:8100", "d:10.0.0.1:8100"),
        ("http://engine.local/", "d:engine.local:80"),
        ("https://engine.local", "d:engine.local:443"),
        ("http://[::1]:8100", "d:[::1]:8100"),
    ],
)
def test_keys(origin: str, key: str) -> None:
    node = node_of(origin, Role.DECODE)
    assert (node.key, node.origin, node.state) == (key, origin.rstrip("/"), State.STARTING)
    assert node_of(origin, Role.PREFILL).key != key


@pytest.mark.parametrize(
    "origin", ["10.0.0.1:8100", "ftp://a:1", "http://", "http://a:1/v1", "", "http://a:x"]
)
def test_what_is_no_origin_is_refused(origin: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        node_of(origin, Role.DECODE)


@pytest.mark.parametrize(
    ("address", "key", "origin", "rank"),
    [
        ("http://10.0.0.1:8100@0", "d:10.0.0.1:8100@0", "http://10.0.0.1:8100", 0),
        ("https://[FD00::1]@12", "d:[fd00::1]:443@12", "https://[fd00::1]", 12),
    ],
)
def test_ranks_are_nodes_of_their_own(address: str, key: str, origin: str, rank: int) -> None:
    node = node_of(address, Role.DECODE, weight=2.0, limit=5)
    assert (node.key, node.origin, node.rank, node.weight, node.limit) == (key, origin, rank, 2.0, 5)


def test_one_engine_in_two_spellings_is_one_node() -> None:
    assert node_of("HTTP://A:80/", Role.PREFILL) == node_of("http://a", Role.PREFILL)


@pytest.mark.parametrize("weight", [0.0, -1.0, float("inf"), float("nan")])
def test_a_weight_is_a_positive_number(weight: float) -> None:
    with pytest.raises(ValueError, match="weight"):
        node_of("http://a", Role.PREFILL, weight=weight)


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_is_at_least_one(limit: int) -> None:
    with pytest.raises(ValueError, match="limit"):
        node_of("http://a", Role.PREFILL, limit=limit)


def test_ranks_of_one_process_are_one_process() -> None:
    assert process_of("a_dp1") == process_of("a_dp0") == process_of("a") == "a"
    assert not another_process("a_dp0", "a_dp1")
    assert not another_process(None, "a")
    assert another_process("a", "b")


def test_open_legs_change_nothing_else_of_a_node() -> None:
    node = Node(
        key="d:a:1",
        origin="http://a:1",
        role=Role.DECODE,
        state=State.EJECTED,
        reason="why",
        engine=Engine(version="1"),
        in_flight=1,
        weight=2.0,
        rank=3,
        limit=4,
        circuit=Circuit.OPEN,
        since_s=5.0,
        idle_since_s=6.0,
        busy_until_s=7.0,
        renewed_at_s=8.0,
        reachable=True,
    )
    assert all(getattr(node, field.name) != field.default for field in fields(Node))
    assert node.with_legs(9, 10.0) == replace(node, in_flight=9, idle_since_s=10.0)
