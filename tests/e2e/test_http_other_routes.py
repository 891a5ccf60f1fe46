"""Routes that are not split: one leg on one decode node, as it came, closed when its client leaves."""

import asyncio
import json
from typing import Final

import pytest

from router.http.openai import PATHS
from router.turn.request import Endpoint
from tests.e2e.http_pool import MODEL, total, until
from tests.e2e.spoken_engine import SSE_HEAD, spoken_pool
from tests.e2e.test_http_leaving import AT_ONCE_S, RawClient, back_to_zero

ROUTES: Final = [path for path, endpoint in PATHS.items() if endpoint is Endpoint.OTHER]
ANSWER: Final = b'{"any" : "answer", "usage": null}'
JSON_HEAD: Final = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


@pytest.mark.parametrize("path", ROUTES)
async def test_a_request_and_its_answer_pass_as_they_came(path: str) -> None:
    asked = b'{"model": "sim-qwen3",\n "input":["a", "b"], "kv_transfer_params":{"do_remote_decode":true}}'
    async with spoken_pool() as (d, http):
        d.say(JSON_HEAD % len(ANSWER) + ANSWER)
        d.hang_up()
        answer = await http.post(path, content=asked, headers={"content-type": "application/json"})
        assert (answer.status_code, answer.content) == (200, ANSWER)
        assert (answer.headers["x-boomerang-plan"], answer.headers["x-boomerang-reason"]) == (
            "unsplit",
            "endpoint",
        )
        (seen,) = d.asked
        assert seen.line == f"POST {path} HTTP/1.1"
        assert json.loads(seen.body) == {"model": MODEL, "input": ["a", "b"]}
        metrics = (await http.get("/metrics")).text
        assert total(metrics, "boomerang_prefill_leg_seconds_count") == 0


@pytest.mark.parametrize("begun", [True, False], ids=["in-its-answer", "before-it"])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("path", ROUTES)
async def test_a_client_that_leaves_closes_its_leg(path: str, stream: bool, begun: bool) -> None:
    async with spoken_pool() as (d, http):
        if begun and stream:
            d.say(SSE_HEAD)
            d.chunk(b"data: {}\n\n")
        elif begun:
            d.say(JSON_HEAD % 1_000 + b"{")
        port = http.base_url.port
        assert port is not None
        client = RawClient(port)
        await client.post({"model": MODEL, "input": "x", "stream": stream}, path)
        await until(lambda: bool(d.asked), "the leg")
        if begun and stream:
            await client.receive()
        client.leave()
        async with asyncio.timeout(AT_ONCE_S):
            await d.left.wait()
        await back_to_zero(http)
        metrics = (await http.get("/metrics")).text
        assert total(metrics, "boomerang_client_departures_total") == 1
