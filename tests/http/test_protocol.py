"""The short way from a turn to its connection, on raw sockets: framing, and one write where one does."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from router.http.asgi_client import Straight, straight_of
from router.http.listener import listen, origin_of, serve_on
from tests.engines.scripted import soon

POST = b"POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n%s\r\n{}"


@asynccontextmanager
async def front(
    answer: Callable[[Straight | None, Scope, Send], Awaitable[None]],
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection to a server of ours; ``answer`` is its application, given the short way."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body"):
            pass
        await answer(straight_of(scope), scope, send)

    listener = listen("127.0.0.1", 0)
    port = int(origin_of(listener).rpartition(":")[2])
    serving = asyncio.ensure_future(serve_on(listener, app))
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


async def stream(way: Straight | None, scope: Scope, send: Send) -> None:
    """Two parts and an end."""
    assert way is not None
    way.watch()
    way.start(200, [(b"content-type", b"text/event-stream")])
    assert way.put(b"first")
    await asyncio.sleep(0.01)
    assert way.put(b"second", b"6\r\nsecond\r\n")
    assert way.put_last(b"last")
    way.end()


async def test_what_is_written_together_goes_out_together() -> None:
    async with front(stream) as (reader, writer):
        writer.write(POST % b"")
        head = await soon(reader.readuntil(b"\r\n\r\n"))
        assert b"transfer-encoding: chunked\r\n" in head
        assert b"content-type: text/event-stream\r\n" in head
        assert b"connection" not in head
        rest = await soon(reader.readuntil(b"0\r\n\r\n"))
        assert rest == b"5\r\nfirst\r\n6\r\nsecond\r\n4\r\nlast\r\n0\r\n\r\n"
        writer.write(POST % b"")  # the same connection serves the next one
        assert (await soon(reader.readuntil(b"\r\n\r\n"))).startswith(b"HTTP/1.1 200")


async def test_what_is_left_of_a_request_does_not_wait_for_the_garbage_collector() -> None:
    cycles = weakref.WeakSet[Any]()

    async def answer(way: Straight | None, scope: Scope, send: Send) -> None:
        cycles.add(send.__self__)  # type: ignore[attr-defined]
        await stream(way, scope, send)

    async with front(answer) as (reader, writer):
        gc.disable()
        try:
            for _ in range(5):
                writer.write(POST % b"")
                await soon(reader.readuntil(b"0\r\n\r\n"))
            assert len(cycles) == 1, "the newest, which its connection holds"
        finally:
            gc.enable()


async def test_pipelined_requests_are_answered_in_turn() -> None:
    async with front(stream) as (reader, writer):
        writer.write((POST % b"") * 3)
        for _ in range(3):
            assert (await soon(reader.readuntil(b"\r\n\r\n"))).startswith(b"HTTP/1.1 200")
            assert (await soon(reader.readuntil(b"0\r\n\r\n"))).endswith(b"4\r\nlast\r\n0\r\n\r\n")


async def test_a_client_that_wants_its_connection_closed_gets_that() -> None:
    async with front(stream) as (reader, writer):
        writer.write(POST % b"connection: close\r\n")
        whole = await soon(reader.read())
        assert b"connection: close\r\n" in whole
        assert whole.endswith(b"4\r\nlast\r\n0\r\n\r\n")


async def test_an_old_client_has_no_short_way() -> None:
    seen: list[Straight | None] = []

    async def answer(way: Straight | None, scope: Scope, send: Send) -> None:
        seen.append(way)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"whole"})

    async with front(answer) as (reader, writer):
        writer.write((POST % b"").replace(b"HTTP/1.1", b"HTTP/1.0"))
        assert (await soon(reader.read())).endswith(b"\r\n\r\nwhole")
    assert seen == [None]


async def test_nothing_is_kept_back_for_an_end_that_does_not_come() -> None:
    let_end = asyncio.Event()

    async def answer(way: Straight | None, scope: Scope, send: Send) -> None:
        assert way is not None
        way.start(200, [])
        await let_end.wait()
        way.put_last(b"last")
        await let_end.wait()
        await asyncio.sleep(0.01)
        way.end()

    async with front(answer) as (reader, writer):
        writer.write(POST % b"")
        await soon(reader.readuntil(b"\r\n\r\n"))  # without any part of the body
        let_end.set()
        assert await soon(reader.readuntil(b"last\r\n")) == b"4\r\nlast\r\n"
        assert await soon(reader.readuntil(b"0\r\n\r\n")) == b"0\r\n\r\n"


@pytest.mark.parametrize("when", ["before", "meanwhile"])
async def test_a_client_that_leaves_is_called_out(when: str) -> None:
    begun, left = asyncio.Event(), asyncio.Event()

    async def answer(way: Straight | None, scope: Scope, send: Send) -> None:
        assert way is not None
        begun.set()
        if when == "before":
            while not way.is_gone:
                await asyncio.sleep(0.01)
                way.watch()
            left.set()
        else:
            way.when_gone = left.set
            way.watch()
            await left.wait()
        assert way.put(b"nobody gets this")
        way.end()

    async with front(answer) as (_, writer):
        writer.write(POST % b"")
        await soon(begun.wait())
        writer.close()
        await soon(left.wait())


async def test_a_client_that_does_not_read_is_waited_for() -> None:
    drained = asyncio.Event()

    async def answer(way: Straight | None, scope: Scope, send: Send) -> None:
        assert way is not None
        way.start(200, [])
        while way.put(bytes(1024 * 1024)):
            await asyncio.sleep(0)
        await way.drained()
        drained.set()
        way.end()

    async with front(answer) as (reader, writer):
        writer.write(POST % b"")
        await soon(reader.readuntil(b"\r\n\r\n"))
        assert not drained.is_set()
        while not (await soon(reader.read(1 << 20))).endswith(b"0\r\n\r\n"):
            pass
        assert drained.is_set()
