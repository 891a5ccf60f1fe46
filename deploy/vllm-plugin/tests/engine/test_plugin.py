"""On real engines: what the plugin adds, what it prevents, and that without it the wrong answer is seen.

Every answer, and P's first token, is compared with a reference taken afterwards under a fresh cache salt.
"""

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import pytest
from legs import COLD, Engines, Json, Leg, body, is_equal
from nodes import HANDLE_TTL_S, PREFILL_LEASE_S, PREFIX_CACHE, Nodes

SYSTEM = {"role": "system", "content": "You keep the notes of a small port and answer in one line. " * 4}
USAGE = "vllm:kv_cache_usage_perc"
EXPIRED = "vllm:nixl_num_kv_expired_reqs_total"


def asked(subject: str, lines: int) -> list[Json]:
    notes = " ".join(f"Note {n}: the {subject} was seen at pier {n * 7 % 23}." for n in range(lines))
    return [SYSTEM, {"role": "user", "content": notes}]


def continued(messages: list[Json], answer: Leg, question: str) -> list[Json]:
    more = [{"role": "assistant", "content": answer.text}, {"role": "user", "content": question}]
    return [*messages, *more]


def reused(leg: Leg) -> int:
    count = leg.handle["remote_prefill_cached_tokens"]
    assert isinstance(count, int)
    return count


def verified(leg: Leg) -> Any:
    return leg.handle["boomerang"]["verified_tokens"]


def read_from_d(leg: Leg) -> int:
    """What was verified; and without a prefix cache of its own P has read just that."""
    count, all_reused = verified(leg), reused(leg)
    assert isinstance(count, int)
    assert count == all_reused if PREFIX_CACHE == "off" else count <= all_reused, leg.handle["boomerang"]
    return count


def check(engines: Engines, messages: list[Json], first: Leg, second: Leg) -> None:
    reference = engines.reference(messages)
    assert is_equal(first, reference[0]), "P's first token"
    assert is_equal(second, reference[1]), "D's answer"


def wait_for(condition: Callable[[], bool], limit_s: float) -> None:
    until = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < until, f"not within {limit_s} s"
        time.sleep(0.5)


def shapes(events: Sequence[str]) -> set[tuple[str, ...]]:
    """The kinds of chunks in a stream, by their members."""
    return {tuple(json.loads(event.removeprefix("data: "))) for event in events}


def idle(engines: Engines, node: str, limit_s: float = HANDLE_TTL_S + 30) -> None:
    wait_for(lambda: engines.metric(USAGE, node=node) == 0, limit_s)


# -- stream -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("usage", [False, True])
def test_a_chat_stream_has_the_handle_once_before_its_end(engines: Engines, usage: bool) -> None:
    request = body(asked("ferry", 3)) | ({"stream_options": {"include_usage": True}} if usage else {})
    plain = engines.decode_stream(request, None)
    first = engines.prefill(body(asked("ferry", 3)))
    leg = engines.decode_stream(request, first.handle)
    added = json.loads(leg.events[-2].removeprefix("data: "))
    assert added["choices"] == []
    assert added["kv_transfer_params"]["do_remote_decode"] is True
    assert set(added) == {"id", "object", "created", "model", "choices", "kv_transfer_params"}
    assert plain.params is None
    # How many tokens an event has depends on the machine's load; all else is as it was.
    assert (leg.ids, leg.text) == (plain.ids, plain.text)
    assert shapes(leg.events[:-2]) == shapes(plain.events[:-1])


def test_a_completions_stream_has_it(engines: Engines, nodes: Nodes) -> None:
    request = {"model": "tiny", "prompt": "The harbour. " * 60, "max_tokens": 5, "temperature": 0}
    first = engines.post(
        f"{nodes.prefill}/v1/completions", request | {"max_tokens": 1, "kv_transfer_params": COLD}
    )
    events = engines.stream("/v1/completions", request, first["kv_transfer_params"])
    assert sum('"kv_transfer_params":{' in event for event in events) == 1
    added = json.loads(events[-2].removeprefix("data: "))
    assert added["object"] == "text_completion"
    assert added["kv_transfer_params"]["boomerang"]["tokens"] > 64


def test_a_messages_stream_has_it_in_its_last_event(engines: Engines, nodes: Nodes) -> None:
    message = {"role": "user", "content": "The harbour. " * 60}
    request = {"model": "tiny", "messages": [message], "max_tokens": 5, "temperature": 0}
    plain = engines.stream("/v1/messages", request, None)
    first = engines.post(
        f"{nodes.prefill}/v1/messages", request | {"max_tokens": 1, "kv_transfer_params": COLD}
    )
    events = engines.stream("/v1/messages", request, first["kv_transfer_params"])
    names = [event.splitlines()[0] for event in events]
    assert names == [event.splitlines()[0] for event in plain]
    stop = json.loads(events[-1].split("data: ")[1])
    assert stop["type"] == "message_stop"
    assert stop["kv_transfer_params"]["do_remote_decode"] is True


def test_a_responses_stream_has_it_by_itself(engines: Engines, nodes: Nodes) -> None:
    request = {"model": "tiny", "input": "The harbour. " * 60, "max_output_tokens": 5, "temperature": 0}
    first = engines.post(
        f"{nodes.prefill}/v1/responses", request | {"max_output_tokens": 1, "kv_transfer_params": COLD}
    )
    events = engines.stream("/v1/responses", request, first["kv_transfer_params"])
    assert sum('"boomerang"' in event for event in events) == 1


# -- stamp, verify, cut -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["blocks", "tokens"])
def test_the_next_turns_reuse_what_is_held(engines: Engines, kind: str) -> None:
    messages, handle, played = asked(f"barge of {kind}", 14), COLD, []
    for number in range(3):
        first = engines.prefill(body(messages), handle)
        params = dict(first.handle)
        if kind == "tokens":
            del params["boomerang"]  # D then cannot know that P hashes alike
        second = engines.decode_stream(body(messages), params)
        if number:
            held = handle["boomerang"]["tokens"]
            assert read_from_d(first) > held // 2, first.handle["boomerang"]
        else:
            assert read_from_d(first) == 0
        played.append((messages, first, second))
        handle = second.handle
        assert handle["boomerang"]["kind"] == kind
        assert handle["boomerang"]["ttl_s"] == HANDLE_TTL_S
        assert handle["boomerang"]["tokens"] == handle["remote_num_tokens"]
        messages = continued(messages, second, f"What of pier {number}?")
    for turn in played:  # not in between: a reference can take longer than a handle lives
        check(engines, *turn)


def test_an_edited_history_keeps_its_common_blocks(engines: Engines) -> None:
    messages = asked("trawler", 20)
    _, second = engines.turn(messages)
    edited = [SYSTEM, {"role": "user", "content": messages[1]["content"].replace("Note 15", "Nota 15")}]
    first, answer = engines.turn(edited, second.handle)
    assert read_from_d(first) > 0
    assert verified(first) % second.handle["boomerang"]["block_size"] == 0
    check(engines, edited, first, answer)


def test_a_regenerated_answer_reads_what_the_prompt_has(engines: Engines) -> None:
    messages = asked("yacht", 14)
    _, second = engines.turn(messages)
    first, answer = engines.turn(messages, second.handle)
    assert 0 < read_from_d(first) < second.handle["remote_num_tokens"]
    check(engines, messages, first, answer)


def wrong_handle(engines: Engines, subject: str) -> tuple[list[Json], Json]:
    """Another prompt, longer than what the handle holds, so that P would read all of it."""
    _, second = engines.turn(asked(f"{subject} one", 12))
    return asked(f"{subject} two", 20), second.handle


def test_a_wrong_handle_is_cut_to_nothing_and_d_is_freed(engines: Engines, nodes: Nodes) -> None:
    idle(engines, nodes.decode)
    # Equal from the start up to the first note: a wrong handle has nothing in common.
    _, second = engines.turn([{"role": "user", "content": "Lights. " * 150}])
    messages = [{"role": "user", "content": "Anchors and ropes. " * 150}]
    assert engines.metric(USAGE, node=nodes.decode) > 0
    first = engines.prefill(body(messages), second.handle)
    assert read_from_d(first) == 0
    assert first.handle["boomerang"]["reason"] == "another prompt"
    idle(engines, nodes.decode, HANDLE_TTL_S / 2)  # long before the handle's own end
    check(engines, messages, first, engines.decode_stream(body(messages), first.handle))


def test_control_without_the_plugin_the_same_handle_gives_a_wrong_answer(
    engines: Engines, nodes: Nodes
) -> None:
    messages, handle = wrong_handle(engines, "control")
    first, answer = engines.turn(messages, handle, node=nodes.stock_prefill)
    assert reused(first) == handle["remote_num_tokens"]
    reference = engines.reference(messages)
    assert not (is_equal(first, reference[0]) and is_equal(answer, reference[1]))

    messages, handle = wrong_handle(engines, "treated")
    first, answer = engines.turn(messages, handle)
    assert read_from_d(first) < handle["remote_num_tokens"]
    check(engines, messages, first, answer)


def test_a_handle_without_a_stamp_is_passed_by_default(engines: Engines) -> None:
    messages = asked("dinghy", 14)
    _, second = engines.turn(messages)
    handle = second.handle
    del handle["boomerang"]
    following = continued(messages, second, "And now?")
    first, answer = engines.turn(following, handle)
    assert (verified(first), reused(first)) == (0, handle["remote_num_tokens"])
    # Whether the answer retokenised is not known here: nothing was verified, and nothing is compared.
    assert len(answer.ids) == len(second.ids)


# -- never an error, never a hang -------------------------------------------------------------------------


def test_an_expired_handle_is_a_cold_turn(engines: Engines, nodes: Nodes) -> None:
    messages = asked("pilot", 12)
    _, second = engines.turn(messages)
    following = continued(messages, second, "And now?")
    late = second.handle | {"remote_blocks_expiry_time": 1.0}
    first, answer = engines.turn(following, late)
    assert first.handle["boomerang"]["reason"] == "expired"
    assert read_from_d(first) == 0
    check(engines, following, first, answer)
    with httpx.Client(timeout=60.0) as client:  # the control
        request = body(following) | {"max_tokens": 1, "kv_transfer_params": late}
        assert client.post(f"{nodes.stock_prefill}/v1/chat/completions", json=request).status_code == 500


def test_a_node_that_cannot_read_answers_cold(engines: Engines, nodes: Nodes) -> None:
    messages = asked("gull", 12)
    _, second = engines.turn(messages)
    following = continued(messages, second, "And now?")
    first, answer = engines.turn(following, second.handle, node=nodes.deaf_prefill)
    assert read_from_d(first) == 0
    assert first.handle["boomerang"]["bidirectional"] is False
    check(engines, following, first, answer)


@pytest.mark.parametrize("tokens", ["400", -5, None])
def test_a_malformed_handle_is_a_cold_turn(engines: Engines, tokens: object) -> None:
    messages = asked("kelp", 6)
    _, second = engines.turn(messages)
    first = engines.prefill(body(messages), second.handle | {"remote_num_tokens": tokens})
    assert read_from_d(first) == 0


# -- release and stay -------------------------------------------------------------------------------------


def test_a_release_leg_frees_d_and_leaves_nothing_on_p(engines: Engines, nodes: Nodes) -> None:
    messages = asked("crate", 12)
    _, second = engines.turn(messages)
    engines.turn(messages, second.handle)  # P has met this D
    # Legs of other tests, which no D has read, are under P's lease, and handles pinned on D.
    idle(engines, nodes.prefill, PREFILL_LEASE_S + 30)
    idle(engines, nodes.decode)
    _, second = engines.turn(messages)
    idle(engines, nodes.prefill, HANDLE_TTL_S / 3)
    expired = engines.metric(EXPIRED, node=nodes.prefill)
    assert engines.metric(USAGE, node=nodes.decode) > 0
    request = {"model": "tiny", "prompt": [1], "max_tokens": 1, "kv_transfer_params": second.handle}
    answer = engines.post(f"{nodes.prefill}/v1/completions", request)
    assert answer["kv_transfer_params"] is None
    idle(engines, nodes.decode, HANDLE_TTL_S / 2)
    assert engines.metric(USAGE, node=nodes.prefill) == 0
    assert engines.metric(EXPIRED, node=nodes.prefill) == expired


def test_a_turn_that_stays_has_a_handle_and_its_blocks_end(engines: Engines, nodes: Nodes) -> None:
    messages = asked("lantern", 12)
    stays = body(messages) | {"vllm_xargs": {"boomerang_stay": 1}}
    leg = engines.decode_stream(stays, None)
    following = continued(messages, leg, "And now?")
    first, answer = engines.turn(following, leg.handle)
    assert read_from_d(first) > 0
    check(engines, following, first, answer)
    # Another one, which nobody comes back for.
    idle(engines, nodes.decode)
    assert engines.decode_stream(stays, None).handle
    assert engines.metric(USAGE, node=nodes.decode) > 0
    idle(engines, nodes.decode)
