"""A second server in the same loop."""

import asyncio
import socket

import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from router.http.listener import listen, origin_of, serve_on
from tests.e2e.http_pool import direct_client


async def hello(scope: Scope, receive: Receive, send: Send) -> None:
    await PlainTextResponse("hello")(scope, receive, send)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_it_serves_until_it_is_cancelled(host: str) -> None:
    listener = listen(host, 0)
    origin = origin_of(listener)
    serving = asyncio.ensure_future(serve_on(listener, hello))
    async with direct_client(origin) as http:
        assert (await http.get("/")).text == "hello"
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
    assert listener.fileno() < 0
    port = int(origin.rpartition(":")[2])
    with listen(host, port) as again:
        assert origin_of(again) == origin, "the port is free again at once"


def test_an_address_that_is_taken_is_an_error() -> None:
    with listen("127.0.0.1", 0) as taken, pytest.raises(OSError, match="in use"):
        listen("127.0.0.1", taken.getsockname()[1])


def test_answers_do_not_wait_for_more_to_send() -> None:
    with listen("127.0.0.1", 0) as listener:
        assert listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
