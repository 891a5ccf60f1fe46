"""What is changed in uvicorn's HTTP/1 connections.

* **An offer to upgrade is declined, not obeyed.** uvicorn's parser stops reading at an ``Upgrade`` header,
  and the request's body is lost: Java's HttpClient offers ``h2c`` with every first request. RFC 9110, section
  7.8: a server may ignore ``Upgrade`` and go on as if it was not there.
* **HTTP/1.0 gets no chunks** (RFC 9112, section 6.1): an answer of unknown length ends with its connection.
* **A head has to end.** Neither uvicorn nor its parser bounds what a client sends without ever ending its
  headers, and they keep all of it.
* **Trailers are not headers.** The parser reports them alike, so that one could pass for a gateway's own.
* **Nothing is read while requests wait** behind another on their connection. uvicorn reads on with each
  answer, so that a client that only writes makes the queue as long as it likes.
* **Refusals are in OpenAI's shape**, also of what is no HTTP.
* **There is a short way** from a turn to its connection (``router/http/asgi_client``): parts of a body go to
  the transport as they come, and a client's leaving is called out.
"""

import asyncio
import weakref
from collections.abc import Callable, Sequence, Sized
from typing import Any, Final

import httptools
from starlette.types import Message, Send
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from router import errors
from router.http.asgi_client import STRAIGHT

MAX_HEAD_BYTES: Final = 65_536
"""Of a request's line and headers, of its trailers, and of anything else that is not its body."""

_OF_UPGRADES: Final = frozenset({b"upgrade", b"http2-settings"})
_UNREADABLE: Final = errors.BadRequest("this is no HTTP/1.1 request")


class _Flow(FlowControl):
    """What is read of a connection, and written to it."""

    def __init__(self, transport: asyncio.Transport, waiting: Sized) -> None:
        """``waiting``: the requests that are read, and that others are answered before."""
        super().__init__(transport)
        self._waiting = waiting

    def resume_reading(self) -> None:
        if not self._waiting:
            super().resume_reading()


class StraightWay:
    """The short way to the connection of one HTTP/1.1 request; an ``asgi_client.Straight``.

    What is written within one turn of the loop goes out together: a head with the first part of its body, the
    last part with the end. Each write of its own costs as much as all else that an event does here.
    """

    __slots__ = ("_cycle", "_late", "_protocol", "flow", "is_gone", "when_gone", "write")

    def __init__(self, protocol: "Protocol", cycle: RequestResponseCycle) -> None:
        self._protocol = protocol
        # It holds this object, in its scope: with a ring of the two each request's leftovers would wait for
        # the garbage collector, which looks seldom.
        self._cycle = weakref.ref(cycle)
        self.flow, self.write = cycle.flow, cycle.transport.write
        self._late = b""
        self.is_gone = False
        self.when_gone: Callable[[], None] | None = None

    def whole_body(self) -> bytes | None:
        cycle = self._cycle()
        if cycle is None or cycle.more_body or cycle.disconnected:
            return None
        body, cycle.body = cycle.body, bytearray()
        return bytes(body)

    def start(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        cycle = self._cycle()
        if cycle is None:
            return  # nobody serves this request any more
        cycle.response_started, cycle.chunked_encoding = True, True
        cycle.waiting_for_100_continue = False
        lines = [STATUS_LINE[status]]
        for name, value in (*cycle.default_headers, *headers):
            lines += (name, b": ", value, b"\r\n")
        if not cycle.keep_alive:
            lines.append(b"connection: close\r\n")
        lines.append(b"transfer-encoding: chunked\r\n\r\n")
        self._put_late(b"".join(lines))

    def put(self, data: bytes, chunk: bytes | None = None) -> bool:
        if self.is_gone:
            return True
        framed = chunk or b"%x\r\n%b\r\n" % (len(data), data)
        if self._late:
            framed, self._late = self._late + framed, b""
        self.write(framed)
        return not self.flow.write_paused

    def put_last(self, data: bytes) -> bool:
        self._put_late(b"%x\r\n%b\r\n" % (len(data), data))
        return not self.flow.write_paused

    def end(self) -> None:
        cycle = self._cycle()
        if cycle is None or self.is_gone:
            return
        late, self._late = self._late, b""
        self.write(late + b"0\r\n\r\n")
        cycle.response_complete = True
        cycle.message_event.set()
        if not cycle.keep_alive:
            cycle.transport.close()
        cycle.on_response()

    @property
    def is_owing(self) -> bool:
        return bool(self._late)

    async def drained(self) -> None:
        self._send_late()
        await self.flow.drain()

    def drop(self) -> None:
        cycle = self._cycle()
        if cycle is not None:
            cycle.disconnected = True
        self._protocol.transport.abort()  # closing would wait until what is unread is read

    def watch(self) -> None:
        self._protocol.serves = self
        self.is_gone = self._protocol.is_gone
        self.flow.resume_reading()  # an end of the connection is not seen while nothing is read of it

    def _put_late(self, data: bytes) -> None:
        if not self._late:
            self._protocol.loop.call_soon(self._send_late)
        self._late += data

    def _send_late(self) -> None:
        late, self._late = self._late, b""
        if late and not self.is_gone:
            self.write(late)


class Protocol(HttpToolsProtocol):
    """One connection of a client."""

    is_gone = False
    """Whether the client has closed it."""
    serves: StraightWay | None = None
    """The request that is told when it does: the one that is answered now, of those that wait in it."""

    _declining = False
    """Whether the request that is being read offers an upgrade, and will be read again without."""
    _in_body = False
    _moved_on = False
    """Whether what came last has ended a head, or was of a body."""
    _waiting_bytes = 0
    """What has come since."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = _Flow(transport, self.pipeline)

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        self._moved_on = False
        rest = memoryview(data)
        try:
            while rest:
                try:
                    self.parser.feed_data(rest)
                    break
                except httptools.HttpParserUpgrade as offer:
                    rest = rest[offer.args[0] :]
                    self._decline()
        except httptools.HttpParserError:
            self._refuse(_UNREADABLE)
            return
        self._waiting_bytes = 0 if self._moved_on else self._waiting_bytes + len(data)
        if self._waiting_bytes > MAX_HEAD_BYTES:
            self._refuse(errors.HeadTooLarge(f"the headers are larger than {MAX_HEAD_BYTES} bytes"))

    def on_message_begin(self) -> None:
        self._declining = self._in_body = False
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_body:
            # As uvicorn's own, without a frame more for each header.
            name = name.lower()
            if name == b"expect" and value.lower() == b"100-continue":
                self.expect_100_continue = True
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._moved_on = self._in_body = True
        if self.parser.should_upgrade():
            self._declining = True
            return
        super().on_headers_complete()
        # The cycle's task is made, and has not begun to run.
        if self.scope["http_version"] != "1.0":
            self.scope["extensions"] = {STRAIGHT: StraightWay(self, self.cycle)}  # type: ignore[dict-item]
        else:
            self.cycle.send = _until_close(self.cycle)  # type: ignore[method-assign, assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_gone = True
        super().connection_lost(exc)
        self.pipeline.clear()  # they point back here; nobody waits for a collection to be rid of them
        serves, self.serves = self.serves, None
        if serves is not None:
            serves.is_gone = True
            if serves.when_gone is not None:
                serves.when_gone()

    def on_body(self, body: bytes) -> None:
        self._moved_on = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._moved_on = True
        if not self._declining:
            super().on_message_complete()

    def _decline(self) -> None:
        """Read the head again without the offer. Raises HttpParserError for what has no other meaning."""
        method: bytes = self.parser.get_method()
        if method == b"CONNECT":
            raise httptools.HttpParserError("a tunnel")
        lines = [b"%b %b HTTP/1.1" % (method, self.url)]
        for name, value in self.headers:
            if name == b"connection":
                tokens = [token.strip() for token in value.split(b",")]
                kept = [token for token in tokens if token.lower() not in _OF_UPGRADES]
                lines.append(b"connection: " + b", ".join(kept))
            elif name not in _OF_UPGRADES:
                lines.append(name + b": " + value)
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's own
        self.parser.feed_data(b"\r\n".join([*lines, b"", b""]))

    def _refuse(self, error: errors.RequestError) -> None:
        """Answer what cannot be read, and close; no answer can follow on such a connection."""
        self.logger.warning("a connection is closed: %s", error.message)
        cycle: RequestResponseCycle | None = self.cycle
        answering = cycle is not None and cycle.response_started and not cycle.response_complete
        # With one on its way, this one would land in its midst.
        if not answering and not self.pipeline:
            body = errors.openai_error(error)
            headers = (
                *self.server_state.default_headers,
                *((name.encode(), value.encode()) for name, value in errors.error_headers(error)),
                (b"content-length", str(len(body)).encode()),
                (b"connection", b"close"),
            )
            lines = [name + b": " + value + b"\r\n" for name, value in headers]
            status = STATUS_LINE[errors.error_row(error).status]
            self.transport.write(b"".join([status, *lines, b"\r\n", body]))
        self.transport.close()


def _until_close(cycle: Any) -> Send:
    """``cycle.send``, for a client that knows no chunks."""
    send: Send = cycle.send

    async def until_close(message: Message) -> None:
        if message["type"] == "http.response.start":
            if not any(name.lower() == b"content-length" for name, _ in message.get("headers", ())):
                cycle.chunked_encoding = False
        elif cycle.chunked_encoding is False and not cycle.expected_content_length:
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    return until_close
