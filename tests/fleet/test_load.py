"""What legs teach, and what a snapshot says of nodes: queues, rates, and nothing of nodes that are gone."""

from contextlib import ExitStack
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

from router.fleet.fit import Line
from router.fleet.load import (
    MAX_MODELS,
    PRIOR_BYTES_PER_TOKEN,
    PRIOR_COMPUTE,
    PRIOR_MOVE,
    Load,
    PrefillLeg,
    load_step,
)
from router.fleet.node import Engine, Node, Role, State

TRUE = Line(0.05, 40e-6)
MOVE = Line(0.01, 8e-6)


@dataclass
class Clock:
    now_s: float = 100.0

    def __call__(self) -> float:
        return self.now_s


def node(key: str, role: Role = Role.PREFILL, in_flight: int = 0, **engine: Any) -> Node:
    return Node(key, f"http://{key}", role, State.READY, engine=Engine(**engine), in_flight=in_flight)


P1, P2, D1 = node("p1"), node("p2"), node("d1", Role.DECODE)
ALL = (P1, P2, D1)


def a_leg(load: Load, clock: Clock, computed: int, moved: int = 0, key: str = "p1") -> None:
    """A leg on a P that does nothing else."""
    with load.prefilling(key, computed, clock) as leg:
        clock.now_s += (MOVE.at(moved) if moved else 0.0) + TRUE.at(computed)
    load.prefilled(leg, computed_tokens=computed, moved_tokens=moved)


def test_a_node_that_nothing_is_known_of_has_the_published_rates() -> None:
    loads = Load().snapshot(ALL, "m", 0.0)
    load = loads.prefill(P1)
    assert (load.compute, load.move, load.queue_s) == (PRIOR_COMPUTE, PRIOR_MOVE, 0.0)
    assert not load.is_measured
    assert loads.decode(D1).legs == 0
    assert loads.bytes_per_token == PRIOR_BYTES_PER_TOKEN


def test_rates_are_learned_from_legs_and_shared_with_nodes_that_have_none() -> None:
    load, clock, random = Load(), Clock(), Random(1)
    for _ in range(60):
        a_leg(load, clock, random.randint(200, 9_000))
        a_leg(load, clock, random.randint(50, 300), moved=random.randint(500, 20_000))
        clock.now_s += 0.1
    loads = load.snapshot(ALL, "m", clock())
    for known in (loads.prefill(P1), loads.prefill(P2)):
        assert known.is_measured
        for tokens in (500, 4_000, 9_000):
            assert known.compute.at(tokens) == pytest.approx(TRUE.at(tokens), rel=0.1)
            assert known.move.at(tokens) == pytest.approx(MOVE.at(tokens), rel=0.25, abs=0.012)


def test_what_is_not_measured_is_brought_into_proportion_with_what_is() -> None:
    """On a machine that computes a hundred times slower, reading is not taken to be what it is elsewhere."""
    load, clock = Load(), Clock()
    for _ in range(6):
        with load.prefilling("p1", 1000, clock) as leg:
            clock.now_s += 100 * PRIOR_COMPUTE.at(1000)
        load.prefilled(leg, computed_tokens=1000, moved_tokens=0)
    known = load.snapshot(ALL, "m", clock()).prefill(P2)
    assert known.move.at(4_000) > 20 * PRIOR_MOVE.at(4_000)
    assert not known.is_measured, "reading was not"


def test_legs_that_queue_behind_each_other_teach_their_own_time_only() -> None:
    load, clock, sizes = Load(), Clock(), [800, 3_000, 1_500, 6_000, 400]
    for _ in range(12):
        with ExitStack() as first:
            legs: list[tuple[ExitStack, PrefillLeg, int]] = []
            for tokens in sizes:
                stack = first.enter_context(ExitStack())
                legs.append((stack, stack.enter_context(load.prefilling("p1", tokens, clock)), tokens))
            for stack, leg, tokens in legs:
                clock.now_s += TRUE.at(tokens)
                stack.close()
                load.prefilled(leg, computed_tokens=tokens, moved_tokens=0)
    known = load.snapshot(ALL, "m", clock()).prefill(P1).compute
    for tokens in sizes:
        assert known.at(tokens) == pytest.approx(TRUE.at(tokens), rel=0.15)


def test_a_queue_is_what_is_open_less_what_has_been_done_of_it() -> None:
    load, clock = Load(), Clock()
    each_s = PRIOR_COMPUTE.at(2_000)

    def queue_s() -> float:
        return load.snapshot(ALL, "m", clock()).prefill(P1).queue_s

    with load.prefilling("p1", 2_000, clock):
        assert queue_s() == pytest.approx(each_s)
        clock.now_s += each_s / 2
        assert queue_s() == pytest.approx(each_s / 2)
        with load.prefilling("p1", 2_000, clock):
            assert queue_s() == pytest.approx(1.5 * each_s)
        clock.now_s += each_s
        assert 0.0 <= queue_s() < each_s, "an overdue leg does not count for less than nothing"
        clock.now_s += 60
        assert queue_s() > 30, "a node that does not answer at all is expected not to"
        assert load.snapshot(ALL, "m", clock()).prefill(P2).queue_s == 0.0
    assert queue_s() == 0.0


def test_a_leg_that_raises_leaves_no_queue_and_teaches_nothing() -> None:
    load, clock = Load(), Clock()
    with pytest.raises(RuntimeError), load.prefilling("p1", 9_000, clock):
        clock.now_s += 50.0
        raise RuntimeError
    known = load.snapshot(ALL, "m", clock()).prefill(P1)
    assert (known.queue_s, known.queue_tokens) == (0.0, 0.0)
    assert known.compute.at(9_000) == pytest.approx(PRIOR_COMPUTE.at(9_000))


def test_requests_of_others_that_a_probe_counted_are_queued_too() -> None:
    load = Load()
    busy = node("p1", running=1, waiting=4)
    assert load.snapshot((busy, P2, D1), "m", 0.0).prefill(busy).queue_s > 3 * PRIOR_COMPUTE.at(500)
    assert load.snapshot((node("d1", Role.DECODE, running=7),), "m", 0.0).decode(D1).legs == 7


def test_what_a_probe_counted_of_our_own_is_not_counted_twice() -> None:
    load, clock = Load(), Clock()
    with load.prefilling("p1", 1_000, clock):
        pass
    ended = load.snapshot((node("p1", running=1), P2), "m", clock()).prefill(P1)
    assert ended.queue_s == 0.0, "it was open within the probe's interval"
    clock.now_s += 60.0
    with load.prefilling("p1", 1_000, clock):
        clock.now_s += 60.0
    with load.prefilling("p1", 1_000, clock):
        clock.now_s += 60.0
        both = load.snapshot((node("p1", running=2, in_flight=1),), "m", clock()).prefill(P1)
    assert both.queue_s > 0.9 * PRIOR_COMPUTE.at(1_000)


def test_a_decode_node_slows_down_with_its_load() -> None:
    load, line = Load(), Line(0.01, 2e-6)
    for at in range(80):
        tokens, now_s = 500 + 250 * (at % 20), float(at)
        load.delivered("d1", tokens=tokens, seconds=line.at(tokens), legs=1, now_s=now_s)
        load.delivered("d1", tokens=tokens, seconds=3 * line.at(tokens), legs=40, now_s=now_s)
    calm = load.snapshot((D1,), "m", 80.0).decode(D1)
    crowded = load.snapshot((node("d1", Role.DECODE, in_flight=40),), "m", 80.0).decode(D1)
    assert calm.slowdown == 1.0
    assert crowded.slowdown == pytest.approx(3.0, rel=0.35)
    assert calm.deliver.at(2_000) == pytest.approx(line.at(2_000), rel=0.4)


def test_turns_that_stay_teach_how_fast_d_computes() -> None:
    load = Load()
    for at in range(40):
        load.stayed("d1", computed_tokens=100 + at, seconds=0.5, legs=0, now_s=float(at))
    known = load.snapshot((D1,), "m", 40.0).decode(D1)
    assert known.compute.at(120) == pytest.approx(0.5, rel=0.1)
    assert known.deliver.at(120) < 0.1


def test_a_cache_that_loses_prompts_is_trusted_less() -> None:
    load = Load()
    for at in range(20):
        load.kept(P1, expected_tokens=1000, cached_tokens=100, now_s=float(at))
    loads = load.snapshot(ALL, "m", 20.0)
    assert loads.prefill(P1).kept_share < 0.3
    assert loads.prefill(P2).kept_share == 1.0


def test_bytes_per_token_are_learned_for_each_model_and_for_so_many_only() -> None:
    load = Load()
    for at in range(20):
        load.sized("m", prompt_bytes=30_000, prompt_tokens=10_000, now_s=float(at))
    assert load.snapshot(ALL, "m", 20.0).bytes_per_token == pytest.approx(3.0, rel=0.05)
    assert load.snapshot(ALL, "other", 20.0).bytes_per_token == PRIOR_BYTES_PER_TOKEN
    for at in range(MAX_MODELS):
        load.sized(f"m{at}", prompt_bytes=30_000, prompt_tokens=10_000, now_s=20.0)
    assert load.snapshot(ALL, "m", 20.0).bytes_per_token == PRIOR_BYTES_PER_TOKEN


def test_a_prompt_without_tokens_teaches_nothing() -> None:
    load = Load()
    load.sized("m", prompt_bytes=100, prompt_tokens=0, now_s=0.0)
    assert load.snapshot(ALL, "m", 0.0).bytes_per_token == PRIOR_BYTES_PER_TOKEN


def test_nodes_that_are_gone_are_forgotten_once_their_legs_have_ended() -> None:
    load, clock = Load(), Clock()
    for _ in range(10):
        a_leg(load, clock, 1_000)
        a_leg(load, clock, 1_000, key="p2")
        load.kept(P1, expected_tokens=1000, cached_tokens=0, now_s=clock())
    with load.prefilling("p1", 1_000, clock):
        load.snapshot((P2, D1), "m", clock())
        assert load.snapshot(ALL, "m", clock()).prefill(P1).queue_s > 0.0
    load.snapshot((P2, D1), "m", clock())
    assert load.snapshot(ALL, "m", clock()).prefill(P1).kept_share == 1.0


def test_a_slow_node_that_is_avoided_is_tried_again_in_time() -> None:
    load, clock = Load(), Clock()
    for _ in range(20):
        a_leg(load, clock, 2_000, key="p2")
        with load.prefilling("p1", 2_000, clock) as leg:
            clock.now_s += 4 * TRUE.at(2_000)
        load.prefilled(leg, computed_tokens=2_000, moved_tokens=0)
    slow = load.snapshot(ALL, "m", clock()).prefill(P1).compute.at(2_000)
    clock.now_s += 3_600.0
    for _ in range(20):
        a_leg(load, clock, 2_000, key="p2")
    clock.now_s += 6.0
    forgiven = load.snapshot(ALL, "m", clock()).prefill(P1).compute.at(2_000)
    assert slow > 3 * TRUE.at(2_000)
    assert forgiven < 1.3 * TRUE.at(2_000)


@pytest.mark.parametrize(
    ("legs", "step"),
    [(0, 0), (1, 0), (3, 0), (4, 1), (15, 1), (16, 2), (63, 2), (64, 3), (255, 3), (256, 4), (10**6, 4)],
)
def test_steps_of_load(legs: int, step: int) -> None:
    assert load_step(legs) == step


def test_turns_count_up() -> None:
    load = Load()
    assert [load.next_turn() for _ in range(3)] == [0, 1, 2]
