"""An answer of an engine whose body is still coming, read from aiohttp."""

import asyncio
import re
from collections.abc import AsyncIterator

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError

from router.engines.aiohttp_wire import fail, unread
from router.engines.upstream import Broken, Limits, Shortcut, Sink, TimedOut, TooLarge, UpstreamError

_QUOTED = re.compile(r"""[\s:]*(\n|\\n|\bb\\?["']).*""", re.DOTALL)
"""From the first line's end, or the first bytes literal, to the end; both also as ``repr`` writes them."""


class Arriving:
    """An answer whose body is still coming: the ``AnswerStream`` of a call."""

    def __init__(self, origin: str, response: aiohttp.ClientResponse, limits: Limits) -> None:
        self.status = response.status
        # ISO-8859-1 maps each byte to itself, as ASGI does, so that a value goes on byte for byte.
        self.headers = tuple(
            (name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in response.raw_headers
        )
        self._origin = origin
        self._response = response
        self._limits = limits
        self._fault: UpstreamError | None = None
        self._loop = asyncio.get_running_loop()
        self._waiting_since_s: float | None = None
        self._watch: asyncio.TimerHandle | None = None

    def chunks(self) -> AsyncIterator[bytes]:
        """The body, as it arrives, each chunk as soon as it is there; raises UpstreamError."""
        return _Chunks(self)

    async def pump(self, sink: Sink, shortcut: Shortcut | None = None) -> bool:
        """Give the body to ``sink`` as it arrives, until that takes no more; whether the body has ended."""
        while piece := await self.next():
            if not sink(piece, None):
                return False
        return True

    async def read(self) -> bytes:
        """The whole rest of the body; raises UpstreamError, ``TooLarge`` past ``max_answer_bytes``."""
        largest = self._limits.max_answer_bytes
        pieces, size = [], 0
        while piece := await self.next():
            size += len(piece)
            if size > largest:
                self._fault = TooLarge(f"{self._origin}: the answer is larger than {largest} bytes")
                self.close()
                raise self._fault
            pieces.append(piece)
        return b"".join(pieces)

    async def next(self) -> bytes:
        """What has come since the last time, or as soon as something comes; empty at the end."""
        if self._fault is not None:
            raise self._fault
        content, idle_s = self._response.content, self._limits.idle_s
        if idle_s is not None:
            self._waiting_since_s = self._loop.time()
            if self._watch is None:
                self._watch = self._loop.call_later(idle_s, self._check_idle, idle_s)
        try:
            piece = await content.readany()
        except TimedOut as late:
            self._fault = late
            raise
        except (aiohttp.ClientError, OSError, HttpProcessingError) as error:
            fault = self._broken(error)
            piece = unread(content)
            if not piece:
                raise fault from error
        finally:
            self._waiting_since_s = None
        if not piece:
            self._stop_watch()
        return piece

    def close(self) -> None:
        """Close the connection at once, if the body has not ended."""
        self._stop_watch()
        if self._fault is None and not self._response.content.at_eof():
            self._fault = Broken(f"{self._origin}: closed by us before the body was read")
        self._response.close()

    def _broken(self, error: Exception) -> UpstreamError:
        if self._fault is None:
            self._fault = Broken(told(self._origin, error))
        return self._fault

    def _check_idle(self, idle_s: float) -> None:
        """End a wait that has lasted too long. One timer for the whole body, not one for each chunk."""
        waited_s = 0.0
        if self._waiting_since_s is not None:
            waited_s = self._loop.time() - self._waiting_since_s
        if waited_s < idle_s:
            self._watch = self._loop.call_later(idle_s - waited_s, self._check_idle, idle_s)
            return
        self._watch = None
        fail(self._response.content, TimedOut("idle", idle_s))

    def _stop_watch(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None


class _Chunks:
    """Iterates over a body. A plain object: a generator left early would linger until it is collected."""

    def __init__(self, answer: Arriving) -> None:
        self._answer = answer

    def __aiter__(self) -> "_Chunks":
        return self

    async def __anext__(self) -> bytes:
        if piece := await self._answer.next():
            return piece
        raise StopAsyncIteration


def told(origin: str, error: Exception) -> str:
    """What went wrong, without the engine's bytes: aiohttp quotes them, and they may be of an answer."""
    told = str(error)
    if isinstance(error, aiohttp.ClientResponseError | HttpProcessingError):
        told = error.message
    return f"{origin}: {_QUOTED.sub('', told) or type(error).__name__}"
