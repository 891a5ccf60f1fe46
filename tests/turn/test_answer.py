"""The decode leg where engines differ: streams without [DONE], late first tokens, tainted caches."""

import asyncio
import json

import httpx
import pytest

from tests.e2e.http_pool import (
    CHAT,
    MODEL,
    PATIENCE_S,
    STOCK_33,
    http_pool,
    legs,
    opening,
    total,
)
from tests.e2e.spoken_engine import SSE_HEAD, Reading, reading, spoken_pool
from tests.engines.scripted import soon

DONE = b"data: [DONE]\n\n"
DELTA = b'data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}]}\n\n'
FINISH = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
CREATED = b'event: response.created\ndata: {"type":"response.created","response":{"error":null}}\n\n'
COMPLETED = b'event: response.completed\ndata: {"type":"response.completed","response":{"id":"r"}}\n\n'
RESPONSES = "/v1/responses"


async def until_turns(http: httpx.AsyncClient) -> None:
    """Until the first turn has ended."""
    async with asyncio.timeout(PATIENCE_S):
        while not total((await http.get("/metrics")).text, "boomerang_turns_total"):
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("pieces", [[CREATED, COMPLETED], [CREATED + COMPLETED[:9], COMPLETED[9:]]])
async def test_a_stream_of_another_endpoint_ends_as_its_engine_ends_it(pieces: list[bytes]) -> None:
    async with spoken_pool() as (d, http):
        d.say(SSE_HEAD)
        for piece in pieces:
            d.chunk(piece)
        d.end()
        body = {"model": MODEL, "input": "hello", "stream": True}
        async with http.stream("POST", RESPONSES, json=body) as answer:
            assert await Reading(answer, answer.aiter_raw()).rest() == CREATED + COMPLETED


@pytest.mark.parametrize("cut", ["mid_event", "mid_body"])
async def test_a_stream_of_another_endpoint_that_breaks_off_does_not_look_complete(cut: str) -> None:
    async with spoken_pool() as (d, http):
        d.say(SSE_HEAD)
        d.chunk(CREATED + (COMPLETED[:20] if cut == "mid_event" else b""))
        if cut == "mid_event":
            d.end()
        else:
            d.hang_up()
        async with http.stream("POST", RESPONSES, json={"model": MODEL, "input": "hello"}) as answer:
            raw = await Reading(answer, answer.aiter_raw()).rest()
        assert raw.startswith(CREATED + b'data: {"error"')


async def test_a_message_that_breaks_off_ends_in_an_event_that_anthropics_clients_read() -> None:
    """They pass over events without a name: one would leave them with half a message and no error."""
    start = b'event: message_start\ndata: {"type":"message_start","message":{}}\n\n'
    async with spoken_pool() as (d, http):
        d.say(SSE_HEAD)
        d.chunk(start + b'event: content_block_delta\ndata: {"type":"cont')
        d.hang_up()
        body = {"model": MODEL, "messages": [], "max_tokens": 9, "stream": True}
        async with http.stream("POST", "/v1/messages", json=body) as answer:
            raw = await Reading(answer, answer.aiter_raw()).rest()
    error = raw.removeprefix(start + b"event: error\ndata: ")
    assert json.loads(error)["type"] == "error"
    assert "broke off" in json.loads(error)["error"]["message"]


async def test_a_connection_that_breaks_after_done_adds_nothing_to_a_whole_answer() -> None:
    async with spoken_pool() as (d, http):
        d.say(SSE_HEAD)
        d.chunk(DELTA + FINISH + DONE)
        d.hang_up()
        async with reading(http, opening()) as client:
            assert await client.rest() == DELTA + FINISH + DONE
        text = (await http.get("/metrics")).text
        assert 'boomerang_turns_total{ended_by="engine",plan="cold",reason="first_turn"} 1.0' in text


async def test_a_client_that_closes_at_done_has_had_its_answer() -> None:
    """The OpenAI client reads no further than ``[DONE]``, and D may not have ended its body then."""
    async with spoken_pool() as (d, http):
        d.say(SSE_HEAD)
        d.chunk(DELTA + FINISH + DONE)
        async with reading(http, opening()) as client:
            await client.expect(DELTA + FINISH + DONE)
        d.end()
        await until_turns(http)
        text = (await http.get("/metrics")).text
        assert 'boomerang_turns_total{ended_by="engine",plan="cold",reason="first_turn"} 1.0' in text
        assert total(text, "boomerang_client_departures_total") == 0


@pytest.mark.parametrize("stays", [True, False])
async def test_a_node_that_does_not_end_its_body_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, stays: bool
) -> None:
    monkeypatch.setattr("router.turn.answer._REST_S", 0.05)
    async with spoken_pool(idle_timeout_s=None) as (d, http):
        d.say(SSE_HEAD)
        d.chunk(DELTA + FINISH + DONE)
        async with reading(http, opening()) as client:
            await client.expect(DELTA + FINISH + DONE)
            if stays:
                assert await client.rest() == b""
        await soon(d.left.wait())
        await until_turns(http)
        text = (await http.get("/metrics")).text
        assert 'boomerang_turns_total{ended_by="engine",plan="cold",reason="first_turn"} 1.0' in text


async def test_headers_do_not_stop_the_clock_of_the_first_token() -> None:
    """An engine sends a stream's headers at once, however long its first token takes."""
    async with spoken_pool(first_token_timeout_s=0.2) as (d, http):
        d.say(SSE_HEAD)
        answer = await http.post(CHAT, json={**opening(), "stream": True})
        assert answer.status_code == 504
        assert "no first token within 0.2 s" in answer.json()["error"]["message"]
        await d.left.wait()
        text = (await http.get("/metrics")).text
        assert 'boomerang_turns_total{ended_by="router",plan="cold",reason="first_turn"} 1.0' in text


async def test_after_its_first_token_a_stream_may_take_its_time() -> None:
    async with spoken_pool(first_token_timeout_s=5.0, idle_timeout_s=None) as (d, http):
        d.say(SSE_HEAD)
        d.chunk(DELTA)
        async with reading(http, opening()) as client:
            await client.expect(DELTA)
            d.chunk(FINISH + DONE)
            d.end()
            assert await client.rest() == FINISH + DONE


async def test_a_decode_node_whose_cache_is_tainted_is_used_under_its_salt() -> None:
    """The planned D is not to be reached; the one that takes over has a cache that is not to be trusted."""
    async with http_pool(decode=[STOCK_33, STOCK_33]) as pool:
        doubts, other = pool.router.context.doubts, pool.decodes[1]
        await pool.decodes[0].__aexit__(None, None, None)
        doubts.taint(other.origin, None)
        answer = await pool.turn(opening())
        assert answer["choices"]
        (received,) = [one for one in legs(other) if one.path == CHAT]
        assert received.body["cache_salt"] == doubts.salt(other.origin, None)
