"""An engine that says what a test tells it to, byte by byte, and a router that has it as its decode node."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx

from router.sim.config import EngineConfig
from tests.e2e.http_pool import CHAT, Body, direct_client, router_at, sim_servers
from tests.engines.scripted import Peer, Seen, engine, soon

SSE_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


@dataclass(slots=True)
class SpokenEngine:
    """Answers probes by itself; a request to generate waits for ``say``."""

    said: asyncio.Queue[bytes | None] = field(default_factory=asyncio.Queue)
    asked: list[Seen] = field(default_factory=list)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    """The connection of the newest request to generate was closed from the other side."""

    async def serve(self, peer: Peer) -> None:
        while True:
            request = await peer.request()
            if request.line.startswith("GET "):
                known = request.line.startswith("GET /health")
                await peer.answer(b"", status="200 OK" if known else "404 Not Found")
                continue
            self.asked.append(request)
            await self._answer(peer)
            return

    async def _answer(self, peer: Peer) -> None:
        saying = asyncio.create_task(self._say_all(peer))
        gone = asyncio.create_task(peer.wait_gone())
        try:
            await asyncio.wait((saying, gone), return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                self.left.set()
        finally:
            saying.cancel()
            gone.cancel()
            await asyncio.gather(saying, gone, return_exceptions=True)

    async def _say_all(self, peer: Peer) -> None:
        while (data := await self.said.get()) is not None:
            peer.writer.write(data)
            await peer.writer.drain()  # for as long as nobody reads

    def say(self, data: bytes) -> None:
        """Send these bytes as they are."""
        self.said.put_nowait(data)

    def chunk(self, data: bytes) -> None:
        """Send these bytes as one chunk of a body."""
        self.say(b"%x\r\n%s\r\n" % (len(data), data))

    def end(self) -> None:
        """End the body as HTTP ends one."""
        self.say(b"0\r\n\r\n")
        self.hang_up()

    def hang_up(self) -> None:
        self.said.put_nowait(None)


@dataclass(slots=True)
class Reading:
    """A streamed answer as a client reads it, which remembers what it has not looked at yet."""

    answer: httpx.Response
    pieces: AsyncIterator[bytes]
    held: bytearray = field(default_factory=bytearray)

    async def expect(self, data: bytes) -> None:
        """Read until exactly ``data`` has come. Raises AssertionError, or TimeoutError if it does not."""
        while len(self.held) < len(data):
            self.held += await soon(anext(self.pieces))
        assert bytes(self.held) == data
        self.held.clear()

    async def rest(self) -> bytes:
        async for piece in self.pieces:
            self.held += piece
        return bytes(self.held)


@asynccontextmanager
async def spoken_pool(**options: object) -> AsyncIterator[tuple[SpokenEngine, httpx.AsyncClient]]:
    """A simulated P, a spoken D, and a client of the router in front of them."""
    spoken = SpokenEngine()
    async with (
        engine(spoken.serve) as here,
        sim_servers([EngineConfig()]) as (p,),
        router_at([p.origin], [here.origin], **options) as (_, origin),
        direct_client(origin) as http,
    ):
        yield spoken, http


@asynccontextmanager
async def reading(http: httpx.AsyncClient, body: Body) -> AsyncIterator[Reading]:
    """A streamed request whose headers have come."""
    async with http.stream("POST", CHAT, json={**body, "stream": True}) as answer:
        yield Reading(answer, answer.aiter_raw())
