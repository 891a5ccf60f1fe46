"""Sizes in tokens from what is known, and seconds from sizes."""

from dataclasses import replace
from typing import Any

import pytest

from router.fleet.fit import Line
from router.fleet.load import IDLE_DECODE, IDLE_PREFILL
from router.fleet.node import Engine, Node, Role, State
from router.ledger.store import Found, Handle, Relation, Trace
from router.turn.estimate import SPREAD_PRICE_S, Sizes, measure, on_decode, on_prefill, staying

HANDLE = Handle(b"{}", "d1", "engine", tokens=1100, prompt_tokens=1000, deadline_s=1e9)
TRACE = Trace("p1", "d1", prompt_tokens=1000, prompt_bytes=4000, reused_tokens=0, computed_at_s=0.0)
FOUND = Found("b", 1, 2, Relation.EXTENSION, TRACE, 1, HANDLE, None)
SIZES = (1000, 4000, 4400, 4800)
"""Up to a system prompt, the user's message, the answer, and the next message."""


def sizes(found: Found | None, bytes_: tuple[int, ...] = SIZES, *, by_message: bool = True) -> Sizes:
    return measure(found, bytes_, by_message=by_message, bytes_per_token=4.0)


def test_of_a_first_turn_only_its_bytes_are_known() -> None:
    assert sizes(None) == Sizes(1200.0, 0.0, 0.0, 0.0)
    assert sizes(None, ()) == Sizes(1.0, 0.0, 0.0, 0.0)


def test_an_extension_is_what_is_held_and_the_new_message() -> None:
    assert sizes(FOUND) == Sizes(prompt=1200.0, prefill_held=1000.0, decode_held=1100.0, readable=1100.0)
    assert sizes(FOUND).append == 100.0


def test_without_its_handle_the_answer_is_measured_by_its_bytes() -> None:
    assert sizes(replace(FOUND, handle=None)) == Sizes(1200.0, 1000.0, 1100.0, 0.0)


def test_a_prompt_without_messages_is_measured_by_its_handle() -> None:
    assert sizes(FOUND, by_message=False) == Sizes(1200.0, 1000.0, 1100.0, 1100.0)


def test_a_regenerated_turn_reads_its_prompt() -> None:
    again = replace(FOUND, relation=Relation.REGENERATED)
    assert sizes(again, SIZES[:2]) == Sizes(1000.0, 999.0, 999.0, 999.0)


def test_a_fork_has_the_share_up_to_its_boundary() -> None:
    fork = replace(FOUND, relation=Relation.FORK, depth=1)
    assert sizes(fork, (1000, 9000)) == Sizes(2250.0, 250.0, 250.0, 250.0)


def test_a_handle_that_an_earlier_turn_left_says_what_p_has() -> None:
    """A turn stayed on D meanwhile: the trace is of the newest prompt, the handle of an older one."""
    stayed = replace(FOUND, trace=replace(TRACE, prompt_tokens=1400, prompt_bytes=5600))
    assert sizes(stayed, (1000, 5600, 6000, 6400)) == Sizes(1600.0, 1000.0, 1500.0, 1100.0)


def test_tokens_that_nobody_counted_are_measured_by_their_bytes() -> None:
    assert sizes(replace(FOUND, trace=replace(TRACE, prompt_tokens=0), handle=None)).prompt == 1200.0


LOAD = IDLE_PREFILL._replace(compute=Line(1.0, 0.01), move=Line(0.5, 0.001))


def part(held: float = 0.0, readable: float = 0.0, queue_s: float = 0.0, kept: float = 1.0) -> list[float]:
    load = LOAD._replace(queue_s=queue_s, kept_share=kept)
    made = on_prefill(load, prompt=1000, held=held, readable=readable, threshold=64, verify=None)
    return [round(made.seconds, 6), made.compute_tokens, made.move_tokens]


def test_p_computes_what_it_neither_has_nor_reads() -> None:
    assert part() == [11.0, 1000, 0]
    assert part(held=600) == [5.0, 400, 0]
    assert part(readable=600) == [5.0 + 0.5 + 0.6, 400, 600]
    assert part(held=200, readable=600) == [5.0 + 0.5 + 0.4, 400, 400]
    assert part(held=600, kept=0.5) == [8.0, 700, 0]


def test_less_than_the_threshold_is_not_read() -> None:
    assert part(held=600, readable=663) == [5.0, 400, 0]
    assert part(held=600, readable=664)[2] == 64


def test_reading_goes_on_while_p_computes_for_others() -> None:
    assert part(readable=600, queue_s=1.0)[0] == 6.1
    assert part(readable=600, queue_s=3.0)[0] == 8.0


def test_comparing_takes_its_time() -> None:
    made = on_prefill(LOAD, prompt=1000, held=0, readable=0, threshold=64, verify=Line(0.25, 0.001))
    assert made.seconds == pytest.approx(12.25)


def test_one_token_is_always_computed() -> None:
    made = on_prefill(LOAD, prompt=10, held=10, readable=0, threshold=64, verify=None)
    assert made.compute_tokens == 1


def node(**engine: Any) -> Node:
    return Node("d1", "http://d1", Role.DECODE, State.READY, engine=Engine(**engine))


NODE = node()
DECODE = IDLE_DECODE._replace(deliver=Line(0.1, 0.001), compute=Line(0.2, 0.01))


def test_d_reads_what_it_does_not_have() -> None:
    made = on_decode(DECODE, NODE, prompt=1000, held=600)
    assert (round(made.seconds, 6), made.tokens) == (0.5, 400)
    crowded = on_decode(DECODE._replace(slowdown=3.0), NODE, prompt=1000, held=600)
    assert crowded.seconds == pytest.approx(1.5)


def test_each_open_leg_on_d_has_its_price() -> None:
    prices = [on_decode(DECODE._replace(legs=n), NODE, prompt=9, held=0).price_s for n in (0, 10, 20)]
    assert prices == sorted(set(prices))
    heavy = on_decode(DECODE._replace(legs=20), replace(NODE, weight=2.0), prompt=9, held=0)
    assert heavy.price_s == pytest.approx(prices[1])


@pytest.mark.parametrize(("usage", "priced"), [(0.2, False), (0.85, False), (0.95, True), (1.0, True)])
def test_a_d_that_is_nearly_full_is_priced(usage: float, priced: bool) -> None:
    full = node(kv_usage=usage, num_blocks=1000, block_size=16)
    assert (on_decode(DECODE, full, prompt=400, held=0).price_s > SPREAD_PRICE_S) is priced


def test_room_for_the_prompt_counts_along() -> None:
    full = node(kv_usage=0.85, num_blocks=1000, block_size=16)
    assert on_decode(DECODE, full, prompt=4000, held=0).price_s > SPREAD_PRICE_S
    assert on_decode(DECODE, full, prompt=4000, held=3900).price_s < SPREAD_PRICE_S


def test_a_fuller_d_is_a_little_dearer_before_it_is_full() -> None:
    prices = [
        on_decode(DECODE, node(kv_usage=usage, num_blocks=1000, block_size=16), prompt=9, held=0).price_s
        for usage in (0.0, 0.3, 0.6)
    ]
    assert prices == sorted(set(prices))


def test_staying_costs_d_its_computing_and_everybody_there_the_wait() -> None:
    alone = staying(DECODE, NODE, prompt=1000, held=900, kept_handle=None)
    assert (round(alone.seconds, 6), alone.price_s, alone.tokens) == (1.2, 0.0, 100)
    crowded = staying(DECODE._replace(legs=5), NODE, prompt=1000, held=900, kept_handle=None)
    assert crowded.price_s >= 5 * 1.0


def test_a_turn_that_leaves_no_handle_pays_for_what_the_next_one_misses() -> None:
    kept = staying(DECODE, NODE, prompt=1000, held=900, kept_handle=850)
    lost = staying(DECODE, NODE, prompt=1000, held=900, kept_handle=0)
    assert kept.price_s == pytest.approx(1.5)
    assert lost.price_s == pytest.approx(10.0)
