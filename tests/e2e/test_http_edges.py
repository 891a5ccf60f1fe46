"""The edges of the front: bodies and paths that are not for it, callers, models, probes and metrics."""

import json
from collections.abc import AsyncIterator

import pytest

from router.sim.config import EngineConfig
from tests.e2e.http_pool import (
    CHAT,
    COMPLETIONS,
    MODEL,
    STOCK_33,
    carries_handle,
    continued,
    direct_client,
    error_of,
    events,
    http_pool,
    legs,
    opening,
    router_at,
    samples,
)

JSON = {"content-type": "application/json"}


# -- bodies ----------------------------------------------------------------------------------------------

NO_REQUESTS = {
    "empty": b"",
    "text": b"hello",
    "cut": b'{"model":"m","messages":[',
    "not_utf8": b'{"model":"\xff\xfe"}',
    "list": b"[1,2]",
    "number": b"7",
    "null": b"null",
    "deep": b'{"messages":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    "model_number": b'{"model":7}',
    "trailing": b'{"model":"m"} {}',
    "xargs": b'{"model":"m","vllm_xargs":{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}}",
}


async def test_what_is_no_request_is_refused_before_any_engine_sees_it() -> None:
    async with http_pool() as pool:
        for name, raw in NO_REQUESTS.items():
            for path in (CHAT, COMPLETIONS):
                answer = await pool.http.post(path, content=raw, headers=JSON)
                assert answer.status_code == 400, (name, answer.text)
                assert error_of(answer)["type"] == "invalid_request_error", name
        assert not legs(pool.p)
        assert not legs(pool.d)
        await pool.idle()


ODD_REQUESTS = {
    "huge_int": b'"max_tokens":' + b"9" * 400,
    "huge_float": b'"temperature":1e999',
    "surrogate": b'"messages":[{"role":"user","content":"\\ud800"}]',
    "fraction": b'"n":1.5',
    "duplicates": b'"messages":[],"messages":[{"role":"user","content":"hi"}]',
    "odd_messages": b'"messages":{"role":"user"}',
    "odd_message": b'"messages":["hi", null, 3]',
    "odd_types": b'"stream":{},"n":[],"conversation_id":[],"session_id":{},"return_token_ids":"x"',
    "raw_surrogate_in_key": b'"\\ud800":1',
}


async def test_what_only_an_engine_can_judge_goes_to_it_and_breaks_nothing() -> None:
    async with http_pool() as pool:
        for name, members in ODD_REQUESTS.items():
            raw = b'{"model":"sim-qwen3",' + members
            if b'"messages"' not in members:
                raw += b',"messages":[{"role":"user","content":"hi"}]'
            for _ in range(2):
                answer = await pool.http.post(CHAT, content=raw + b"}", headers=JSON)
                assert answer.status_code in (200, 400), (name, answer.status_code, answer.text)
        await pool.idle()


async def chunks(total_bytes: int) -> AsyncIterator[bytes]:
    yield b'{"model":"'
    for _ in range(total_bytes // 1_000):
        yield b"x" * 1_000


async def test_a_body_that_is_too_large_is_a_413_with_and_without_a_length() -> None:
    async with http_pool(max_body_bytes=10_000) as pool:
        for content in (b"x" * 20_000, chunks(20_000)):
            answer = await pool.http.post(CHAT, content=content, headers=JSON)
            assert answer.status_code == 413
            assert error_of(answer)["code"] == "body_too_large"
        fitting = {"model": MODEL, "messages": [{"role": "user", "content": "x" * 9_900}]}
        assert (await pool.chat(fitting)).status_code == 200


async def test_media_types_and_encodings_that_are_not_taken_are_a_415() -> None:
    async with http_pool() as pool:
        raw = json.dumps(opening(max_tokens=1)).encode()
        for kind in (
            "text/plain",
            "multipart/form-data; boundary=x",
            "application/x-www-form-urlencoded",
            "",
        ):
            answer = await pool.http.post(CHAT, content=raw, headers={"content-type": kind})
            assert error_of(answer)["status"] == 415, kind
        answer = await pool.http.post(CHAT, content=raw, headers={**JSON, "content-encoding": "gzip"})
        assert error_of(answer)["code"] == "unsupported_media_type"
        for kind in ("application/json; charset=utf-8", "Application/JSON", "application/problem+json"):
            answer = await pool.http.post(CHAT, content=raw, headers={"content-type": kind})
            assert answer.status_code == 200, kind


# -- paths and methods -----------------------------------------------------------------------------------


async def test_paths_and_methods_that_are_not_there() -> None:
    async with http_pool() as pool:
        for method, path in (
            ("GET", "/"),
            ("POST", "/v1/nope"),
            ("GET", "/v1/chat"),
            ("POST", "/sim/restart"),
        ):
            answer = await pool.http.request(method, path)
            assert error_of(answer)["status"] == 404, path
            assert error_of(answer)["code"] == "not_found"
        for method, path, allowed in (
            ("GET", CHAT, "POST"),
            ("PUT", CHAT, "POST"),
            ("DELETE", "/health", "GET"),
        ):
            answer = await pool.http.request(method, path)
            assert error_of(answer)["status"] == 405, path
            assert allowed in answer.headers["allow"]
        assert (await pool.http.request("OPTIONS", CHAT)).status_code == 405
        head = await pool.http.head("/v1/models")
        assert (head.status_code, head.content) == (200, b"")


async def test_one_connection_serves_one_request_after_the_other() -> None:
    """An error leaves the connection in order, and no request runs into the next."""
    async with http_pool() as pool:
        for _ in range(3):
            assert (await pool.http.post(CHAT, content=b"{", headers=JSON)).status_code == 400
            assert (await pool.chat(opening(max_tokens=1))).status_code == 200
            assert events(await pool.stream(opening(max_tokens=1)))[-1] == "[DONE]"


# -- whose requests they are -----------------------------------------------------------------------------


@pytest.mark.parametrize("header", ["authorization", "x-api-key", "api-key"])
async def test_equal_histories_of_two_callers_know_nothing_of_each_other(header: str) -> None:
    async with http_pool() as pool:
        body = opening(conversation_id="guessed")
        first = await pool.turn(body, **{header: "Bearer sk-one"})
        second = continued(body, first)
        answer = await pool.chat(second, **{header: "Bearer sk-two"})
        assert (answer.headers["x-boomerang-plan"], answer.headers["x-boomerang-reason"]) == (
            "cold",
            "first_turn",
        )
        assert not any(map(carries_handle, legs(pool.p)))
        await pool.turn(second, plan="local", **{header: "Bearer sk-one"})
        pool.sound()


async def test_an_identity_header_names_the_tenant_whatever_the_credential() -> None:
    async with http_pool(identity_header="X-Tenant") as pool:
        body = opening()
        second = continued(body, await pool.turn(body, x_tenant="acme", authorization="Bearer rotated-1"))
        other = await pool.chat(second, x_tenant="zeta", authorization="Bearer rotated-1")
        assert other.headers["x-boomerang-reason"] == "first_turn"
        await pool.turn(second, plan="local", x_tenant="acme", authorization="Bearer rotated-2")
        pool.sound()


async def test_without_its_identity_header_a_caller_gets_and_leaves_nothing() -> None:
    async with http_pool(identity_header="X-Tenant") as pool:
        body = opening()
        for _ in range(3):
            answer = await pool.chat(body)
            assert answer.headers["x-boomerang-reason"] == "no_identity"
            body = continued(body, answer.json())
        await pool.router.sweep()
        assert pool.router.ledger_stats.branches == 0
        assert not any(map(carries_handle, legs(pool.p)))


# -- models, probes, metrics -----------------------------------------------------------------------------


async def test_models_are_those_of_the_decode_nodes() -> None:
    lora = EngineConfig(adapters=("lora-a",))
    async with http_pool() as pool, direct_client(pool.d.origin) as engine:
        assert (await pool.http.get("/v1/models")).json() == (await engine.get("/v1/models")).json()
    async with http_pool(prefill=[lora], decode=[STOCK_33, lora]) as pool:
        listed = (await pool.http.get("/v1/models")).json()
        assert [model["id"] for model in listed["data"]] == [MODEL, "lora-a"]
        assert (await pool.chat(opening(model="lora-a"))).status_code == 200
        assert len(legs(pool.decodes[1])) == 1, "the node that has it"


async def test_a_model_that_no_engine_has_is_refused_as_an_engine_does() -> None:
    async with http_pool() as pool, direct_client(pool.d.origin) as engine:
        body = {**opening(), "model": "no-such-model"}
        own, answer = await engine.post(CHAT, json=body), await pool.chat(body)
        assert (answer.status_code, answer.content) == (404, own.content)


async def test_probes_tell_how_it_is() -> None:
    async with http_pool() as pool:
        assert (await pool.http.get("/live")).json()["status"] == "live"
        assert (await pool.http.get("/ready")).json() == {"status": "ready", "reasons": []}
        health = (await pool.http.get("/health")).json()
        assert health["status"] == "ready"
        assert {node["role"]: node["version"] for node in health["nodes"]} == {
            "prefill": "0.33.0",
            "decode": "0.33.0",
        }
        assert health["verify"] == {"router": 1}
        pool.p.engine.dead = True
        for _ in range(2):
            await pool.router.context.fleet.refresh(pool.router.context.upstream)
        assert (await pool.http.get("/live")).status_code == 200
        answer = await pool.http.get("/ready")
        assert answer.status_code == 503
        assert "no prefill node is ready" in answer.json()["reasons"][0]
        assert (await pool.http.get("/health")).status_code == 503
        pool.router.draining = True
        assert (await pool.http.get("/ready")).json()["status"] == "draining"


async def test_metrics_parse_and_move() -> None:
    async with http_pool() as pool:
        answer = await pool.http.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        before = samples(answer.text)
        second = continued(opening(), await pool.turn(opening()))
        await pool.turn(second, plan="local")
        await pool.chat({**opening(), "messages": 7})
        await pool.router.sweep()
        text = (await pool.http.get("/metrics")).text
        after = samples(text)
        assert set(before) <= set(after)
        assert await pool.metric("turns_total", plan="cold", reason="first_turn") == 2
        assert await pool.metric("turns_total", plan="local", reason="extension") == 1
        assert await pool.metric("answers_total", endpoint="chat", status="200") == 2
        assert await pool.metric("answers_total", endpoint="chat", status="400") == 1
        assert await pool.metric("reused_tokens_total", plan="local") > 500
        assert await pool.metric("prompt_tokens_total") > 1_000
        assert await pool.metric("time_to_first_byte_seconds_count", plan="local") == 1
        assert await pool.metric("handles_total", outcome="used") == 1
        assert await pool.metric("ledger_handles") == 1
        assert await pool.metric("build_info", verify="auto") == 1
        assert "sk-" not in text
        assert pool.ended().turn_id not in text


async def test_two_routers_in_one_process_do_not_mix() -> None:
    async with http_pool() as one, router_at([one.p.origin], [one.d.origin]) as (_, other):
        second = continued(opening(), await one.turn(opening()))
        async with direct_client(other) as http:
            answer = await http.post(CHAT, json=second)
            assert answer.headers["x-boomerang-reason"] == "first_turn"
        assert await one.metric("turns_total") == 1
