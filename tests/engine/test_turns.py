"""Turns through the router: the same answers as the cold path, and every token once."""

from collections.abc import Callable

import pytest

from tests.engine.conversation import Step
from tests.engine.exchange import CACHED, Verdict
from tests.engine.front import Front
from tests.engine.pair import Pair, Setup
from tests.engine.play import Checked, Turn
from tests.engine.plays import PLAYS
from tests.engine.report import Run

STRIDE_TOKENS = 128
"""The router compares tokens in strides, and engines cut to blocks: less than one is lost."""

Turns = dict[str, Turn]
References = dict[str, Checked]


def steps(which: Callable[[Step], bool] = lambda _: True) -> pytest.MarkDecorator:
    """Each such step of each setup's plays."""
    chosen = [
        (setup, step.name)
        for setup, plays in PLAYS.items()
        for play in plays.values()
        for step in play
        if which(step)
    ]
    return pytest.mark.parametrize(("setup", "name"), chosen, indirect=["setup"])


every_turn = steps()
opening_turn = steps(lambda step: step.builds_on is None)
later_turn = steps(lambda step: step.builds_on is not None)


@every_turn
def test_the_router_tells_the_reused_tokens_that_the_prefill_node_tells(turns: Turns, name: str) -> None:
    turn = turns[name]
    assert turn.first.params is not None
    # vLLM before 0.32 does not tell the router, unless the plugin does.
    assert turn.told_tokens == (turn.reused_tokens if CACHED in turn.first.params else 0)


@every_turn
def test_each_leg_is_sent_once_and_the_decode_leg_gets_the_params_as_they_came(
    turns: Turns, name: str
) -> None:
    turn = turns[name]
    (prefill,), (decode,) = turn.prefill_legs, turn.decode_legs
    assert prefill.request is not None
    assert prefill.request["max_tokens"] == 1
    assert decode.sent == prefill.handle


@opening_turn
def test_a_turn_with_nothing_to_build_on_is_cold(turns: Turns, name: str) -> None:
    turn = turns[name]
    assert (turn.plan, turn.reused_tokens) == ("cold", 0), turn.reason


@later_turn
def test_a_later_turn_reuses_what_is_held_and_shared_less_one_stride(turns: Turns, name: str) -> None:
    turn = turns[name]
    assert turn.plan in ("pull", "local"), turn.reason
    assert turn.reused_tokens > 0
    assert turn.reused_tokens >= turn.shared_tokens - STRIDE_TOKENS
    # P's own prefix cache can hold more of the prompt than D does for this conversation.
    assert turn.reused_tokens <= (turn.known_tokens if turn.plan == "local" else turn.shared_tokens)


@later_turn
def test_a_later_turns_prefill_leg_carries_the_handle_of_the_turn_it_builds_on(
    turns: Turns, name: str
) -> None:
    turn = turns[name]
    assert turn.builds_on is not None
    sent, given = turn.prefill_legs[-1].sent, turns[turn.builds_on].handle
    assert sent["remote_request_id"] == given["remote_request_id"]
    assert sent["do_remote_decode"] is True
    (blocks,), (held_blocks,) = sent["remote_block_ids"], given["remote_block_ids"]
    assert blocks
    assert blocks == held_blocks[: len(blocks)]
    assert sent["remote_num_tokens"] <= given["remote_num_tokens"]


@every_turn
def test_the_answer_is_the_references(checked: References, name: str) -> None:
    each = checked[name]
    assert each.turn.answer.prompt_ids == each.reference.decode.prompt_ids
    assert each.answer_verdict is not Verdict.DIFFERENT, (each.turn.answer.ids, each.reference.decode.ids)


@every_turn
def test_the_first_token_of_the_prefill_node_is_the_references(checked: References, name: str) -> None:
    """D's prefix cache can hide wrong KV of P's; P's own token cannot."""
    each = checked[name]
    assert each.first_verdict is not Verdict.DIFFERENT, (each.turn.first.ids, each.reference.prefill.ids)


def test_no_engine_complains(turns: Turns, engine_pair: Pair) -> None:
    """A node notices that blocks were read a second time or too late, and only its log tells."""
    assert turns
    for log in engine_pair.logs:
        lines = log.read_text(errors="replace").splitlines()
        assert [line for line in lines if "invalid KV" in line or "Traceback" in line] == []


def test_the_router_tells_who_verifies_and_what_is_missing(
    turns: Turns, router: Front, setup: Setup, run: Run
) -> None:
    assert turns
    told = router.health()
    run.of(setup).verify = ", ".join(told["verify"])
    assert told["verify"] == {"router" if setup is Setup.STOCK else "engine": 1}
    lacks_handles = [hint for hint in told["hints"] if "streamed answers carry no handle" in hint]
    assert len(lacks_handles) == (1 if setup is Setup.STOCK else 0)
