"""A load of streaming clients on a bare protocol, each a conversation that grows turn by turn."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, cast
from urllib.parse import urlsplit

import httptools
import msgspec

from router.bench.engine import MODEL

GIVE_UP_S: Final = 120.0


class NoAnswer(Exception):
    """An answer that is no complete stream."""


@dataclass(frozen=True, slots=True)
class TurnSeen:
    """One streamed answer. Times in seconds; ``gaps_s`` between what arrived."""

    first_s: float
    total_s: float
    events: int
    plan: str


class _Stream(asyncio.Protocol):
    """One connection that is used turn after turn."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[None] = self._loop.create_future()
        self._parser = httptools.HttpResponseParser(self)
        self._first_s: float | None = None
        self._events, self._end, self._plan = 0, b"", ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._done.done():
            self._done.set_exception(NoAnswer("the connection was closed"))

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"x-boomerang-plan":
            self._plan = value.decode()

    def on_body(self, body: bytes) -> None:
        if self._first_s is None:
            self._first_s = time.perf_counter()
        self._events += body.count(b"data: ")
        self._end = (self._end + body)[-64:]

    def on_message_complete(self) -> None:
        if not self._done.done():
            self._done.set_result(None)

    async def turn(self, request: bytes) -> TurnSeen:
        """Send a request and read its stream. Raises NoAnswer."""
        self._parser = httptools.HttpResponseParser(self)
        self._done = self._loop.create_future()
        self._first_s = None
        self._events, self._end, self._plan = 0, b"", ""
        started_s = time.perf_counter()
        self.transport.write(request)
        async with asyncio.timeout(GIVE_UP_S):
            await self._done
        return self._seen(started_s)

    def _seen(self, started_s: float) -> TurnSeen:
        status = self._parser.get_status_code()
        if status != 200 or b"data: [DONE]" not in self._end or self._first_s is None:
            raise NoAnswer(f"status {status}: {self._end!r}")
        ended_s = time.perf_counter()
        return TurnSeen(self._first_s - started_s, ended_s - started_s, self._events, self._plan)


def requests(name: str, turns: int, history_bytes: int) -> list[bytes]:
    """The requests of a conversation, each with the whole history, as they go over the wire."""
    text = " ".join(f"{name}{n}" for n in range(history_bytes // (len(name) + 5)))
    messages: list[dict[str, Any]] = [{"role": "system", "content": text}]
    written = []
    for number in range(turns):
        messages += [{"role": "user", "content": f"question {number} of {name}"}]
        body = msgspec.json.encode(
            {"model": MODEL, "messages": messages, "stream": True, "max_tokens": 64, "temperature": 0}
        )
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
            f"authorization: Bearer sk-bench\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        written.append(head.encode() + body)
        messages += [{"role": "assistant", "content": "".join(f" word{n}" for n in range(62))}]
    return written


async def play(origin: str, conversations: Sequence[Sequence[bytes]], *, over_s: float) -> list[TurnSeen]:
    """Play all conversations, each turn by turn. Raises NoAnswer and OSError.

    They begin one after another, spread evenly over ``over_s`` seconds, and go on so: all at the same instant
    would measure how long the queue of a burst is that no clients of a service make.
    """
    parts = urlsplit(origin)

    async def converse(turns: Sequence[bytes], begins_after_s: float) -> list[TurnSeen]:
        await asyncio.sleep(begins_after_s)
        _, stream = await asyncio.get_running_loop().create_connection(
            _Stream, parts.hostname or "", parts.port or 80
        )
        try:
            return [await stream.turn(request) for request in turns]
        finally:
            stream.transport.close()

    step_s = over_s / len(conversations)
    begun = [converse(turns, number * step_s) for number, turns in enumerate(conversations)]
    seen = await asyncio.gather(*begun)
    return [turn for turns in seen for turn in turns]
