"""What an engine answers, before a socket or a test has it; and what faults do to its bytes."""

from __future__ import annotations

import gzip
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing

import msgspec

from router.sim.clock import Clock
from router.sim.faults import Fault
from router.sim.sequence import ConnectionCut

Headers = tuple[tuple[str, str], ...]
Events = AsyncGenerator[bytes, None]
_JSON: Headers = (("content-type", "application/json"),)
_SSE: Headers = (("content-type", "text/event-stream; charset=utf-8"),)
_LINE_ENDS = {"lf": b"\n", "crlf": b"\r\n", "cr": b"\r"}


class Reply:
    """An answer: whole, or as a stream. Whoever has it closes it."""

    def __init__(
        self, status: int, headers: Headers, body: bytes = b"", events: Events | None = None
    ) -> None:
        self.status, self.headers, self.body = status, headers, body
        self.events = events
        self.on_close: Callable[[], None] | None = None

    @classmethod
    def json(cls, value: object, status: int = 200) -> Reply:
        return cls(status, _JSON, msgspec.json.encode(value))

    @classmethod
    def stream(cls, events: Events) -> Reply:
        return cls(200, _SSE, events=events)

    @classmethod
    def error(cls, message: str, status: int, kind: str, param: str | None = None) -> Reply:
        return cls.json(error_object(message, status, kind, param), status)

    def with_fault(self, fault: Fault, clock: Clock) -> Reply:
        """The same answer as a fault lets it out. Raises ConnectionCut where nothing may come out."""
        if self.events is not None:
            self.events = _disturbed(self.events, fault, clock)
        elif fault.cut_after_chunks is not None:
            raise ConnectionCut
        elif fault.gzip:
            self.headers = (*self.headers, ("content-encoding", "gzip"))
            self.body = gzip.compress(self.body)
        if fault.close:
            self.headers = (*self.headers, ("connection", "close"))
        return self

    async def aclose(self) -> None:
        """End the answer; a stream that has not ended is aborted in the engine."""
        try:
            if self.events is not None:
                await self.events.aclose()
        finally:
            if self.on_close is not None:
                self.on_close()
                self.on_close = None


def error_object(message: str, status: int, kind: str, param: str | None = None) -> object:
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}


def event(value: object) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


DONE = b"data: [DONE]\n\n"


async def _disturbed(events: Events, fault: Fault, clock: Clock) -> AsyncGenerator[bytes, None]:
    """A stream's events with the fault's delays, line ends, error, cut and splits."""
    sent = 0
    async with aclosing(events):
        async for one in _timed(events, fault, clock):
            if fault.error_after_chunks == sent:
                yield event(error_object("Internal server error", 500, "InternalServerError"))
                yield DONE
                return
            data = one.replace(b"\n", _LINE_ENDS[fault.line_end])
            if fault.cut_after_chunks == sent:
                if fault.cut_mid_event:
                    yield data[: len(data) // 2]
                raise ConnectionCut
            sent += 1
            size = fault.split_bytes or len(data)
            for offset in range(0, len(data), size):
                yield data[offset : offset + size]


async def _timed(events: Events, fault: Fault, clock: Clock) -> AsyncIterator[bytes]:
    async for one in events:
        if fault.delay_chunk_s:
            await clock.sleep(fault.delay_chunk_s)
        yield one
