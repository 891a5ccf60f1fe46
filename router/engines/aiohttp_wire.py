"""What is changed in aiohttp's connections and requests for ``AiohttpUpstream``.

Some of aiohttp's private names are used here and in ``aiohttp_upstream``; the conformance suite in
``tests/engines`` fails where an aiohttp release changes what is behind them.
"""

import asyncio
import functools
from collections.abc import Callable
from typing import Any

import aiohttp
from aiohttp.abc import AbstractStreamWriter
from aiohttp.client_proto import ResponseHandler
from aiohttp.client_reqrep import ConnectionKey
from aiohttp.connector import Connection
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.payload import Payload

_WRITE_PIECE_BYTES = 65_536


class Wire(ResponseHandler):
    """One connection, and what aiohttp does not tell of it."""

    uses = 0
    """How many requests were put on it."""
    heard = False
    """Whether any byte came since the request it serves now."""

    def set_response_params(self, **params: Any) -> None:
        # aiohttp calls this once for each request that it puts on the connection.
        self.uses += 1
        self.heard = False
        super().set_response_params(**params)

    def data_received(self, data: bytes) -> None:
        self.heard = True
        payload = self._payload
        super().data_received(data)
        if payload is not None and isinstance(self._exception, HttpProcessingError):
            # The compiled parser gives up in mid-body without telling the body's reader.
            fail(payload, aiohttp.ClientPayloadError(f"not HTTP: {self._exception}"))

    def connection_lost(self, exc: BaseException | None) -> None:
        # Else a reset would end a body that is delimited by the end of the connection, as if it were whole.
        if exc is not None and self._payload is not None:
            fail(self._payload, aiohttp.ClientPayloadError(f"connection lost: {exc}"))
        super().connection_lost(exc)

    def close(self) -> None:
        # A transport's own close first writes what is buffered, which never ends when the engine does not
        # read; with TLS it also waits for a farewell.
        self.abort()


class Request(aiohttp.ClientRequest):
    """A request that tells when it gets a connection, and when it has left."""

    on_connection: Callable[[Wire], None] | None = None
    on_sent: Callable[[], None] | None = None

    async def send(self, conn: Connection) -> aiohttp.ClientResponse:
        wire = conn.protocol
        if isinstance(wire, Wire):
            if self.on_connection is not None:
                self.on_connection(wire)
            if wire.should_close:
                # Something came while the connection was idle. It answers nothing of ours, and would be
                # taken for the answer to this request.
                wire.heard = False
                raise aiohttp.ClientConnectionResetError("the engine spoke out of turn")
        response = await super().send(conn)
        if self.on_sent is not None:
            self.on_sent()
        return response


class Body(Payload):
    """Writes a large body piece by piece, so that an early answer is seen and the buffer stays small."""

    _autoclose = True

    def __init__(self, body: bytes) -> None:
        super().__init__(body)
        self._size = len(body)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return str(self._value, encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        rest = memoryview(self._value)
        for start in range(0, len(rest), _WRITE_PIECE_BYTES):
            await writer.write(rest[start : start + _WRITE_PIECE_BYTES])


def use_wires(connector: aiohttp.BaseConnector) -> None:
    """Make a connector open ``Wire`` connections. Call it before the first one."""
    factory: Any = functools.partial(Wire, loop=asyncio.get_running_loop())
    connector._factory = factory


def drop_idle(connector: aiohttp.BaseConnector, key: ConnectionKey) -> None:
    """Close every idle connection to where ``key`` leads."""
    for wire, _ in connector._conns.pop(key, ()):
        wire.abort()


def fail(body: aiohttp.StreamReader, error: Exception) -> None:
    """End a body with an error, unless it has ended already."""
    if not body.is_eof() and body.exception() is None:
        body.set_exception(error)


def unread(body: aiohttp.StreamReader) -> bytes:
    """What had come of a body before it broke; aiohttp reports the break first and keeps this back."""
    return body._read_nowait(-1)
