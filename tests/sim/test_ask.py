"""What is refused, in vLLM's words, and what /tokenize and /render see of a request."""

from typing import Any

import pytest

from tests.sim.pool import CHAT, Pool, user

BASE: dict[str, Any] = {"messages": [user("hi")]}


@pytest.mark.parametrize(
    ("fields", "status", "kind", "param"),
    [
        ({"model": "nope"}, 404, "NotFoundError", "model"),
        ({"temperature": -1}, 400, "BadRequestError", "temperature"),
        ({"max_tokens": 0}, 400, "BadRequestError", "max_tokens"),
        ({"max_tokens": 999_999}, 400, "BadRequestError", "max_tokens"),
        ({"max_tokens": 1, "min_tokens": 5}, 400, "BadRequestError", None),
        ({"stream_options": {"include_usage": True}}, 400, "BadRequestError", "stream_options"),
        ({"tool_choice": "required"}, 400, "BadRequestError", "tool_choice"),
        ({"top_logprobs": 2}, 400, "BadRequestError", "top_logprobs"),
        ({"messages": None}, 400, "Bad Request", "body.messages"),
        ({"max_tokens": "1"}, 400, "Bad Request", "body.max_tokens"),
        ({"continue_final_message": True, "add_generation_prompt": True}, 400, "BadRequestError", None),
        ({"kv_transfer_params": [1]}, 400, "BadRequestError", "kv_transfer_params"),
    ],
)
async def test_refusals(fields: dict[str, Any], status: int, kind: str, param: str | None) -> None:
    got, answer = await Pool().post("x", {**BASE, **fields})
    error = answer["error"]
    assert (got, error["type"], error["param"], error["code"]) == (status, kind, param, status)


async def test_a_prompt_that_is_too_long() -> None:
    status, answer = await Pool(max_model_len=64).post("x", {"prompt": [5] * 64}, "/v1/completions")
    assert (status, answer["error"]["param"]) == (400, "input_tokens")


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [({"max_tokens": 5, "max_completion_tokens": 3}, 3), ({"max_tokens": 5}, 5), ({"min_tokens": 70}, None)],
)
async def test_limits(fields: dict[str, Any], tokens: int | None) -> None:
    answer = await Pool().ask("x", {**BASE, **fields})
    count = answer["usage"]["completion_tokens"]
    assert (count == tokens) if tokens else (count >= 70)
    assert answer["choices"][0]["finish_reason"] == ("length" if tokens else "stop")


async def test_the_end_can_be_ignored() -> None:
    answer = await Pool().ask("x", {**BASE, "max_tokens": 300, "ignore_eos": True})
    assert answer["usage"]["completion_tokens"] == 300


async def test_a_prompt_can_lose_its_beginning() -> None:
    body = {"messages": [user("one two three four five six")], "return_token_ids": True}
    whole = await Pool().ask("x", body)
    cut = await Pool().ask("x", {**body, "truncate_prompt_tokens": 10})
    assert cut["prompt_token_ids"] == whole["prompt_token_ids"][-10:]


async def test_a_prompt_can_make_room_for_its_answer() -> None:
    body = {"messages": [user("one " * 100)], "truncate_prompt_tokens": -1, "return_token_ids": True}
    for asked in (20, 30):
        answer = await Pool(max_model_len=100).ask("x", {**body, "max_tokens": asked})
        assert len(answer["prompt_token_ids"]) == 100 - asked


TOOL = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("fields", "seen"),
    [
        ({}, True),
        ({"tools": [TOOL]}, True),
        ({"chat_template_kwargs": {"enable_thinking": False}}, True),
        ({"documents": [{"text": "d"}]}, False),
        ({"reasoning_effort": "low"}, False),
        ({"truncate_prompt_tokens": 5}, False),
    ],
)
async def test_tokenize_knows_its_own_fields_and_render_all(fields: dict[str, Any], seen: bool) -> None:
    pool = Pool(render="open")
    prompt = (await pool.ask("x", {**BASE, **fields, "return_token_ids": True}))["prompt_token_ids"]
    tokenized = await pool.ask("x", {**BASE, **fields}, "/tokenize")
    assert (tokenized["tokens"] == prompt) is seen
    assert tokenized["count"] == len(tokenized["tokens"])
    assert (await pool.ask("x", {**BASE, **fields}, f"{CHAT}/render"))["token_ids"] == prompt


async def test_tokenize_of_a_text_and_its_pieces() -> None:
    answer = await Pool().ask("x", {"prompt": "hello world", "return_token_strs": True}, "/tokenize")
    assert "".join(answer["token_strs"]) == "hello world"


async def test_render_is_closed_by_default() -> None:
    status, answer = await Pool().post("x", BASE, f"{CHAT}/render")
    assert (status, answer["error"]["type"]) == (403, "PermissionDeniedError")


async def test_render_of_completions_is_a_list() -> None:
    answer: Any = await Pool(render="open").ask("x", {"prompt": ["a", "b"]}, "/v1/completions/render")
    assert len(answer) == 2
