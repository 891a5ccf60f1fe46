"""A pool at one moment."""

from dataclasses import FrozenInstanceError, replace

import pytest

from router.fleet.node import Engine, Node, Role, State, node_of
from router.fleet.snapshot import Pool

NODE = node_of("http://127.0.0.1:8200", Role.DECODE)
KEY = NODE.key


def test_a_pool_is_a_value() -> None:
    one = Pool.of([NODE])
    other = node_of("http://127.0.0.1:8100", Role.PREFILL)
    two = one.with_node(other).with_node(replace(NODE, state=State.READY))
    assert one.nodes == (NODE,)
    assert [node.key for node in two.nodes] == [KEY, other.key]
    assert two.get(KEY) == replace(NODE, state=State.READY)
    assert two.get("d:nowhere:1") is None
    assert two.without(KEY).nodes == (other,)
    assert two.without("d:nowhere:1") == two
    with pytest.raises(FrozenInstanceError):
        two.by_key = {}  # type: ignore[misc]
    with pytest.raises(TypeError):
        two.by_key[KEY] = other  # type: ignore[index]


def test_only_ready_nodes_of_the_role_and_model_are_usable() -> None:
    def decode(port: int, state: State, *models: str) -> Node:
        node = node_of(f"http://127.0.0.1:{port}", Role.DECODE)
        return replace(node, state=state, engine=Engine(models=models))

    a, any_model = decode(1, State.READY, "a", "b"), decode(2, State.READY)
    rest = [decode(at, state, "a") for at, state in enumerate(State, 10) if state is not State.READY]
    prefill = replace(node_of("http://127.0.0.1:9", Role.PREFILL), state=State.READY)
    pool = Pool.of([*rest, a, any_model, prefill])
    assert pool.ready(Role.DECODE) == (a, any_model)
    assert pool.ready(Role.DECODE, "b") == (a, any_model)
    assert pool.ready(Role.DECODE, "c") == (any_model,)
    assert pool.ready(Role.PREFILL, "c") == (prefill,)


def test_more_models_than_are_remembered_are_told_apart() -> None:
    nodes = [
        replace(
            node_of(f"http://127.0.0.1:{port}", Role.DECODE),
            state=State.READY,
            engine=Engine(models=(f"m{port}",)),
        )
        for port in range(1, 40)
    ]
    pool = Pool.of(nodes)
    for _ in range(2):
        assert [pool.ready(Role.DECODE, f"m{port}") for port in range(1, 40)] == [(node,) for node in nodes]
