"""How a prompt's ids are learnt: which requests each way can be trusted with, and what answers are taken."""

import json
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.turn.render import TOKENIZE_PATH, Render, Unrendered, by_render, by_tokenize, ids_of, own_ids
from router.turn.request import Endpoint, Request, read_request

PATHS = {Endpoint.CHAT: "/v1/chat/completions", Endpoint.COMPLETIONS: "/v1/completions"}


def chat(**members: Any) -> Request:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **members}
    return read_request(Endpoint.CHAT, PATHS[Endpoint.CHAT], (), json.dumps(body).encode(), turn_id="brg-1")


def completions(prompt: Any, **members: Any) -> Request:
    body = {"model": "m", "prompt": prompt, **members}
    sent = json.dumps(body).encode()
    return read_request(Endpoint.COMPLETIONS, PATHS[Endpoint.COMPLETIONS], (), sent, turn_id="brg-1")


def asked(render: Render | None) -> dict[str, Any]:
    assert render is not None
    body: dict[str, Any] = json.loads(render.body)
    return body


@given(st.lists(st.integers(0, 2**32 - 1), max_size=20))
def test_a_prompt_of_ids_needs_no_engine(ids: list[int]) -> None:
    assert own_ids(completions(ids)) == array("I", ids)


@pytest.mark.parametrize(
    "request_",
    [
        completions("text"),
        completions(None),
        completions(["text"]),
        completions([[1, 2]]),
        completions([1, "a"]),
        completions([1, 2.5]),
        completions([1.0]),
        completions([True]),
        completions([1, None]),
        completions([-1]),
        completions([2**32]),
        completions([2**70]),
        completions({"a": 1}),
        completions([1, 2], truncate_prompt_tokens=1),
        completions([1, 2], truncate_prompt_tokens=-1),
        chat(prompt=[1, 2]),
        chat(),
    ],
)
def test_other_prompts_do(request_: Request) -> None:
    assert own_ids(request_) is None


def test_a_truncation_that_is_null_is_none() -> None:
    assert own_ids(completions([1, 2], truncate_prompt_tokens=None)) == array("I", [1, 2])


def test_the_render_route_gets_the_whole_request() -> None:
    request = chat(
        stream=True,
        stream_options={"include_usage": True},
        documents=[{"text": "a"}],
        max_tokens=5,
        tools=[],
        kv_transfer_params={"remote_host": "evil"},
        vllm_xargs={"kv_transfer_params": {"remote_host": "evil"}, "a": 1},
        request_id="evil",
        conversation_id="mine",
        unknown=1.5,
    )
    render = by_render(request)
    assert render.path == "/v1/chat/completions/render"
    assert asked(render) == {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "stream": False,
        "documents": [{"text": "a"}],
        "max_tokens": 5,
        "tools": [],
        "vllm_xargs": {"a": 1},
        "unknown": 1.5,
    }
    assert by_render(completions("hi")).path == "/v1/completions/render"


def test_tokenize_gets_what_it_knows_and_nothing_else() -> None:
    request = chat(
        add_generation_prompt=False,
        continue_final_message=True,
        add_special_tokens=True,
        chat_template="{{ messages }}",
        chat_template_kwargs={"enable_thinking": False},
        tools=[{"type": "function"}],
        temperature=0,
        max_tokens=5,
        stream=True,
        kv_transfer_params={"remote_host": "evil"},
    )
    render = by_tokenize(request, media=False)
    assert render is not None
    assert render.path == TOKENIZE_PATH
    assert asked(render) == {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "add_generation_prompt": False,
        "continue_final_message": True,
        "add_special_tokens": True,
        "chat_template": "{{ messages }}",
        "chat_template_kwargs": {"enable_thinking": False},
        "tools": [{"type": "function"}],
    }


def test_tokenize_of_a_plain_prompt() -> None:
    render = by_tokenize(completions("hi", add_special_tokens=False, max_tokens=4, messages=[]), media=False)
    assert asked(render) == {"model": "m", "prompt": "hi", "add_special_tokens": False}


UNSEEN: list[tuple[str, Any]] = [
    ("truncate_prompt_tokens", 5),
    ("truncation_side", "left"),
    ("documents", [{"text": "a"}]),
    ("documents", []),
    ("reasoning_effort", "high"),
    ("include_reasoning", False),
    ("thinking", {"type": "enabled"}),
    ("thinking_token_budget", 0),
    ("response_format", {"type": "json_object"}),
    ("structured_outputs", {"json": {}}),
    ("media_io_kwargs", {"video": {}}),
    ("mm_processor_kwargs", {"a": 1}),
    ("mm_payload", {"a": 1}),
    ("functions", [{"name": "f"}]),
    ("function_call", "auto"),
    ("suffix", "end"),
]


@pytest.mark.parametrize(("name", "value"), UNSEEN)
def test_tokenize_is_not_asked_where_something_shapes_the_prompt_that_it_does_not_see(
    name: str, value: Any
) -> None:
    assert by_tokenize(chat(**{name: value}), media=False) is None
    assert by_tokenize(completions("hi", **{name: value}), media=False) is None
    assert asked(by_render(chat(**{name: value})))[name] == value, "the render route sees it"


@pytest.mark.parametrize("name", sorted({name for name, _ in UNSEEN}))
def test_a_field_that_is_null_shapes_nothing(name: str) -> None:
    assert by_tokenize(chat(**{name: None}), media=False) is not None


def test_tokenize_is_not_asked_about_media() -> None:
    assert by_tokenize(chat(), media=True) is None
    assert by_tokenize(chat(), media=False) is not None


@pytest.mark.parametrize(
    ("members", "askable"),
    [
        ({"tool_choice": "none", "tools": [{"type": "function"}]}, False),
        ({"tool_choice": "none"}, True),
        ({"tool_choice": "none", "tools": None}, True),
        ({"tool_choice": "auto", "tools": [{"type": "function"}]}, True),
        ({"tool_choice": {"type": "function", "function": {"name": "f" * 100}}, "tools": [{}]}, True),
        ({"tools": [{"type": "function"}]}, True),
    ],
)
def test_tools_that_the_template_may_leave_out(members: dict[str, Any], askable: bool) -> None:
    assert (by_tokenize(chat(**members), media=False) is not None) is askable


@pytest.mark.parametrize(
    ("answer", "ids"),
    [
        # As vLLM 0.32.0 answers: /tokenize, render of a chat, render of a plain prompt.
        ({"count": 3, "max_model_len": 16384, "tokens": [1, 2072, 201], "token_strs": None}, [1, 2072, 201]),
        ({"request_id": "chatcmpl-b8", "token_ids": [1, 2072], "features": None, "stream": False}, [1, 2072]),
        ([{"request_id": "cmpl-81", "token_ids": [275, 78, 334]}], [275, 78, 334]),
        ({"tokens": []}, []),
        ({"token_ids": [2**32 - 1]}, [2**32 - 1]),
        ({"token_ids": [1], "tokens": [2]}, [1]),
    ],
)
def test_answers_that_tell_ids(answer: Any, ids: list[int]) -> None:
    assert ids_of(json.dumps(answer).encode()) == array("I", ids)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"12",
        b'"tokens"',
        b"[1,2,3]",
        b"[[1,2,3]]",
        b'[{"token_ids":[1]},{"token_ids":[2]}]',
        b'{"token_ids":null}',
        b'{"token_ids":null,"tokens":[1]}',
        b'{"token_ids":"1,2"}',
        b'{"token_ids":{"0":1}}',
        b'{"tokens":5}',
        b'{"tokens":[1,"2"]}',
        b'{"tokens":[1.5]}',
        b'{"tokens":[1.0]}',
        b'{"tokens":[null]}',
        b'{"tokens":[[1]]}',
        b'{"tokens":[-1]}',
        b'{"tokens":[4294967296]}',
        b'{"tokens":[123456789012345678901234567890]}',
        b'{"tokens":[1]',
        b'{"tokens":["\xff"]}',
        b'{"error":{"message":"not allowed"}}',
        b"<html>",
        b"[" * 100_000 + b"]" * 100_000,
    ],
)
def test_answers_that_do_not(answer: bytes) -> None:
    with pytest.raises(Unrendered):
        ids_of(answer)
