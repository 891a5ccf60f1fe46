"""Whatever a client asks for, it gets from the router what an engine alone would answer, byte for byte."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from router.sim.config import EngineConfig
from tests.e2e.http_pool import (
    CHAT,
    COMPLETIONS,
    KEEPS_REASONING,
    MODEL,
    Body,
    HttpPool,
    comparable,
    continued,
    direct_client,
    events,
    http_pool,
    openai_client,
    opening,
    sim_servers,
    system,
    user,
)

ENGINES = {
    "0.32": EngineConfig(version="0.32.0", render="open", reasoning=True),
    "0.33": EngineConfig(version="0.33.0", render="open"),
    "0.32-plugin": EngineConfig(version="0.32.0", plugin=True),
    "0.33-plugin": EngineConfig(version="0.33.0", plugin=True, reasoning=True),
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": name,
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string"}, "line": {"type": "integer"}},
            },
        },
    }
    for name in ("read_file", "search")
]
LOGPROBS: dict[str, Any] = {"logprobs": True, "top_logprobs": 2}
USAGE: dict[str, Any] = {"stream_options": {"include_usage": True}}
CHATS: dict[str, Body] = {
    "plain": opening("one"),
    "cjk": opening("北京 🎉 größer — 12:30?"),
    "tools": opening("look it up", tools=TOOLS, tool_choice="required"),
    "named_tool": opening(
        "two", tools=TOOLS, tool_choice={"type": "function", "function": {"name": "search"}}
    ),
    "logprobs": opening("three", **LOGPROBS),
    "json": opening("four", response_format={"type": "json_object"}),
    "stopped": opening("five", stop=["e"]),
    "short": opening("six", max_tokens=3),
    "shorter": opening("seven", max_completion_tokens=1),
    "unknown": opening("eight", seed=3, user="me", some_future_field={"a": [1, None]}),
}


def only_streamed(body: Body) -> Body:
    """What goes with streams alone."""
    return {**body, "stream": True, **USAGE}


def not_streamed(body: Body) -> Body:
    return {key: value for key, value in body.items() if not key.startswith("stream")}


def with_system(text: str, body: Body) -> Body:
    """The same request as another conversation."""
    return {**body, "messages": [{"role": "system", "content": text}, *body["messages"]]}


@asynccontextmanager
async def beside(config: EngineConfig, **options: Any) -> AsyncIterator[tuple[HttpPool, str]]:
    """A router with its engines, and the origin of an engine of the same kind that is alone."""
    alone = replace(config, prefix_cache=False)
    async with http_pool(config, **options) as pool, sim_servers([alone]) as (engine,):
        yield pool, engine.origin
        pool.sound()
        await pool.idle()


async def whole(origin: str, body: Body, path: str = CHAT) -> bytes:
    async with direct_client(origin) as http:
        answer = await http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.content


def parallel(answer: bytes) -> bool:
    return len(msgspec.json.decode(answer)["choices"][0]["message"].get("tool_calls") or ()) > 1


async def with_parallel_calls(origin: str) -> Body:
    """A request that the simulated model answers with two tool calls at once."""
    for number in range(60):
        body = opening(f"look up {number}", tools=TOOLS, tool_choice="required")
        if parallel(await whole(origin, body)):
            return body
    raise AssertionError("no such answer")


@pytest.mark.parametrize("config", ENGINES.values(), ids=ENGINES)
async def test_two_turns_are_byte_for_byte_what_an_engine_says(config: EngineConfig) -> None:
    config = replace(config, template=KEEPS_REASONING)
    blind = config.version == "0.32.0" and not config.plugin
    async with beside(config) as (pool, alone):
        for name, body in {**CHATS, "parallel": await with_parallel_calls(alone)}.items():
            for first in (body, only_streamed(with_system("another one", body))):
                direct = await whole(alone, first)
                assert comparable(await whole(pool.origin, first)) == comparable(direct)
                second = continued(first, msgspec.json.decode(await whole(alone, not_streamed(first))))
                answer = await pool.chat(second)
                assert comparable(answer.content) == comparable(await whole(alone, second))
                stopped = "stop" in body  # it ends as an abort inside the engine: there is no handle
                if not stopped and not (blind and "stream" in first):
                    assert answer.headers["x-boomerang-plan"] == "local", (name, pool.ended())
                    assert int(answer.headers["x-boomerang-reused-tokens"]) > 500


@pytest.mark.parametrize("config", ENGINES.values(), ids=ENGINES)
async def test_completions_are_byte_for_byte_what_an_engine_says(config: EngineConfig) -> None:
    text = " ".join(f"word{n}" for n in range(400))
    prompts: list[Any] = [text, [1 << 30 | 3 << 28 | n for n in range(600)]]
    async with beside(config) as (pool, alone):
        for prompt in prompts:
            for more in ({}, {"logprobs": 2, "max_tokens": 9}, {"echo": True}, {"stream": True, **USAGE}):
                body = {"model": MODEL, "prompt": prompt, **more}
                direct = await whole(alone, body, COMPLETIONS)
                assert comparable(await whole(pool.origin, body, COMPLETIONS)) == comparable(direct)
        longer = [*prompts[1], *range(1 << 30 | 3 << 28, (1 << 30 | 3 << 28) + 200)]
        answer = await pool.chat({"model": MODEL, "prompt": longer}, path=COMPLETIONS)
        assert int(answer.headers["x-boomerang-reused-tokens"]) > 500
        direct = await whole(alone, {"model": MODEL, "prompt": longer}, COMPLETIONS)
        assert comparable(answer.content) == comparable(direct)


def plain(dump: dict[str, Any]) -> dict[str, Any]:
    """A client's object without what two answers differ in."""
    usage = dump.get("usage") or {}
    if usage.get("prompt_tokens_details"):
        usage["prompt_tokens_details"]["cached_tokens"] = 0
    return {key: value for key, value in dump.items() if key not in ("id", "created")}


async def objects(origin: str, body: Body) -> list[dict[str, Any]]:
    """What the official client makes of an answer, whole or streamed."""
    async with openai_client(origin) as client:
        if body.get("stream"):
            stream: Any = await client.chat.completions.create(**body)
            return [plain(chunk.model_dump()) async for chunk in stream]
        one: Any = await client.chat.completions.create(**body)
        return [plain(one.model_dump())]


@pytest.mark.parametrize("config", ENGINES.values(), ids=ENGINES)
async def test_the_official_client_sees_the_same_objects(config: EngineConfig) -> None:
    config = replace(config, reasoning=True)
    async with beside(config) as (pool, alone):
        calls = await with_parallel_calls(alone)
        for body in (opening(**LOGPROBS), calls):
            for ask in (body, only_streamed(body)):
                assert await objects(pool.origin, ask) == await objects(alone, ask)
        (message,) = (one["choices"][0]["message"] for one in await objects(pool.origin, calls))
        assert len(message["tool_calls"]) == 2
        assert message["reasoning"]
        chunks = await objects(pool.origin, only_streamed(calls))
        deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
        assert {call["index"] for delta in deltas for call in delta["tool_calls"] or ()} == {0, 1}
        assert any(delta.get("reasoning") for delta in deltas)
        assert chunks[-1]["choices"] == []
        assert chunks[-1]["usage"]["prompt_tokens"] > 500


async def test_the_official_client_of_completions_sees_the_same_objects() -> None:
    prompt = " ".join(f"word{n}" for n in range(100))
    async with beside(ENGINES["0.33"]) as (pool, alone):
        seen = []
        for origin in (pool.origin, alone):
            async with openai_client(origin) as client:
                one = await client.completions.create(model=MODEL, prompt=prompt, logprobs=1)
                stream = await client.completions.create(model=MODEL, prompt=prompt, stream=True)
                seen.append([plain(one.model_dump()), *[plain(chunk.model_dump()) async for chunk in stream]])
        assert seen[0] == seen[1]


@pytest.mark.parametrize("config", ENGINES.values(), ids=ENGINES)
async def test_private_fields_never_reach_a_client(config: EngineConfig) -> None:
    async with http_pool(config) as pool:
        body = opening()
        for _ in range(2):
            answer = await pool.turn(body)
            choice = answer["choices"][0]
            assert answer["kv_transfer_params"] is answer["prompt_token_ids"] is choice["token_ids"] is None
            raw = await pool.stream({**body, **USAGE})
            assert b"_transfer_params" not in raw
            assert b'_token_ids":[' not in raw
            assert events(raw)[-1] == "[DONE]"
            assert events(raw)[-2]["usage"], "no chunk of ours follows the engine's last"
            body = continued(body, answer)
        assert await pool.metric("handles_total", outcome="stored") >= 2


async def test_token_ids_reach_the_client_that_asks_for_them() -> None:
    async with beside(ENGINES["0.33"]) as (pool, alone):
        body = opening(return_token_ids=True)
        answer = await pool.turn(body)
        assert len(answer["prompt_token_ids"]) > 500
        assert len(answer["choices"][0]["token_ids"]) == answer["usage"]["completion_tokens"]
        for ask in (body, {**body, "stream": True}):
            assert comparable(await whole(pool.origin, ask)) == comparable(await whole(alone, ask))
        first = events(await pool.stream(body))[0]
        assert first["prompt_token_ids"] == answer["prompt_token_ids"]


async def test_an_operator_may_show_the_params() -> None:
    async with http_pool(ENGINES["0.33"], expose_params=True) as pool:
        answer = await pool.turn(opening())
        assert answer["kv_transfer_params"]["remote_port"] == pool.d.port
        raw = await pool.stream(opening("another"))
        shown = [event for event in events(raw) if event != "[DONE]" and event.get("kv_transfer_params")]
        assert [event["kv_transfer_params"]["remote_port"] for event in shown] == [pool.d.port]


async def test_without_explaining_headers_an_answer_names_no_plan() -> None:
    async with http_pool(explain_headers=False) as pool:
        answer = await pool.chat({"model": MODEL, "messages": [system(), user("hi")]})
        assert not [name for name in answer.headers if name.startswith("x-boomerang")]
