"""Turns through the router on stock engines: the same answers as the cold path, and every token once."""

from collections import Counter

import pytest

from tests.engine.conversation import STEPS
from tests.engine.exchange import Verdict
from tests.engine.pair import Pair
from tests.engine.play import Checked, Turn
from tests.engine.recorder import Recorder

STRIDE_TOKENS = 128
"""The router compares tokens in strides; a cut loses less than one."""

Turns = dict[str, Turn]
References = dict[str, Checked]

every_turn = pytest.mark.parametrize("name", [step.name for step in STEPS])
opening = pytest.mark.parametrize("name", [step.name for step in STEPS if step.builds_on is None])
later_turn = pytest.mark.parametrize("name", [step.name for step in STEPS if step.builds_on is not None])


@every_turn
def test_the_reused_tokens_are_those_that_the_prefill_node_reports(turns: Turns, name: str) -> None:
    params = turns[name].first.params
    assert params is not None
    assert turns[name].reused_tokens == params["remote_prefill_cached_tokens"]


@every_turn
def test_each_leg_is_sent_once_and_the_decode_leg_gets_the_params_as_they_came(
    turns: Turns, name: str
) -> None:
    turn = turns[name]
    (prefill,), (decode,) = turn.prefill_legs, turn.decode_legs
    assert prefill.request is not None
    assert prefill.response is not None
    assert decode.request is not None
    assert prefill.request["max_tokens"] == 1
    assert decode.request["kv_transfer_params"] == prefill.response["kv_transfer_params"]


@opening
def test_an_opening_is_cold(turns: Turns, name: str) -> None:
    turn = turns[name]
    assert (turn.plan, turn.reused_tokens) == ("cold", 0)


@later_turn
def test_a_later_turn_reuses_what_is_held_and_shared_less_one_stride(turns: Turns, name: str) -> None:
    turn = turns[name]
    assert turn.plan == "pull", turn.reason
    assert turn.reused_tokens > 0
    assert turn.reused_tokens >= turn.shared_tokens - STRIDE_TOKENS
    assert turn.reused_tokens <= turn.shared_tokens


@later_turn
def test_a_later_turns_prefill_leg_carries_the_handle_of_the_turn_it_builds_on(
    turns: Turns, name: str
) -> None:
    turn = turns[name]
    assert turn.step.builds_on is not None
    (before,) = turns[turn.step.builds_on].decode_legs
    request, held = turn.prefill_legs[-1].request, before.response
    assert request is not None
    assert held is not None
    sent, given = request["kv_transfer_params"], held["kv_transfer_params"]
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


def test_no_params_are_ever_sent_twice(turns: Turns, recorder: Recorder) -> None:
    assert turns
    sent: Counter[tuple[str, str, str]] = Counter()
    for exchange in recorder.exchanges:
        params = (exchange.request or {}).get("kv_transfer_params")
        if params and params.get("remote_request_id"):
            sent[exchange.role, params["remote_engine_id"], params["remote_request_id"]] += 1
    assert sent
    assert [key for key, count in sent.items() if count > 1] == []


def test_no_engine_complains(turns: Turns, engine_pair: Pair) -> None:
    """A node notices that blocks were read a second time or too late, and only its log tells."""
    assert turns
    for log in (engine_pair.prefill_log, engine_pair.decode_log):
        lines = log.read_text(errors="replace").splitlines()
        assert [line for line in lines if "invalid KV" in line or "Traceback" in line] == []
