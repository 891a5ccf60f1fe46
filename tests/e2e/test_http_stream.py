"""Streams go through as they come, whatever they are cut into, and never look complete when they are not."""

import asyncio
import json
from dataclasses import replace
from itertools import product
from typing import Any

import openai
import pytest

from router.sim.config import EngineConfig
from router.telemetry.facts import EndedBy
from tests.e2e.http_pool import (
    CHAT,
    PATIENCE_S,
    STOCK_33,
    Body,
    HttpPool,
    comparable,
    continued,
    direct_client,
    events,
    fault,
    http_pool,
    openai_client,
    opening,
    sim_servers,
    total,
)
from tests.e2e.spoken_engine import SSE_HEAD, reading, spoken_pool

PLUGIN_32 = EngineConfig(version="0.32.0", plugin=True)
WHOLE_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def delta(text: str) -> bytes:
    choice = f'{{"index":0,"delta":{{"content":"{text}"}},"finish_reason":null}}'
    return f'data: {{"choices":[{choice}]}}\n\n'.encode()


def finish(reason: str = "stop") -> bytes:
    return f'data: {{"choices":[{{"index":0,"delta":{{}},"finish_reason":"{reason}"}}]}}\n\n'.encode()


async def stream_alone(body: Body, **script: Any) -> bytes:
    """The stream of an engine that is alone, under a scripted fault."""
    async with sim_servers([replace(STOCK_33, prefix_cache=False)]) as (server,):
        fault(server, **script)
        async with direct_client(server.origin) as http:
            return (await http.post(CHAT, json={**body, "stream": True})).content


async def assert_nothing_is_kept(pool: HttpPool, body: Body) -> None:
    """The next turn of that conversation finds nothing of the broken one. Raises AssertionError."""
    answer = {"choices": [{"message": {"role": "assistant", "content": "so far"}}]}
    found = await pool.chat(continued(body, answer))
    assert found.headers["x-boomerang-plan"] == "cold"
    assert found.headers["x-boomerang-reason"] == "first_turn"
    await pool.idle()
    pool.sound()


# -- at once, and as they are ----------------------------------------------------------------------------


async def test_each_event_is_forwarded_before_the_next_one_is_there() -> None:
    async with spoken_pool() as (d, http):
        d.say(SSE_HEAD)
        d.chunk(delta("one"))
        async with reading(http, opening()) as client:
            await client.expect(delta("one"))
            for word in ("two", "three", "北京 🎉"):
                d.chunk(delta(word))
                await client.expect(delta(word))
            d.chunk(b": a comment\n\n")
            await client.expect(b": a comment\n\n")
            d.chunk(finish() + DONE)
            d.end()
            assert await client.rest() == finish() + DONE


async def test_headers_come_with_the_first_event_and_forbid_buffering() -> None:
    async with spoken_pool() as (d, http):
        d.say(SSE_HEAD)
        d.chunk(delta("x"))
        async with reading(http, opening()) as client:
            await client.expect(delta("x"))
            headers = client.answer.headers
            assert headers["content-type"] == "text/event-stream"
            assert headers["cache-control"] == "no-cache"
            assert headers["x-accel-buffering"] == "no"
            assert "content-length" not in headers
            d.chunk(finish() + DONE)
            d.end()
            await client.rest()


ODD_STREAMS = {
    "cjk": delta("北京 🎉🏽 größer") + finish() + DONE,
    "crlf": (delta("北京") + finish() + DONE).replace(b"\n", b"\r\n"),
    "cr": (delta("x") + finish() + DONE).replace(b"\n", b"\r"),
    "no_space": (delta("x") + finish() + DONE).replace(b"data: ", b"data:"),
    "multi_line": b'data: {"choices":\ndata: [{"index":0,"delta":{"content":"x"}}]}\n\n' + finish() + DONE,
    "event_names": b"event: message\nid: 7\n" + delta("x") + b"retry: 5\n\n" + finish() + DONE,
    "line_separators": delta("a\u2028b\u0085c\x0b") + finish() + DONE,
    "byte_order_mark": b"\xef\xbb\xbf" + delta("x") + finish() + DONE,
    "unknown_fields": b'data: {"choices":[{"delta":{"content":null,"new":[1]}}],"more":{}}\n\n'
    + finish()
    + DONE,
    "not_json": b"data: oops\n\n" + finish() + DONE,
}


async def test_bytes_are_the_engines_however_they_are_split() -> None:
    async with spoken_pool() as (d, http):
        for (name, stream), size_bytes in product(ODD_STREAMS.items(), (1, 7, 100_000)):
            d.say(SSE_HEAD)
            for at in range(0, len(stream), size_bytes):
                d.chunk(stream[at : at + size_bytes])
            d.end()
            async with reading(http, opening()) as client:
                assert await client.rest() == stream, (name, size_bytes)


@pytest.mark.parametrize("line_end", ["lf", "crlf", "cr"])
async def test_a_whole_turn_in_single_bytes(line_end: str) -> None:
    body = opening(stream_options={"include_usage": True})
    script: dict[str, Any] = {"split_bytes": 1, "line_end": line_end, "streamed": True}
    direct = await stream_alone(body, **script)
    async with http_pool() as pool:
        fault(pool.d, **script)
        assert comparable(await pool.stream(body)) == comparable(direct)
        assert await pool.metric("handles_total", outcome="stored") == 1


@pytest.mark.parametrize("place", ["last", "usage"])
@pytest.mark.parametrize("config", [STOCK_33, PLUGIN_32], ids=["0.33", "0.32-plugin"])
async def test_a_handle_is_found_and_taken_out_wherever_it_is(config: EngineConfig, place: str) -> None:
    body = opening(stream_options={"include_usage": True})
    direct = await stream_alone(body)
    async with http_pool(config) as pool:
        fault(pool.d, params_at=place, streamed=True)
        raw = await pool.stream(body)
        assert b"_transfer_params" not in raw
        if config is STOCK_33:
            assert comparable(raw) == comparable(direct)
        said = "".join(
            choice["delta"].get("content") or "" for event in events(raw)[:-1] for choice in event["choices"]
        )
        answer = {"choices": [{"message": {"role": "assistant", "content": said}}]}
        await pool.turn({**continued(body, answer), "stream_options": None}, plan="local")
        pool.sound()


# -- breaking off ----------------------------------------------------------------------------------------


async def test_a_stream_that_breaks_off_before_its_first_byte_is_a_bad_gateway() -> None:
    body = opening()
    async with http_pool() as pool:
        fault(pool.d, cut_after_chunks=0, streamed=True)
        answer = await pool.chat({**body, "stream": True})
        assert answer.status_code == 502
        assert answer.json()["error"]["code"] == "engine_unreachable"
        await assert_nothing_is_kept(pool, body)


@pytest.mark.parametrize(("chunks", "mid_event"), [(0, True), (1, False), (1, True), (3, False), (3, True)])
async def test_a_stream_that_breaks_off_ends_in_an_error_event(chunks: int, mid_event: bool) -> None:
    body = opening()
    before = b"\n\n".join((await stream_alone(body)).split(b"\n\n")[:chunks])
    async with http_pool() as pool:
        fault(pool.d, cut_after_chunks=chunks, cut_mid_event=mid_event, streamed=True)
        raw = await pool.stream(body)
        *whole, error, done = events(raw)
        assert done == "[DONE]"
        assert len(whole) == chunks
        assert comparable(raw).startswith(comparable(before)), "what came before the break was given out"
        assert error["error"]["type"] == "server_error"
        assert error["error"]["code"] == "engine_broke_off"
        assert pool.ended().ended_by is EndedBy.FAULT
        assert await pool.metric("turns_total", ended_by="fault") == 1
        await assert_nothing_is_kept(pool, body)


async def test_the_official_client_raises_on_a_stream_that_breaks_off() -> None:
    async with http_pool() as pool, openai_client(pool.origin) as client:
        fault(pool.d, cut_after_chunks=3, cut_mid_event=True, streamed=True)
        body: Any = opening(stream=True)
        seen = []
        stream = await client.chat.completions.create(**body)
        with pytest.raises(openai.APIError, match="broke off"):
            async for chunk in stream:
                seen.append(chunk)  # noqa: PERF401 - the error is to come after these
        assert len(seen) == 3


@pytest.mark.parametrize("ending", ["end", "hang_up"])
async def test_a_stream_that_ends_without_done_is_no_end(ending: str) -> None:
    async with spoken_pool() as (d, http):
        d.say(SSE_HEAD)
        d.chunk(delta("x") + finish())
        getattr(d, ending)()
        async with reading(http, opening()) as client:
            raw = await client.rest()
        assert raw.startswith(delta("x") + finish())
        *_, error, done = events(raw)
        assert "error" in error
        assert done == "[DONE]"


async def test_a_half_event_is_not_glued_to_the_error_event() -> None:
    async with spoken_pool() as (d, http):
        d.say(SSE_HEAD)
        d.chunk(delta("x") + delta("北京")[:-6])
        d.hang_up()
        async with reading(http, opening()) as client:
            raw = await client.rest()
        assert raw.startswith(delta("x") + b'data: {"error"')
        assert len(events(raw)) == 3


async def test_a_gap_that_is_too_long_ends_a_stream() -> None:
    async with spoken_pool(idle_timeout_s=0.2) as (d, http):
        d.say(SSE_HEAD)
        d.chunk(delta("x"))
        async with reading(http, opening()) as client:
            *_, error, done = events(await client.rest())
        assert "idle" in error["error"]["message"]
        assert done == "[DONE]"
        await d.left.wait()


@pytest.mark.parametrize("chunks", [0, 2])
async def test_an_engines_own_error_event_passes_unchanged_and_nothing_is_kept(chunks: int) -> None:
    body = opening()
    direct = await stream_alone(body, error_after_chunks=chunks)
    async with http_pool() as pool:
        fault(pool.d, error_after_chunks=chunks, streamed=True)
        raw = await pool.stream(body)
        assert comparable(raw) == comparable(direct)
        assert raw.count(b"[DONE]") == 1
        assert pool.ended().ended_by is EndedBy.ENGINE
        assert pool.ended().detail == "error event in the stream"
        await assert_nothing_is_kept(pool, body)


async def test_an_error_event_without_done_is_left_alone() -> None:
    error = b'data: {"error":{"message":"no","type":"x","param":null,"code":500}}\n\n'
    async with spoken_pool() as (d, http):
        d.say(SSE_HEAD)
        d.chunk(delta("x") + error)
        d.end()
        async with reading(http, opening()) as client:
            assert await client.rest() == delta("x") + error


async def test_a_whole_answer_to_a_streamed_request_passes() -> None:
    """Some engines answer a refusal, or an answer without a model, not streamed."""
    async with spoken_pool() as (d, http):
        d.say(WHOLE_HEAD % 14 + b'{"choices":[]}')
        async with reading(http, opening()) as client:
            assert await client.rest() == b'{"choices":[]}'


@pytest.mark.parametrize("body", [b"<html>oops</html>", b"[1]", b"\x1f\x8b\x08\x00"])
async def test_an_answer_that_is_no_completion_is_a_502(body: bytes) -> None:
    async with spoken_pool() as (d, http):
        d.say(WHOLE_HEAD % len(body) + body)
        answer = await http.post(CHAT, json=opening())
        assert answer.status_code == 502
        assert answer.json()["error"]["code"] == "engine_unreachable"


async def test_what_one_node_answers_alone_need_not_be_json() -> None:
    async with spoken_pool() as (d, http):
        d.say(WHOLE_HEAD % 3 + b"\x00\x01\xff")
        answer = await http.post("/v1/embeddings", json={"input": "x"})
        assert (answer.status_code, answer.content) == (200, b"\x00\x01\xff")


async def test_two_streams_at_once_do_not_mix() -> None:
    one, two = opening("one"), opening("two")
    alone = [comparable(await stream_alone(body)) for body in (one, two)]
    async with http_pool() as pool:
        for _ in range(2):
            fault(pool.d, delay_chunk_s=0.002, split_bytes=11, streamed=True)
        raw = await asyncio.gather(pool.stream(one), pool.stream(two))
        assert [comparable(stream) for stream in raw] == alone


async def test_a_client_that_never_reads_holds_its_engine_for_a_bounded_time() -> None:
    event = b'data: {"choices":[{"index":0,"delta":{"content":"' + b"x" * 60_000 + b'"}}]}\n\n'
    async with spoken_pool(client_timeout_s=0.3, idle_timeout_s=None) as (d, http):
        d.say(SSE_HEAD)
        for _ in range(400):  # far more than all buffers on the way hold
            d.chunk(event)
        body = json.dumps({**opening(), "stream": True}).encode()
        _, writer = await asyncio.open_connection(http.base_url.host, http.base_url.port)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        head = b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        writer.write(head % (CHAT.encode(), len(body)) + body)
        async with asyncio.timeout(PATIENCE_S):
            ended = 'boomerang_turns_total{ended_by="client",plan="cold",reason="first_turn"} 1.0'
            while ended not in (text := (await http.get("/metrics")).text):
                await asyncio.sleep(0.01)
        assert not total(text, "boomerang_open_legs")
        writer.transport.abort()
