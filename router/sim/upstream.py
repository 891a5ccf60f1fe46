"""Simulated engines behind the router's own HTTP client protocol, in process and without sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager

from router.engines.upstream import Answer, Broken, Call, NeverSent, Shortcut, Sink, TimedOut, TooLarge
from router.sim.api import handle
from router.sim.engine import SimEngine
from router.sim.reply import Reply
from router.sim.sequence import ConnectionCut


class SimStream:
    """An answer of a simulated engine whose body is still coming."""

    def __init__(self, reply: Reply, call: Call) -> None:
        self.status, self.headers = reply.status, reply.headers
        self._reply, self._call = reply, call
        self._body = reply.body

    async def chunks(self) -> AsyncIterator[bytes]:
        while (chunk := await self._next()) is not None:
            yield chunk

    async def pump(self, sink: Sink, shortcut: Shortcut | None = None) -> bool:
        while (chunk := await self._next()) is not None:
            if not sink(chunk, None):
                return False
        return True

    async def _next(self) -> bytes | None:
        """The next piece of the body; None at its end."""
        if self._reply.events is None:
            body, self._body = self._body, b""
            return body or None
        idle_s = self._call.limits.idle_s
        try:
            async with asyncio.timeout(idle_s):
                return await anext(self._reply.events)
        except StopAsyncIteration:
            return None
        except TimeoutError:
            raise TimedOut("idle", idle_s or 0.0) from None
        except ConnectionCut:
            raise Broken("the engine broke the connection") from None

    async def read(self) -> bytes:
        return b"".join([chunk async for chunk in self.chunks()])


class SimUpstream:
    """An ``Upstream`` that calls simulated engines by their origin.

    An origin that is not in ``engines`` refuses connections; take one out to let an engine be down.
    """

    def __init__(self, engines: Mapping[str, SimEngine]) -> None:
        self.engines = dict(engines)
        self._open: dict[str, int] = {}

    async def send(self, origin: str, call: Call) -> Answer:
        async with self.stream(origin, call) as stream:
            body = await stream.read()
        if len(body) > call.limits.max_answer_bytes:
            raise TooLarge(f"an answer of {len(body)} bytes")
        return Answer(stream.status, stream.headers, body)

    @asynccontextmanager
    async def stream(self, origin: str, call: Call) -> AsyncGenerator[SimStream, None]:
        engine = self.engines.get(origin)
        if engine is None:
            raise NeverSent(f"nothing listens at {origin}")
        headers = {name.lower(): value for name, value in call.headers}
        self._open[origin] = self._open.get(origin, 0) + 1
        try:
            if call.meanwhile is not None:
                call.meanwhile()
            reply = await self._reply(engine, call, headers)
            try:
                yield SimStream(reply, call)
            finally:
                await reply.aclose()
        finally:
            self._open[origin] -= 1

    @staticmethod
    async def _reply(engine: SimEngine, call: Call, headers: Mapping[str, str]) -> Reply:
        answer_s = call.limits.answer_s
        try:
            async with asyncio.timeout(answer_s):
                return await handle(engine, call.method, call.path, headers, call.body)
        except TimeoutError:
            raise TimedOut("answer", answer_s or 0.0) from None
        except ConnectionCut:
            raise Broken("the engine broke the connection") from None

    def open_calls(self) -> Mapping[str, int]:
        return {origin: count for origin, count in self._open.items() if count}

    async def close(self) -> None:
        self.engines.clear()
