"""What the relay needs of an HTTP client: two ways to call an engine, and errors it can decide on.

The data path goes through this protocol so that the client behind it can be chosen by measurement. An
implementation maps every fault of its own to one of the errors below; nothing else may come out, but for
``asyncio.CancelledError``. One conformance suite (``tests/engines``) runs against each implementation.
"""

import errno
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Final, Protocol

from router.values import value


class UpstreamError(Exception):
    """An engine could not be talked to. ``sent`` tells whether it may have seen the request."""

    sent = True


class NeverSent(UpstreamError):
    """No byte of the request left: refused, unresolvable, or no connection in time. Safe to send again."""

    sent = False


class Unsendable(NeverSent):
    """The request itself cannot be put on the wire (a line break in a header): no other engine would help."""


class Exhausted(NeverSent):
    """This host has nothing left to connect with: files, ports, memory. No engine is to blame for that, and
    asking another one would not help."""


_OUR_LACK: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})
"""What socket(2) and connect(2) fail with; the last one means that every local port is taken."""


def not_connected(origin: str, error: Exception) -> NeverSent:
    """What it comes to that no connection could be made."""
    is_ours = isinstance(error, OSError) and error.errno in _OUR_LACK
    return (Exhausted if is_ours else NeverSent)(f"{origin}: {error}")


class Stale(UpstreamError):
    """A reused connection was closed with no byte of an answer.

    Engines close idle connections, so the request was most likely not read; it may have been.
    """


class Broken(UpstreamError):
    """The engine broke the connection, or answered something that is not HTTP, after the request was sent."""


class TimedOut(UpstreamError):
    """One of our own time-outs passed. ``phase`` is ``connect``, ``answer`` or ``idle``; the relay's own are
    ``first token`` and ``end``."""

    def __init__(self, phase: str, limit_s: float) -> None:
        super().__init__(f"no {phase} within {limit_s:g} s")
        self.phase, self.limit_s = phase, limit_s
        self.sent = phase != "connect"


class TooLarge(UpstreamError):
    """An answer that is read whole was larger than ``Limits.max_answer_bytes``."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one call, in seconds and bytes; ``None`` means no bound.

    ``answer_s`` runs from the request being sent to the answer's headers (and, for ``send``, to its last
    byte); ``idle_s`` is the longest gap between two reads of a body.
    """

    connect_s: float = 2.0
    answer_s: float | None = None
    idle_s: float | None = None
    max_answer_bytes: int = 268_435_456


@value
class Call:
    """One HTTP request to an engine. ``headers`` are complete but for host, length and connection."""

    method: str
    path: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    limits: Limits = field(default_factory=Limits)
    meanwhile: Callable[[], None] | None = None
    """Called once the request has gone to the transport: for what need not be done before that.

    Its answer is on its way meanwhile. Never called where no connection could be had, and at most once. It is
    not to raise.
    """


@value
class Answer:
    """A whole answer. Header names are lower case."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name), None)


Sink = Callable[[bytes, bytes | None], bool]
"""Takes a piece of a body, at once; whether it takes more.

The second argument is the piece as it came over the wire, where that was one whole chunk of a chunked body;
whoever sends the piece on as a chunk may send these bytes.
"""


Shortcut = Callable[[bytes], bool]
"""Takes one whole chunk of a chunked body, framing included, if it may go on just so; whether it has.

After False nothing was taken, and the sink is to be given the piece.
"""


class AnswerStream(Protocol):
    """An answer whose body is still coming. One at a time reads it, by whichever of the ways."""

    status: int
    headers: tuple[tuple[str, str], ...]

    def chunks(self) -> AsyncIterator[bytes]:
        """The body, as it arrives, each chunk as soon as it is there; raises UpstreamError."""

    async def pump(self, sink: Sink, shortcut: Shortcut | None = None) -> bool:
        """Give the body to ``sink`` as it arrives, until that takes no more; whether the body has ended.

        ``sink`` may run within the connection's own callback, with no task woken for it. After False the
        rest is still to be read, and held back meanwhile. ``shortcut`` may be asked first. Raises
        UpstreamError, once all that came before the fault was given, and whatever ``sink`` raises.
        """

    async def read(self) -> bytes:
        """The whole rest of the body; raises UpstreamError."""


class Upstream(Protocol):
    """An HTTP client with one connection pool per engine.

    Cancelling a call closes its connection at once: an engine learns from that that nobody waits any more.
    """

    async def send(self, origin: str, call: Call) -> Answer:
        """Send a request and read the answer whole, whatever its status. Raises UpstreamError."""

    def stream(self, origin: str, call: Call) -> AbstractAsyncContextManager[AnswerStream]:
        """Send a request and give its answer as soon as the headers are there. Raises UpstreamError.

        Leaving the context before the body has ended closes the connection.
        """

    def open_calls(self) -> Mapping[str, int]:
        """How many calls are running, by origin."""

    async def close(self) -> None:
        """Close every connection."""
