"""P's decision: nothing is read that a stamp does not prove, and D is told wherever it still holds blocks."""

from typing import Any

import pytest

from boomerang_vllm import clock, cut, digest
from boomerang_vllm.check import Outcome, Rules, check
from boomerang_vllm.clock import Clock

SIDE = cut.Side(block_tokens=16, groups=1, dcp_size=1)
NOW = Clock("here", 1000.0, 50_000.0)
RULES = Rules(can_read=True, takes_unstamped=True, drops_expired=True)
NOTHING = {"remote_num_tokens": 0, "remote_block_ids": [[]]}
HELD = list(range(500, 900))


def handle(ids: list[int] | None = None, **changes: Any) -> dict[str, Any]:
    held = HELD if ids is None else ids
    stamp = digest.chain(held, len(held), digest.root(), {}).to_wire()
    stamp |= {"block_size": 16} | clock.stamped(480.0, NOW)
    params = {
        "do_remote_decode": True,
        "remote_engine_id": "e",
        "remote_request_id": "r",
        "remote_host": "127.0.0.1",
        "remote_port": 5601,
        "remote_num_tokens": len(held),
        "remote_block_ids": [list(range(-(-len(held) // 16)))],
        "remote_blocks_expiry_time": 1480.0,
        "boomerang": stamp,
    }
    return params | changes


def decide(params: dict[str, Any], prompt: list[int], rules: Rules = RULES, now: Clock = NOW) -> Outcome:
    return check(
        params,
        prompt_tokens=len(prompt),
        proven=lambda stamp, wire: digest.proven(stamp, prompt, len(prompt), digest.root(), {}),
        side=SIDE,
        rules=rules,
        now=now,
    )


def test_the_next_turn_takes_all() -> None:
    assert decide(handle(), [*HELD, 1, 2]) == Outcome(400, {}, "whole")


def test_an_edited_history_keeps_its_beginning() -> None:
    prompt = [*HELD[:300], 1, *HELD[301:], 1, 2]
    edits = {"remote_num_tokens": 256, "remote_block_ids": [list(range(16))]}
    assert decide(handle(), prompt) == Outcome(256, edits, "cut")


def test_another_prompt_takes_nothing_and_d_is_told() -> None:
    assert decide(handle(), [1] * 500) == Outcome(0, NOTHING, "another prompt")


def test_a_handle_that_the_router_has_cut_is_whole() -> None:
    cut_one = handle(remote_num_tokens=128, remote_block_ids=[list(range(8))])
    assert decide(cut_one, [*HELD[:300], 1, 2]) == Outcome(128, {}, "whole")


def test_a_handle_that_claims_more_than_is_stamped_is_cut() -> None:
    outcome = decide(handle(remote_num_tokens=401, remote_block_ids=[list(range(26))]), [*HELD, 1, 2])
    assert (outcome.verified_tokens, outcome.reason) == (400, "cut")
    assert outcome.edits["remote_block_ids"] == [list(range(25))]


def test_an_unstamped_handle_is_taken_or_refused() -> None:
    params = handle()
    del params["boomerang"]
    assert decide(params, [1] * 500) == Outcome(0, {}, "no stamp, taken as it is")
    refusing = Rules(can_read=True, takes_unstamped=False, drops_expired=True)
    assert decide(params, [1] * 500, refusing) == Outcome(0, NOTHING, "no stamp, refused")


@pytest.mark.parametrize("stamp", [{}, {"v": 2}, "x", {"v": 1, "verified_tokens": 7}])
def test_a_broken_stamp_proves_nothing(stamp: object) -> None:
    outcome = decide(handle(boomerang=stamp), [*HELD, 1])
    assert (outcome.verified_tokens, outcome.edits) == (0, NOTHING)


def test_a_malformed_handle_is_kept_from_the_engine() -> None:
    outcome = decide(handle(remote_num_tokens="400"), [*HELD, 1])
    assert (outcome.verified_tokens, outcome.edits) == (0, NOTHING)


def test_a_node_that_cannot_read_computes() -> None:
    rules = Rules(can_read=False, takes_unstamped=True, drops_expired=True)
    assert decide(handle(), [*HELD, 1], rules).edits == NOTHING


def test_a_released_handle_is_left_as_it_is() -> None:
    assert decide(handle() | NOTHING, [*HELD, 1]).edits == {}


def test_an_expired_handle_is_dropped_and_d_is_not_told() -> None:
    late = Clock("here", 1474.0, 50_000.0)
    assert decide(handle(), [*HELD, 1], now=late).edits == {"remote_num_tokens": 0, "remote_block_ids": []}
    assert decide(handle(), [*HELD, 1], now=Clock("here", 1472.0, 50_000.0)).reason == "whole"
    passing = Rules(can_read=True, takes_unstamped=True, drops_expired=False)
    assert decide(handle(), [*HELD, 1], passing, late).reason == "whole"


def test_between_machines_the_wall_clock_decides() -> None:
    assert decide(handle(), [*HELD, 1], now=Clock("there", 9e9, 50_472.0)).reason == "whole"
    assert decide(handle(), [*HELD, 1], now=Clock("there", 0.0, 50_474.0)).reason == "expired"


def test_this_machine_has_a_clock() -> None:
    before, after = clock.here(), clock.here()
    assert before.boot == after.boot
    assert before.monotonic_s <= after.monotonic_s
