"""Engines that answer what no engine should, to legs and probes: what the client gets, and what is told."""

import gzip
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

import httpx
import pytest

from router.sim.config import EngineConfig
from router.telemetry.facts import Fact, LegFailed, TurnEnded
from tests.e2e.http_pool import CHAT, MODEL, direct_client, error_of, opening, router_at, sim_servers, until
from tests.engines.scripted import Peer, engine

ANSWER = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "CONTENT"}, "finish_reason": "stop"}
    ],
    "usage": {"prompt_tokens": 10, "completion_tokens": 1},
}
CHUNK = b'data: {"choices":[{"index":0,"delta":{"content":"CONTENT"}}]}\n\n'
SSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"


def http(body: object, status: str = "200 OK", headers: bytes = b"") -> bytes:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(raw)}\r\n"
    return head.encode() + headers + b"\r\n" + raw


def chunks(*pieces: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in (*pieces, b""))


class Odd:
    """Says one thing to each path, and hangs up after what it says to a POST."""

    def __init__(self, says: Mapping[str, bytes]) -> None:
        self.says = dict(says)

    async def serve(self, peer: Peer) -> None:
        while True:
            request = await peer.request()
            method, path, _ = request.line.split(" ", 2)
            said = self.says.get(path, http({}) if path == "/health" else http({}, "404 Not Found"))
            peer.writer.write(said)
            await peer.writer.drain()
            if method == "POST":
                return


@asynccontextmanager
async def odd_decode(says: bytes, path: str = CHAT) -> AsyncIterator[tuple[httpx.AsyncClient, list[Fact]]]:
    """A client of a router whose decode node says ``says`` to ``path``, and the router's facts."""
    odd, facts = Odd({path: says}), list[Fact]()
    async with (
        engine(odd.serve) as here,
        sim_servers([EngineConfig()]) as (p,),
        router_at([p.origin], [here.origin]) as (router, origin),
        direct_client(origin) as client,
    ):
        router.context.facts.subscribe(facts.append)
        yield client, facts
        await until(lambda: router.open_turns.count == 0, "open turns")
        await until(lambda: not any(node.in_flight for node in router.context.fleet.snapshot.nodes), "legs")


UNSENDABLE = {
    "control": b"X-A: a\x01b\r\n",
    "delete": b"X-A: a\x7fb\r\n",
}


@pytest.mark.parametrize("kind", UNSENDABLE)
@pytest.mark.parametrize("way", ["whole", "stream", "unsplit", "refusal"])
async def test_a_header_that_cannot_go_on_is_left_out(kind: str, way: str) -> None:
    headers = UNSENDABLE[kind] + b"X-Good: yes\r\n"
    body, path, status, said = opening("odd"), CHAT, 200, http(ANSWER, headers=headers)
    if way == "stream":
        body["stream"] = True
        said = SSE + headers + b"\r\n" + chunks(CHUNK, b"data: [DONE]\n\n")
    elif way == "unsplit":
        body, path = {"model": MODEL, "input": "x"}, "/v1/embeddings"
    elif way == "refusal":
        status, said = 400, http({"error": {"message": "no"}}, "400 Bad Request", headers)
    async with odd_decode(said, path) as (client, _):
        answer = await client.post(path, json=body)
        assert answer.status_code == status
        assert answer.headers["x-good"] == "yes"
        assert "x-a" not in answer.headers
        assert answer.content


@pytest.mark.parametrize("status", ["600 Odd", "999 Odd", "302 Found", "204 No Content"])
async def test_a_status_that_is_none_of_an_engines_is_a_bad_gateway(status: str) -> None:
    error = {"error": {"message": "m", "type": "t", "param": None, "code": 1}}
    said = b"HTTP/1.1 204 No Content\r\n\r\n" if status.startswith("204") else http(error, status)
    async with odd_decode(said) as (client, _):
        assert error_of(await client.post(CHAT, json=opening("odd")))["status"] == 502


QUOTED = {
    "status line": b"CONTENT CONTENT\r\n\r\n",
    "behind the body": http(ANSWER) + b"CONTENT",
    "chunk size": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nCONTENT and more\r\n",
    "chunk size in a stream": SSE + b"\r\n" + chunks(CHUNK)[:-5] + b"CONTENT and more\r\n",
    "header": b"HTTP/1.1 200 OK\r\nX(CONTENT: x\r\n\r\n",
    "long header": b"HTTP/1.1 200 OK\r\nX-A: " + b"CONTENT" * 4000 + b"\r\n\r\n",
}


@pytest.mark.parametrize("kind", QUOTED)
async def test_an_engines_bytes_are_not_quoted_in_errors(kind: str) -> None:
    async with odd_decode(QUOTED[kind]) as (client, facts):
        answer = await client.post(CHAT, json=opening("odd", stream=True))
        told = [fact.error for fact in facts if isinstance(fact, LegFailed)]
        told += [fact.detail for fact in facts if isinstance(fact, TurnEnded)]
        assert told
        assert not any("CONTENT" in text for text in told), told
        assert "CONTENT" not in answer.text.replace(CHUNK.decode(), "").replace(json.dumps(ANSWER), "")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_compressed_answer_is_refused_before_it_begins(stream: bool) -> None:
    whole, events = gzip.compress(json.dumps(ANSWER).encode()), gzip.compress(CHUNK + b"data: [DONE]\n\n")
    encoded = b"Content-Encoding: gzip\r\n"
    said = SSE + encoded + b"\r\n" + chunks(events) if stream else http(whole, headers=encoded)
    async with odd_decode(said) as (client, _):
        error = error_of(await client.post(CHAT, json=opening("odd", stream=stream)))
        assert error["status"] == 502
        assert "gzip" in error["message"]


async def test_a_media_type_is_read_in_any_case() -> None:
    said = SSE.replace(b"text/event-stream", b"Text/Event-Stream; charset=utf-8")
    async with odd_decode(said + b"\r\n" + chunks(CHUNK, b"data: [DONE]\n\n")) as (client, _):
        answer = await client.post(CHAT, json=opening("odd", stream=True))
        assert answer.content == CHUNK + b"data: [DONE]\n\n"


ODD_MODELS = {
    "null": http(b"null"),
    "no list": http({"data": None}),
    "number": http({"data": 5}),
    "not UTF-8": http(b'{"data":["\xff"]}'),
    "deep": http(b'{"data":' + b"[" * 50_000 + b"]" * 50_000 + b"}"),
    "redirect": http(b"", "302 Found", b"Location: http://elsewhere/\r\n"),
    "status": http({}, "999 Odd"),
    "compressed": http(gzip.compress(b'{"data":[]}'), headers=b"Content-Encoding: gzip\r\n"),
}
GOOD_MODELS = http({"object": "list", "data": [{"id": "m"}]}, headers=b"X-A: a\x01b\r\n")


@pytest.mark.parametrize("kind", ODD_MODELS)
async def test_models_that_are_no_list_are_left_out(kind: str) -> None:
    async with AsyncExitStack() as stack:
        odd = await stack.enter_async_context(engine(Odd({"/v1/models": ODD_MODELS[kind]}).serve))
        good = await stack.enter_async_context(engine(Odd({"/v1/models": GOOD_MODELS}).serve))
        (p,) = await stack.enter_async_context(sim_servers([EngineConfig()]))
        for decodes, expected in (([odd], None), ([odd, good], ["m"]), ([good, good, odd], ["m"])):
            origins = list(dict.fromkeys(one.origin for one in decodes))
            async with router_at([p.origin], origins) as (_, origin), direct_client(origin) as client:
                answer = await client.get("/v1/models")
                if expected is None:
                    assert error_of(answer)["status"] == 502
                else:
                    assert [model["id"] for model in answer.json()["data"]] == expected


ODD_PROBES = {
    "digits": {"/metrics": b'vllm:cache_config_info{block_size="' + b"9" * 6000 + b'"} 1.0\n'},
    "many blocks": {"/metrics": b'vllm:cache_config_info{num_gpu_blocks="' + b"9" * 30 + b'"} 1.0\n'},
    "too much": {
        "/metrics": b"vllm:num_requests_running 1e308\n" * 2 + b"process_start_time_seconds 1e300\n"
    },
    "deep version": {"/version": b'{"x":' + b"[" * 50_000 + b"]" * 50_000 + b"}"},
    "deep models": {"/v1/models": b'{"data":[{"id":"m","x":' + b"[" * 50_000 + b"]" * 50_000 + b"}]}"},
    "no text": {"/version": b'{"version":"\xff"}', "/v1/models": b'{"data":[{"id":"\xff"}]}'},
}


@pytest.mark.parametrize("kind", ODD_PROBES)
async def test_what_a_healthy_engine_tells_of_itself_never_keeps_it_out(kind: str) -> None:
    odd = Odd({path: http(body) for path, body in ODD_PROBES[kind].items()})
    async with (
        engine(odd.serve) as here,
        sim_servers([EngineConfig()]) as (p,),
        router_at([p.origin], [here.origin]) as (_, origin),
        direct_client(origin) as client,
    ):
        health = await client.get("/health")
        assert health.status_code == 200
        assert all(len(node["reason"]) < 100 for node in health.json()["nodes"])
        assert (await client.get("/metrics")).text.count("boomerang_task_failures_total{") == 0
