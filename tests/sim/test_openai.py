"""The wire shapes, read by OpenAI's own client over a socket, and key by key where a router depends on it."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest

from router.engines.upstream import Call
from router.sim.config import EngineConfig
from router.sim.server import SimServer
from router.turn.digest import STAMP_FIELD
from tests.sim.pool import CHAT, COLD, Pool, system, user

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "parameters": {
                "type": "object",
                "properties": {"place": {"type": "string"}, "days": {"type": "integer"}},
            },
        },
    }
]


@pytest.fixture
async def server() -> AsyncIterator[SimServer]:
    async with SimServer(EngineConfig(reasoning=True, adapters=("tuned",))) as server:
        yield server


@pytest.fixture
async def client(server: SimServer) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{server.origin}/v1", api_key="x", max_retries=0) as client:
        yield client


MODEL = EngineConfig().model


async def test_a_stream_says_what_a_whole_answer_says(client: openai.AsyncOpenAI) -> None:
    create: Any = client.chat.completions.create
    ask: dict[str, Any] = {"model": MODEL, "messages": [user()]}
    whole = await create(**ask)
    options = {"include_usage": True}
    text = thought = ""
    usage = reason = None
    async for chunk in await create(**ask, stream=True, stream_options=options):
        for choice in chunk.choices:
            text += choice.delta.content or ""
            thought += getattr(choice.delta, "reasoning", None) or ""
            reason = choice.finish_reason or reason
        usage = chunk.usage or usage
    message = whole.choices[0].message
    assert (text, thought) == (message.content, message.reasoning)
    assert text
    assert thought
    assert reason == whole.choices[0].finish_reason == "stop"
    assert usage is not None
    assert whole.usage is not None
    assert usage.completion_tokens == whole.usage.completion_tokens
    assert usage.prompt_tokens == whole.usage.prompt_tokens


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "look"}}])
async def test_tool_calls(client: openai.AsyncOpenAI, choice: Any) -> None:
    ask: dict[str, Any] = {"model": MODEL, "messages": [user()], "tools": TOOLS, "tool_choice": choice}
    whole = await client.chat.completions.create(**ask)
    calls = whole.choices[0].message.tool_calls or []
    streamed: dict[int, list[str]] = {}
    async for chunk in await client.chat.completions.create(**ask, stream=True):
        for part in chunk.choices[0].delta.tool_calls or []:
            known = streamed.setdefault(part.index, ["", "", ""])
            known[0] = part.id or known[0]
            known[1] = (part.function and part.function.name) or known[1]
            known[2] += (part.function and part.function.arguments) or ""
    assert [[call.id, call.function.name, call.function.arguments] for call in calls] == list(
        streamed.values()
    )
    assert calls
    arguments = json.loads(streamed[0][2])
    assert set(arguments) == {"place", "days"}
    assert whole.choices[0].finish_reason == ("tool_calls" if choice == "required" else "stop")


async def test_calls_come_in_parallel_sometimes_and_only_after_the_user() -> None:
    pool = Pool(tool_rate=1.0)
    counts = set()
    for index in range(20):
        answer = await pool.ask("x", {"messages": [user(f"{index}")], "tools": TOOLS})
        counts.add(len(answer["choices"][0]["message"]["tool_calls"]))
    assert counts == {1, 2}
    result = [user(), {"role": "tool", "content": "42"}]
    assert (
        "tool_calls"
        not in (await pool.ask("x", {"messages": result, "tools": TOOLS}))["choices"][0]["message"]
    )


async def test_log_probabilities(client: openai.AsyncOpenAI) -> None:
    whole = await client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "hi"}], max_tokens=3, logprobs=True, top_logprobs=2
    )
    logprobs = whole.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert len(logprobs.content) == 3
    assert all(len(entry.top_logprobs) == 2 for entry in logprobs.content)
    text = await client.completions.create(model=MODEL, prompt="hi", max_tokens=3, logprobs=2, echo=True)
    known = text.choices[0].logprobs
    assert known is not None
    assert known.token_logprobs is not None
    assert [value is None for value in known.token_logprobs] == [True, False, False, False]
    assert text.choices[0].text.startswith("hi")
    assert "".join(known.tokens or []) == text.choices[0].text


async def test_completions_of_texts_ids_and_lists(client: openai.AsyncOpenAI) -> None:
    prompts: list[Any] = ["one", [1, 2, 3], ["one", "two"], [[1], [2]]]
    counts = [len((await client.completions.create(model=MODEL, prompt=p)).choices) for p in prompts]
    assert counts == [1, 1, 2, 2]
    text = ""
    async for chunk in await client.completions.create(model=MODEL, prompt="one", stream=True):
        text += chunk.choices[0].text
    assert text == (await client.completions.create(model=MODEL, prompt="one")).choices[0].text


async def test_more_than_one_choice(client: openai.AsyncOpenAI) -> None:
    whole = await client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "x"}], n=3
    )
    texts = [choice.message.content for choice in whole.choices]
    assert len(set(texts)) == 3
    streamed = ["", "", ""]
    async for chunk in await client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "x"}], n=3, stream=True
    ):
        streamed[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert streamed == texts


async def test_models_embeddings_and_adapters(client: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == [MODEL, "tuned"]
    found = await client.embeddings.create(model=MODEL, input=["a", "b"], encoding_format="float")
    assert found.data[0].embedding != found.data[1].embedding
    ask: dict[str, Any] = {"messages": [user()]}
    base = await client.chat.completions.create(model=MODEL, **ask)
    tuned = await client.chat.completions.create(model="tuned", **ask)
    assert base.choices[0].message.content != tuned.choices[0].message.content


async def test_errors_are_the_clients_errors(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        await client.chat.completions.create(model="nope", messages=[{"role": "user", "content": "x"}])
    with pytest.raises(openai.BadRequestError):
        await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "x"}], temperature=-1
        )


async def events(pool: Pool, at: str, body: dict[str, Any], path: str = CHAT) -> list[dict[str, Any]]:
    async with pool.upstream.stream(
        at, Call("POST", path, (), json.dumps({**body, "stream": True}).encode())
    ) as s:
        raw = (await s.read()).decode()
    parts = raw.split("\n\n")
    assert parts[-2:] == ["data: [DONE]", ""]
    return [json.loads(part.removeprefix("data: ")) for part in parts[:-2]]


async def test_keys_of_a_whole_chat_answer_that_was_asked_for_nothing() -> None:
    answer = await Pool().ask("x", {"messages": [user()]})
    assert list(answer) == [
        *("id", "object", "created", "model", "choices", "service_tier", "system_fingerprint", "usage"),
        *("prompt_logprobs", "prompt_token_ids", "prompt_text"),
        *("kv_transfer_params", "ec_transfer_params", "metrics"),
    ]
    assert answer["kv_transfer_params"] is answer["prompt_token_ids"] is None
    assert answer["choices"][0]["token_ids"] is None


async def test_token_ids_stand_where_vllm_puts_them() -> None:
    pool = Pool()
    asked = {"messages": [user()], "return_token_ids": True}
    whole = await pool.ask("x", asked)
    stream = await events(pool, "x", {**asked, "stream_options": {"include_usage": True}})
    assert stream[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    assert "token_ids" not in stream[0]["choices"][0]
    ids = [token for chunk in stream[1:-1] for token in chunk["choices"][0]["token_ids"]]
    assert ids == whole["choices"][0]["token_ids"]
    assert (stream[-1]["choices"], stream[-1]["usage"]["completion_tokens"]) == ([], len(ids))
    assert all("prompt_token_ids" not in chunk for chunk in stream[1:])

    asked = {"prompt": "hello", "return_token_ids": True}
    whole = await pool.ask("x", asked, "/v1/completions")
    stream = await events(pool, "x", asked, "/v1/completions")
    assert "prompt_token_ids" not in whole
    assert whole["choices"][0]["prompt_token_ids"] == stream[0]["choices"][0]["prompt_token_ids"]
    assert [chunk["choices"][0]["prompt_token_ids"] for chunk in stream[1:]] == [None] * (len(stream) - 1)


async def test_a_stream_that_was_asked_for_nothing_has_nulls() -> None:
    stream = await events(Pool(), "x", {"messages": [user()]})
    assert (stream[0]["prompt_token_ids"], stream[0]["prompt_text"]) == (None, None)
    assert all(chunk["choices"][0]["token_ids"] is None for chunk in stream[1:])
    assert "system_fingerprint" in stream[-1]
    assert "stop_reason" in stream[-1]["choices"][0]


async def test_usage_of_every_chunk() -> None:
    body = {"messages": [user()], "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    stream = await events(Pool(), "x", body)
    counted = [chunk["usage"]["completion_tokens"] for chunk in stream]
    assert counted == [*range(len(stream) - 1), len(stream) - 2]


@pytest.mark.parametrize(
    ("options", "places"),
    [
        ({"version": "0.32.0"}, []),
        ({"version": "0.33.0"}, ["finish"]),
        ({"version": "0.32.0", "plugin": True}, ["own"]),
        ({"version": "0.33.0", "plugin": True}, ["finish"]),
    ],
)
async def test_where_a_stream_carries_the_handle(options: dict[str, Any], places: list[str]) -> None:
    pool = Pool(**options)
    for path, prompt in (
        (CHAT, {"messages": [system(), user()]}),
        ("/v1/completions", {"prompt": "a " * 200}),
    ):
        first = await pool.ask("p", {**prompt, "max_tokens": 1, "kv_transfer_params": COLD}, path)
        params = first["kv_transfer_params"]
        usage = {"include_usage": True}
        stream = await events(
            pool, "d", {**prompt, "kv_transfer_params": params, "stream_options": usage}, path
        )
        found = [chunk for chunk in stream if "kv_transfer_params" in chunk]
        seen = [
            "finish" if chunk["choices"] and chunk["choices"][0]["finish_reason"] else "own"
            for chunk in found
        ]
        assert seen == places
        assert all(chunk["kv_transfer_params"]["do_remote_decode"] for chunk in found)
        assert all((STAMP_FIELD in c["kv_transfer_params"]) == options.get("plugin", False) for c in found)
        assert len(pool.d.pins.by_request) == 1, "it is pinned whether anybody sees the handle or not"
        pool.d.expire_all()


PARAM_KEYS = [
    *("do_remote_prefill", "do_remote_decode", "remote_block_ids", "remote_engine_id", "remote_request_id"),
    *("remote_host", "remote_port", "tp_size", "dcp_size", "pp_size", "remote_num_tokens"),
    *("remote_blocks_expiry_time", "transfer_mode"),
]


async def test_params_of_both_sides() -> None:
    pool = Pool()
    first = (await pool.prefill([system(), user()]))["kv_transfer_params"]
    body = {"messages": [system(), user()], "kv_transfer_params": first}
    answer = await pool.ask("d", body)
    handle, usage = answer["kv_transfer_params"], answer["usage"]
    assert list(first) == [*PARAM_KEYS, "remote_prefill_cached_tokens"]
    assert list(handle) == PARAM_KEYS
    assert (first["remote_blocks_expiry_time"], handle["remote_blocks_expiry_time"]) == (None, 1_480.0)
    assert handle["remote_num_tokens"] == usage["total_tokens"] - 1
    assert len(handle["remote_block_ids"][0]) == -(-handle["remote_num_tokens"] // 16)
    assert handle["remote_request_id"].startswith(answer["id"] + "-")


async def test_push_mode_says_so() -> None:
    first = await Pool(push_mode=True).prefill([user()])
    assert first["kv_transfer_params"]["transfer_mode"] == "push"


async def test_prompt_token_ids_in_the_params_replace_the_rendering() -> None:
    pool = Pool()
    first = await pool.prefill([user()], return_token_ids=True)
    params = {**first["kv_transfer_params"], "prompt_token_ids": first["prompt_token_ids"]}
    answer = await pool.ask("d", {"messages": [user("never looked at")], "kv_transfer_params": params})
    assert answer["choices"][0]["message"]["content"] == (await pool.direct([user()]))["content"]


async def test_an_in_stream_failure_is_an_error_event_under_200() -> None:
    pool = Pool()
    params = (await pool.prefill([system(), user()]))["kv_transfer_params"]
    pool.p.restart()
    stream = await events(pool, "d", {"messages": [system(), user()], "kv_transfer_params": params})
    assert [chunk["error"]["code"] for chunk in stream] == [500]


async def test_what_is_not_an_openai_route(server: SimServer) -> None:
    async with httpx.AsyncClient(base_url=server.origin) as http:
        assert (await http.get("/health")).status_code == 200
        assert (await http.get("/version")).json() == {"version": "0.32.0"}
        assert (await http.post("/v1/nope", json={})).json() == {"detail": "Not Found"}
        text = await http.post("/v1/completions", content=b"{", headers={"content-type": "text/plain"})
        assert text.json()["error"]["type"] == "Bad Request"
