"""Clients that speak HTTP in odd, old and hostile ways, byte by byte, at the router as it is served."""

import asyncio
import contextlib
import io
import json
import logging
from collections.abc import Iterable
from urllib.parse import urlsplit

import pytest

from router.http.protocol import MAX_HEAD_BYTES
from router.telemetry import logs
from router.turn.history import MAX_VALUES
from router.turn.lineage import lineage_of
from router.turn.members import decode_members
from router.turn.request import Endpoint
from tests.e2e.http_pool import CHAT, MODEL, PATIENCE_S, HttpPool, http_pool, legs, opening

BODY = json.dumps(opening("hostile")).encode()
STREAMED = json.dumps(opening("hostile", stream=True)).encode()
H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
CLOSE = b"Connection: close\r\n"


def request(body: bytes = BODY, headers: bytes = CLOSE, *, version: bytes = b"1.1") -> bytes:
    length = b"" if b"chunked" in headers else b"Content-Length: %d\r\n" % len(body)
    line = b"POST %b HTTP/%b\r\n" % (CHAT.encode(), version)
    return line + b"Host: x\r\nContent-Type: application/json\r\n" + length + headers + b"\r\n" + body


async def exchange(pool: HttpPool, pieces: Iterable[bytes], *, answers: int | None = None) -> bytes:
    """What comes back until the router closes; or until so many answers of known length have come."""
    at = urlsplit(pool.origin)
    reader, writer = await asyncio.open_connection(at.hostname, at.port)
    got = b""
    try:
        async with asyncio.timeout(PATIENCE_S):
            with contextlib.suppress(ConnectionError):
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)  # the router may read it by itself
                while answers is None or got.count(b'"choices"') < answers:
                    if not (data := await reader.read(65_536)):
                        break
                    got += data
    finally:
        writer.close()
    return got


def body_of(answer: bytes) -> bytes:
    return answer.partition(b"\r\n\r\n")[2]


def error_code(answer: bytes) -> str:
    """Raises AssertionError where the answer is no error in OpenAI's shape."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-type: application/json" in head, answer
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return str(error["code"])


async def test_an_offer_to_upgrade_does_not_cost_the_body() -> None:
    offered = request(headers=H2C)
    head, _, body = offered.partition(b"\r\n\r\n")
    chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
    ways = {
        "whole": [offered],
        "split": [head + b"\r\n\r\n", body],
        "byte by byte": [offered[at : at + 1] for at in range(len(head) + 8)] + [offered[len(head) + 8 :]],
        "chunked": [request(chunked, H2C + b"Transfer-Encoding: chunked\r\n")],
    }
    async with http_pool() as pool:
        for way, pieces in ways.items():
            answer = await exchange(pool, pieces, answers=1)
            assert answer.startswith(b"HTTP/1.1 200 "), (way, answer)
        pipelined = await exchange(pool, [offered + offered + request()], answers=3)
        assert pipelined.count(b"HTTP/1.1 200 ") == 3
        assert all("upgrade" not in leg.headers for leg in [*legs(pool.p), *legs(pool.d)])
        await pool.idle()


async def test_very_many_offers_to_upgrade_are_declined_one_by_one() -> None:
    """Each was read within the reading of the one before, until the interpreter ended it."""
    offer = b"GET /live HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n"
    last = b"GET /live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    async with http_pool() as pool:
        answers = await exchange(pool, [offer * 2_000 + last])
        assert answers.count(b"HTTP/1.1 200 ") == 2_001


async def test_a_tunnel_is_refused() -> None:
    async with http_pool() as pool:
        for target in (b"engine:80", b"/v1/models"):
            answer = await exchange(pool, [b"CONNECT %b HTTP/1.1\r\nHost: x\r\n\r\n" % target])
            assert answer.startswith(b"HTTP/1.1 400 ")
            assert error_code(answer) == "bad_request"


async def test_an_old_client_gets_no_chunks() -> None:
    async with http_pool() as pool:
        whole = await exchange(pool, [request(version=b"1.0")])
        streamed = await exchange(pool, [request(STREAMED, version=b"1.0")])
    assert json.loads(body_of(whole))["object"] == "chat.completion"
    assert b"transfer-encoding" not in streamed
    assert body_of(streamed).startswith(b"data: {")
    assert streamed.endswith(b"data: [DONE]\n\n")


ENDLESS = {
    "header": (b"GET /live HTTP/1.1\r\nX-A: ", b"a" * 4096),
    "headers": (b"GET /live HTTP/1.1\r\n", b"X-A: b\r\n" * 512),
    "target": (b"GET /", b"a" * 4096),
    "extension": (request(b"2;", b"Transfer-Encoding: chunked\r\n"), b"a" * 4096),
    "trailer": (request(b"2\r\n{}\r\n0\r\nX-A: ", b"Transfer-Encoding: chunked\r\n"), b"a" * 4096),
}


@pytest.mark.parametrize("kind", ENDLESS)
async def test_what_never_ends_is_cut_off(kind: str) -> None:
    head, more = ENDLESS[kind]
    async with http_pool() as pool:
        answer = await exchange(pool, [head, *[more] * (4 * MAX_HEAD_BYTES // len(more))])
        if answer:  # what the router had not read by then may have reset the connection
            assert error_code(answer) in ("headers_too_large", "bad_request")
        assert (await pool.http.get("/live")).status_code == 200
        assert not legs(pool.p)
        await pool.idle()


async def test_many_headers_pass() -> None:
    many = b"".join(b"X-H%d: value\r\n" % n for n in range(1000))
    async with http_pool() as pool:
        answer = await exchange(pool, [request(headers=CLOSE + many)])
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert legs(pool.p)[0].headers["x-h999"] == "value"


async def test_a_trailer_is_no_header() -> None:
    chunked = b"%x\r\n%b\r\n0\r\nX-Tenant: another\r\nX-Request-Id: forged\r\n\r\n" % (len(BODY), BODY)
    async with http_pool(identity_header="x-tenant") as pool:
        answer = await exchange(pool, [request(chunked, CLOSE + b"Transfer-Encoding: chunked\r\n")])
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b"forged" not in answer
        assert pool.ended().reason == "no_identity"


NO_HTTP = {
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "two lengths": request(headers=b"Content-Length: 3\r\n"),
    "length and chunks": request(headers=b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n"),
    "length too long a number": b"POST %b HTTP/1.1\r\nContent-Length: %b\r\n\r\n"
    % (CHAT.encode(), b"9" * 30),
    "control": request(headers=b"X-A: a\x01b\r\n"),
    "line feed": request(headers=b"X-A: a\nX-B: c\r\n"),
    "folded": request(headers=b"X-A: a\r\n b\r\n"),
    "chunk size": request(b"zz\r\n{}\r\n0\r\n\r\n", b"Transfer-Encoding: chunked\r\n"),
}


@pytest.mark.parametrize("kind", NO_HTTP)
async def test_what_is_no_http_is_refused_in_openais_shape(kind: str) -> None:
    async with http_pool() as pool:
        answer = await exchange(pool, [NO_HTTP[kind]])
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert error_code(answer) == "bad_request"
        assert not legs(pool.p)
        await pool.idle()


async def test_garbage_behind_a_request_never_lands_in_its_answer() -> None:
    async with http_pool() as pool:
        answer = await exchange(pool, [request(STREAMED, b""), b"\x00garbage\r\n\r\n"])
        _, _, body = answer.partition(b"\r\n\r\n")
        assert b"HTTP/1.1 400" not in body
        await pool.idle()


async def test_a_client_that_writes_faster_than_it_is_answered_is_held_back() -> None:
    """Every answer let in what one read of the socket holds, which are thousands of requests."""
    ask = b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n"
    asked = answered = 0
    async with http_pool() as pool:
        at = urlsplit(pool.origin)
        reader, writer = await asyncio.open_connection(at.hostname, at.port)
        while answered < 1_000:
            if not writer.transport.get_write_buffer_size():
                writer.write(ask * 2_000)
                asked += 2_000
            answered += (await reader.read(65_536)).count(b"HTTP/1.1 200 ")
        writer.transport.abort()
        # Buffers of the system hold some megabytes; a read of 64 KB for each answer would be many times that.
        assert asked * len(ask) < 25_000_000
        await pool.idle()


async def test_no_redirect_is_ever_given() -> None:
    async with http_pool() as pool:
        for path in (CHAT + "/", "/v1/models/", "/health/"):
            answer = await pool.http.post(path, content=BODY, headers={"content-type": "application/json"})
            assert answer.status_code == 404
            assert answer.json()["error"]["code"] == "not_found"


@pytest.mark.parametrize("finest", ["messages", "parts", "member", "members"])
async def test_a_body_of_too_many_values_is_served_cold(finest: str) -> None:
    many = MAX_VALUES + 1
    body = opening("fine")
    if finest == "messages":
        body["messages"] = [{}] * many
    elif finest == "parts":
        body["messages"] = [{"role": "user", "content": [{}] * (many // 2 + 1)}]
    elif finest == "member":
        body["x"] = [[]] * (many // 2 + 1)
    else:
        body |= {f"k{n}": 1 for n in range(many)}
    async with http_pool() as pool:
        answer = await pool.http.post(CHAT, json={**body, "model": "no-such-model"})
        assert answer.status_code in (400, 404)
        assert pool.router.ledger_stats.boundaries == 0
        if finest in ("member", "members"):
            for _ in range(2):
                assert (await pool.turn(body, plan="cold"))["object"] == "chat.completion"
            assert pool.ended().reason == "first_turn"
        await pool.idle()


def test_commas_and_brackets_in_texts_are_no_values() -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": '[{,"' * MAX_VALUES}]}
    found = lineage_of(Endpoint.CHAT, decode_members(json.dumps(body).encode()), b"t")
    assert len(found.keys) == 1


def test_a_prompt_of_many_ids_is_not_too_fine() -> None:
    body = {"model": MODEL, "prompt": list(range(2 * MAX_VALUES))}
    assert lineage_of(Endpoint.COMPLETIONS, decode_members(json.dumps(body).encode()), b"t").keys


async def test_warnings_of_what_is_beneath_come_in_the_routers_own_form() -> None:
    told = io.StringIO()
    kept = {name: logging.getLogger(name) for name in ("router", "uvicorn.error", "asyncio")}
    before = {name: (log.handlers[:], log.level, log.propagate) for name, log in kept.items()}
    try:
        async with http_pool() as pool:
            logs.set_up("json", "info", told)  # after the simulated engines have set up theirs
            await exchange(pool, [b"\x16\x03\x01\x00\r\n\r\n"])
    finally:
        for name, (handlers, level, propagate) in before.items():
            kept[name].handlers[:], kept[name].propagate = handlers, propagate
            kept[name].setLevel(level)
    lines = [json.loads(line) for line in told.getvalue().splitlines()]
    assert [line["level"] for line in lines if line["logger"] == "uvicorn.error"] == ["warning"]
