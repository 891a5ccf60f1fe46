"""Simple policies: who is next, who has least to do, who served last."""

from collections import Counter
from dataclasses import replace

import pytest

from router.fleet.node import Node, Role, State
from router.turn.policy import Policy, pick, turn_of


def node(key: str, in_flight: int = 0) -> Node:
    return Node(key, f"http://{key}", Role.DECODE, State.READY, in_flight=in_flight)


NODES = (node("a", 3), node("b", 1), node("c", 1))


def key(policy: Policy, last: str | None = None, turn: int = 0) -> str | None:
    picked = pick(policy, NODES, last=last, turn=turn)
    return picked.key if picked is not None else None


@pytest.mark.parametrize("policy", list(Policy))
def test_nobody_is_picked_from_nobody(policy: Policy) -> None:
    assert pick(policy, (), last="a", turn=3) is None


def test_round_robin_gives_each_the_same_number() -> None:
    assert Counter(key(Policy.ROUND_ROBIN, "a", turn) for turn in range(9)) == {"a": 3, "b": 3, "c": 3}


def test_a_heavier_node_has_more_turns_and_more_legs() -> None:
    nodes = (replace(NODES[1], weight=3.0), NODES[2])
    counted = Counter(nodes[turn_of(nodes, turn)].key for turn in range(400))
    assert counted["b"] == pytest.approx(300, abs=4)
    loaded = (replace(nodes[0], in_flight=5), replace(nodes[1], in_flight=2))
    picked = pick(Policy.LEAST_LOAD, loaded, last=None, turn=0)
    assert picked is loaded[0]


def test_the_least_loaded_take_turns() -> None:
    assert Counter(key(Policy.LEAST_LOAD, "a", turn) for turn in range(9)) == {"b": 6, "c": 3}


def test_a_conversation_sticks_to_its_node_until_that_is_gone() -> None:
    assert key(Policy.STICKY, "a") == "a"
    assert key(Policy.STICKY, "gone") in ("b", "c")
    assert key(Policy.STICKY, None) in ("b", "c")
