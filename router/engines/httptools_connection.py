"""One connection to an engine: an asyncio protocol that writes requests and hands on what comes."""

import asyncio
import select
import socket
import ssl
from collections.abc import Callable
from typing import Final, Protocol, cast

from router.engines.upstream import Shortcut

_PIECE_BYTES: Final = 262_144
"""Larger bodies are written in such pieces, so that an early answer is seen and the buffer stays small."""


class Receiver(Protocol):
    """Whom a connection serves: one call."""

    def received(self, data: bytes) -> None:
        """Bytes came."""

    def ended(self) -> None:
        """The engine ended its side in good order; the connection closes itself after this."""

    def lost(self, error: Exception | None) -> None:
        """The connection is gone."""


class Connection(asyncio.Protocol):
    """One connection. While nobody is served by it, whatever comes on it closes it: it is no answer of ours.

    ``on_lost`` is called once, when it is gone.
    """

    __slots__ = (
        "_arrivals",
        "_is_held_back",
        "_on_lost",
        "_sock",
        "_time",
        "_transport",
        "_unsent",
        "idle_since_s",
        "is_reading",
        "origin",
        "passed_at_s",
        "receiver",
        "shortcut",
        "uses",
    )

    def __init__(self, origin: str, sock: socket.socket, on_lost: Callable[["Connection"], None]) -> None:
        self.origin = origin
        self.receiver: Receiver | None = None
        self.shortcut: Shortcut | None = None
        """Is given what comes before the receiver is, while that wants nothing but whole chunks."""
        self.passed_at_s = 0.0
        """On the loop's clock; when that last took anything."""
        self.uses = 0
        """How many requests were put on it."""
        self.idle_since_s = 0.0
        """On the loop's clock; when it last was put into the pool."""
        self.is_reading = True
        self._sock = sock
        self._arrivals: select.poll | None = None
        """Where there is nothing to tell of it raises nothing, as peeking into the socket would."""
        self._time = asyncio.get_running_loop().time
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._unsent: memoryview | None = None
        self._is_held_back = False

    @property
    def is_open(self) -> bool:
        """Whether it can be written to, as far as the loop has seen."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def is_sent(self) -> bool:
        """Whether the last request has left whole."""
        return self._unsent is None and (
            self._transport is not None and not self._transport.get_write_buffer_size()
        )

    def is_quiet(self) -> bool:
        """Whether nothing waits in the socket, neither bytes nor an end, that the loop has not seen yet.

        A busy loop sees the end of an idle connection late, and bytes that were sent before the next request
        would pass for its answer.
        """
        if self._arrivals is None:
            self._arrivals = select.poll()
            self._arrivals.register(self._sock, select.POLLIN)
        return not self._arrivals.poll(0)

    def send(self, head: bytes, body: bytes) -> None:
        """Write a request. Its body goes out as fast as the engine takes it."""
        transport = self._transport
        if transport is None:
            return
        self.uses += 1
        if not body:
            transport.write(head)
        elif len(body) <= _PIECE_BYTES:
            transport.writelines((head, body))  # in one go, and no copy where the loop can do without
        else:
            transport.write(head)
            self._unsent = memoryview(body)
            self._write_on()

    def hold(self) -> None:
        """Read no more, so that the engine is held back."""
        if self.is_reading and self._transport is not None:
            self.is_reading = False
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if not self.is_reading and self._transport is not None and not self._transport.is_closing():
            self.is_reading = True
            self._transport.resume_reading()

    def abort(self) -> None:
        """Close at once, whatever is still unwritten; nobody is told anything more but ``on_lost``."""
        # A transport's own close first writes what is buffered, which never ends when the engine does not
        # read; with TLS it also waits for a farewell.
        self.receiver = self.shortcut = None
        self._unsent = None
        if self._transport is not None:
            self._transport.abort()

    def ended_in_good_order(self) -> bool:
        """Whether the end came from the engine: over TLS anybody on the way can cut the wire."""
        transport = self._transport
        layer = transport.get_extra_info("ssl_object") if transport is not None else None
        if layer is None:
            return True
        try:
            return not layer.read(1)  # nothing more, as the farewell said
        except ssl.SSLZeroReturnError:
            return True
        except ssl.SSLError:
            return False

    # What the loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class
        self._transport.set_write_buffer_limits(high=_PIECE_BYTES)

    def data_received(self, data: bytes) -> None:
        # Most of what ever comes here is an event of a stream, and each step that it takes counts.
        shortcut = self.shortcut
        if shortcut is not None and shortcut(data):
            self.passed_at_s = self._time()
        elif self.receiver is None:
            self.abort()
        else:
            self.receiver.received(data)

    def eof_received(self) -> None:
        receiver = self.receiver
        if receiver is not None:
            receiver.ended()
        self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        receiver, self.receiver = self.receiver, None
        self.shortcut = None
        self._transport, self._unsent = None, None
        self._on_lost(self)
        if receiver is not None:
            receiver.lost(exc)

    def pause_writing(self) -> None:
        self._is_held_back = True

    def resume_writing(self) -> None:
        self._is_held_back = False
        if self._unsent is not None:
            self._write_on()

    def _write_on(self) -> None:
        while self._unsent is not None and not self._is_held_back and self.is_open:
            piece, rest = self._unsent[:_PIECE_BYTES], self._unsent[_PIECE_BYTES:]
            self._unsent = rest if len(rest) else None
            cast(asyncio.Transport, self._transport).write(piece)
