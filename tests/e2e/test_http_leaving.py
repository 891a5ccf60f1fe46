"""A client that leaves, in whatever phase: the open leg is closed at once, and nothing stays behind.

On asyncio's own event loop, where the test can look inside, and with ``boomerang serve`` in a process of its
own, on the loop that serves in production.
"""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from router.sim.config import EngineConfig
from router.sim.profiles import Profile
from router.sim.server import SimServer
from router.telemetry.facts import EndedBy, Phase
from tests.e2e.http_pool import (
    CHAT,
    PATIENCE_S,
    STOCK_33,
    Body,
    HttpPool,
    carries_handle,
    continued,
    direct_client,
    fault,
    http_pool,
    legs,
    opening,
    router_at,
    router_process,
    sim_servers,
    total,
    until,
)
from tests.e2e.spoken_engine import SSE_HEAD, SpokenEngine, reading, spoken_pool
from tests.engines.scripted import engine

HEAD = b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
AT_ONCE_S = 5.0
"""The promise is one second; a busy machine gets more before a test says that it was broken."""

SLOW = Profile(output_ms_per_token=20.0)


async def back_to_zero(http: httpx.AsyncClient) -> None:
    """The gauges of what is open are zero, soon. Raises TimeoutError."""
    async with asyncio.timeout(PATIENCE_S):
        for gauge in ("boomerang_open_turns", "boomerang_open_legs"):
            while total((await http.get("/metrics")).text, gauge):
                await asyncio.sleep(0.01)


@dataclass(frozen=True, slots=True)
class Front:
    """A router as its clients see it, and the engines behind it."""

    http: httpx.AsyncClient
    p: SimServer
    d: SimServer

    @property
    def port(self) -> int:
        port = self.http.base_url.port
        assert port is not None
        return port

    async def metric(self, name: str, **labels: str) -> float:
        return total((await self.http.get("/metrics")).text, f"boomerang_{name}", **labels)

    async def nothing_is_open(self) -> None:
        """Raises AssertionError."""
        for server in (self.p, self.d):
            await until(lambda engine=server.engine: not any(engine.open_requests.values()), "open requests")  # type: ignore[misc]
            assert not server.engine.running
        await back_to_zero(self.http)


@asynccontextmanager
async def _in_this_process(config: EngineConfig) -> AsyncIterator[Front]:
    async with http_pool(config) as pool:
        yield Front(pool.http, pool.p, pool.d)


@asynccontextmanager
async def _in_its_own(config: EngineConfig) -> AsyncIterator[Front]:
    async with (
        sim_servers([config, config]) as (p, d),
        router_process([p.origin], [d.origin]) as (_, origin),
        direct_client(origin) as http,
    ):
        yield Front(http, p, d)


FRONTS = {"asyncio": _in_this_process, "serve": _in_its_own}


class RawClient:
    """A connection that a test can close, reset, or leave unread."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setblocking(False)

    def small_window(self) -> "RawClient":
        """As little as the kernel lets a receiver take; for a client that does not read."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        return self

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._socket, data)

    async def post(self, body: Body, path: str = CHAT) -> None:
        raw = json.dumps(body).encode()
        await self.send(HEAD % (path.encode(), len(raw)) + raw)

    async def receive(self, least_bytes: int = 1) -> bytes:
        got = b""
        while len(got) < least_bytes:
            piece = await asyncio.get_running_loop().sock_recv(self._socket, 65_536)
            assert piece, got
            got += piece
        return got

    def leave(self) -> None:
        self._socket.close()


async def seen_to_leave(engine: Any, phase: str) -> None:
    """The engine has the request aborted in that phase, soon. Raises AssertionError."""
    took_s = await until(lambda: bool(engine.aborts), "the abort")
    assert took_s < AT_ONCE_S
    assert [record.phase for record in engine.aborts] == [phase]


def leave_closed(client: RawClient) -> None:
    client.leave()


def leave_reset(client: RawClient) -> None:
    client._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    client.leave()


def leave_half(client: RawClient) -> None:
    client._socket.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("front", FRONTS.values(), ids=FRONTS)
async def test_leaving_in_every_phase(front: Callable[[EngineConfig], Any]) -> None:
    slow = EngineConfig(version="0.33.0", profile=Profile(prefill_ms=1.0, output_ms_per_token=30.0))
    async with front(slow) as here:
        departures = 0
        for leave in (leave_closed, leave_reset, leave_half):
            for stream in (True, False):
                for at in (here.p, here.d):
                    # Neither answers; the simulated engine does not even begin.
                    fault(at, hang=True, path=CHAT)
                    client = RawClient(here.port)
                    await client.post(opening(stream=stream))
                    await until(lambda at=at: bool(at.engine.open_requests.get(CHAT)), "the leg")  # type: ignore[misc]
                    leave(client)
                    took_s = await until(lambda at=at: not at.engine.open_requests[CHAT], "the abort")  # type: ignore[misc]
                    assert took_s < AT_ONCE_S
                    client.leave()
                    await here.nothing_is_open()
                    departures += 1
                    assert await here.metric("client_departures_total") == departures
            client = RawClient(here.port)
            await client.post(opening(stream=True, min_tokens=2_000, max_tokens=2_000))
            await client.receive(2_000)
            leave(client)
            await seen_to_leave(here.d.engine, "decode")
            client.leave()
            here.d.engine.aborts.clear()
            await here.nothing_is_open()
            departures += 1
            assert await here.metric("client_departures_total", phase="stream") == departures / 5
        assert await here.metric("client_departures_total", phase="prefill") == 6
        assert await here.metric("client_departures_total", phase="first_token") == 6
        assert (await here.http.post(CHAT, json=opening(max_tokens=1))).status_code == 200
        assert not here.d.engine.pins.by_request or await here.metric("handles_total", outcome="stored")


@pytest.mark.parametrize("router", [router_at, router_process])
async def test_a_client_that_does_not_read_holds_back_its_engine_and_can_leave(router: Any) -> None:
    spoken = SpokenEngine()
    event = b'data: {"choices":[{"index":0,"delta":{"content":"' + b"x" * 65_536 + b'"}}]}\n\n'
    async with (
        engine(spoken.serve) as d,
        sim_servers([STOCK_33]) as (p,),
        router([p.origin], [d.origin]) as (_, origin),
        direct_client(origin) as http,
    ):
        spoken.say(SSE_HEAD)
        for _ in range(2_000):  # more than all buffers on the way hold
            spoken.chunk(event)
        client = RawClient(int(origin.rpartition(":")[2])).small_window()
        await client.post(opening(stream=True))
        await until(lambda: spoken.said.qsize() < 2_000, "the first event")
        before, unchanged = spoken.said.qsize(), 0
        while unchanged < 20:
            await asyncio.sleep(0.01)
            now = spoken.said.qsize()
            before, unchanged = now, unchanged + 1 if now == before else 0
        assert before > 0, "the engine is held back"
        client.leave()
        async with asyncio.timeout(AT_ONCE_S):
            await spoken.left.wait()
        await back_to_zero(http)
        metrics = (await http.get("/metrics")).text
        assert total(metrics, "boomerang_client_departures_total", phase="stream") == 1


@pytest.mark.parametrize("front", FRONTS.values(), ids=FRONTS)
async def test_leaving_while_the_body_is_on_its_way(front: Callable[[EngineConfig], Any]) -> None:
    async with front(STOCK_33) as here:
        client = RawClient(here.port)
        await client.send(HEAD % (CHAT.encode(), 1_000) + b'{"model":')
        await asyncio.sleep(0.05)
        client.leave()
        await here.nothing_is_open()
        assert not legs(here.p)
        assert not legs(here.d)
        assert (await here.http.post(CHAT, json=opening(max_tokens=1))).status_code == 200


async def test_the_turn_says_who_ended_it_and_when() -> None:
    async with http_pool() as pool:
        fault(pool.p, hang=True, path=CHAT)
        client = RawClient(int(pool.origin.rpartition(":")[2]))
        await client.post(opening())
        await until(lambda: bool(legs(pool.p)), "the prefill leg")
        client.leave()
        await pool.idle()
        turn = pool.ended()
        assert (turn.ended_by, turn.phase, turn.status) == (EndedBy.CLIENT, Phase.PREFILL, 499)
        assert not legs(pool.d), "no decode leg for nobody"


async def one_turn(pool: HttpPool) -> Body:
    """A conversation whose first turn has left a handle; its second turn."""
    return continued(opening(), await pool.turn(opening()))


async def test_a_handle_that_was_not_sent_is_given_back() -> None:
    """The client leaves while the router renders its prompt on P."""
    async with http_pool() as pool:
        second = await one_turn(pool)
        fault(pool.p, hang=True, path="/tokenize")
        client = RawClient(int(pool.origin.rpartition(":")[2]))
        await client.post(second)
        await until(lambda: bool(pool.p.engine.open_requests.get("/tokenize")), "the rendering")
        client.leave()
        await until(lambda: not pool.p.engine.open_requests["/tokenize"], "its end")
        await pool.idle()
        assert pool.ended().phase is Phase.VERIFY
        assert await pool.metric("handles_total", outcome="given_back") == 1
        await pool.turn(second, plan="local")
        pool.sound()


async def test_a_handle_that_was_sent_is_used_up() -> None:
    async with http_pool() as pool:
        second = await one_turn(pool)
        fault(pool.p, hang=True, with_handle=True)
        client = RawClient(int(pool.origin.rpartition(":")[2]))
        await client.post(second)
        await until(lambda: carries_handle(legs(pool.p)[-1]), "the leg with the handle")
        client.leave()
        await pool.idle()
        await pool.turn(second, plan="cold")
        assert sum(map(carries_handle, legs(pool.p))) == 1
        pool.sound()


async def test_a_stream_that_a_client_leaves_leaves_nothing_behind() -> None:
    config = EngineConfig(version="0.33.0", profile=SLOW)
    async with http_pool(config) as pool:
        client = RawClient(int(pool.origin.rpartition(":")[2]))
        body = opening(stream=True, min_tokens=500, max_tokens=500)
        await client.post(body)
        await client.receive(1_000)
        client.leave()
        await pool.idle()
        await seen_to_leave(pool.d.engine, "decode")
        assert await pool.metric("handles_total", outcome="stored") == 0
        assert not pool.d.engine.pins.by_request


async def test_a_client_that_leaves_after_the_end_has_had_its_turn() -> None:
    async with http_pool() as pool:
        client = RawClient(int(pool.origin.rpartition(":")[2]))
        await client.post(opening(stream=True))
        got = b""
        while b"[DONE]" not in got:
            got += await client.receive()
        client.leave()
        await pool.idle()
        assert pool.ended().ended_by is EndedBy.ENGINE
        assert await pool.metric("handles_total", outcome="stored") == 1


async def test_a_client_of_an_engine_that_says_nothing_more_can_leave() -> None:
    async with spoken_pool() as (d, http):
        d.say(SSE_HEAD)
        d.chunk(b"data: {}\n\n")
        async with reading(http, opening()) as client:
            await client.expect(b"data: {}\n\n")
        async with asyncio.timeout(AT_ONCE_S):
            await d.left.wait()


async def test_many_clients_that_leave_at_any_moment_leave_nothing_open() -> None:
    profile = Profile(prefill_ms=2.0, output_ms_per_token=1.0)
    async with http_pool(EngineConfig(version="0.33.0", profile=profile)) as pool:
        port = int(pool.origin.rpartition(":")[2])

        async def come_and_go(number: int) -> None:
            client = RawClient(port)
            await client.post(opening(f"c{number % 7}", stream=number % 2 == 0, max_tokens=10))
            await asyncio.sleep(number % 20 * 0.004)
            client.leave()

        for start in range(0, 120, 20):
            await asyncio.gather(*(come_and_go(start + n) for n in range(20)))
        await pool.idle()
        pool.sound()
        assert pool.router.open_turns.count == 0
