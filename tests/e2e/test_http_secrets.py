"""What a caller says, and what it shows to be let in, is in no log line, no metric and no span."""

import io
import json
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import httpx
import pytest

from router.http.openai import PATHS
from router.telemetry.logs import LOGGER, set_up
from tests.e2e.http_pool import CHAT, HttpPool, continued, fault, http_pool, opening, until
from tests.telemetry.collector import Collector, collecting

CONTENT: Final = "canary7content"
SECRET: Final = "canary7secret"
HEADERS: Final = {
    "authorization": f"Bearer {SECRET}",
    "x-api-key": SECRET,
    "cookie": f"session={SECRET}",
    "x-custom": SECRET,
    "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    "tracestate": f"vendor={SECRET}",
    "baggage": f"user={SECRET}",
}
TOOLS: Final = [{"type": "function", "function": {"name": CONTENT, "parameters": {"type": "object"}}}]


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """Everything that the router logs, down to debug."""
    before = (LOGGER.handlers[:], LOGGER.level, LOGGER.propagate)
    stream = io.StringIO()
    set_up("json", "debug", stream)
    yield stream
    LOGGER.handlers[:], LOGGER.level, LOGGER.propagate = before


@pytest.fixture
async def collector(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Collector]:
    monkeypatch.setenv("NO_PROXY", "*")
    async with collecting() as here:
        yield here


async def send(pool: HttpPool, path: str, body: bytes, query: str = "") -> httpx.Response:
    headers = {**HEADERS, "content-type": "application/json"}
    return await pool.http.post(f"{path}?{query}" if query else path, content=body, headers=headers)


async def nowhere(pool: HttpPool, collector: Collector, log: io.StringIO) -> None:
    """Raises AssertionError where a canary is told."""
    await until(lambda: pool.router.open_turns.count == 0, "open turns")
    turns = sum(type(fact).__name__ == "TurnTraced" for fact in pool.facts)
    assert turns
    await until(
        lambda: len([s for s in collector.spans if "boomerang.plan" in s.attributes]) >= turns, "spans"
    )
    told = {
        "log": log.getvalue(),
        "metrics": (await pool.http.get("/metrics")).text,
        "health": (await pool.http.get("/health")).text,
        "spans": b"".join(collector.raw).decode("latin-1"),
    }
    for where, text in told.items():
        assert text, where
        for canary in (CONTENT, SECRET):
            assert canary not in text, (where, canary, text[max(text.find(canary) - 200, 0) :][:400])
    assert all(
        "4bf92f3577b34da6a3ce929d0e0e4736" in line for line in told["log"].splitlines() if '"turn ' in line
    )


def body_of(**members: Any) -> bytes:
    return json.dumps({**opening(CONTENT, max_tokens=3), "tools": TOOLS, **members}).encode()


async def test_of_every_route_and_of_bodies_that_cannot_be_read(
    collector: Collector, log: io.StringIO
) -> None:
    async with http_pool(otlp_endpoint=collector.origin, max_body_bytes=100_000) as pool:
        for path in PATHS:
            await send(pool, path, body_of(prompt=CONTENT, input=CONTENT), query=f"key={SECRET}")
            await send(pool, path, body_of(stream=True, prompt=CONTENT, input=CONTENT))
            for broken in (
                f'{{"model": "{CONTENT}'.encode(),
                f'["{CONTENT}"]'.encode(),
                json.dumps({"model": {"name": CONTENT}}).encode(),
                json.dumps({"model": "m", "messages": CONTENT}).encode(),
                json.dumps({"model": "m", "stream": CONTENT}).encode(),
                CONTENT.encode() * 10_000,
            ):
                await send(pool, path, broken)
        for path in ("/v1/models", f"/v1/conversations/{SECRET}", f"/no/such/{CONTENT}"):
            for method in ("GET", "DELETE"):
                await pool.http.request(method, path, headers=HEADERS)
        await nowhere(pool, collector, log)
        assert '"request refused: 400 bad_request"' in log.getvalue()
        assert '"request refused: 413 body_too_large"' in log.getvalue()


async def test_of_engines_that_fail_and_quote_the_request(collector: Collector, log: io.StringIO) -> None:
    """With a conversation that goes on, so that handles are verified, cut, and lost as well."""
    quoting = json.dumps({"error": {"message": f"no: {CONTENT} {SECRET}", "type": "x", "code": 500}})
    async with http_pool(otlp_endpoint=collector.origin) as pool:
        body = {**opening(CONTENT, max_tokens=3), "tools": TOOLS}
        answer = await send(pool, CHAT, json.dumps(body).encode())
        for server in (pool.p, pool.d):
            for status in (400, 429, 500):
                fault(server, status=status, body=quoting)
                await send(pool, CHAT, json.dumps(continued(body, answer.json(), CONTENT)).encode())
            fault(server, status=200, body=f"no JSON: {CONTENT}")
            await send(pool, CHAT, body_of())
            fault(server, cut_after_chunks=0)
            await send(pool, CHAT, body_of())
        fault(pool.d, error_after_chunks=1, streamed=True)
        await send(pool, CHAT, body_of(stream=True))
        fault(pool.d, cut_after_chunks=1, cut_mid_event=True, streamed=True)
        await send(pool, CHAT, body_of(stream=True))
        with pytest.raises(httpx.ReadTimeout):
            fault(pool.p, hang=True)
            await pool.http.post(
                CHAT, content=body_of(), headers=HEADERS | {"content-type": "application/json"}, timeout=0.2
            )
        await until(lambda: pool.router.open_turns.count == 0, "the turn that was left")
        await nowhere(pool, collector, log)
        assert '"phase":"prefill"' in log.getvalue()


def test_the_log_can_be_seen_to_hold_a_canary(log: io.StringIO) -> None:
    """What the tests above look into is what is written."""
    logging.getLogger("router.http").warning("%s", CONTENT)
    assert CONTENT in log.getvalue()
