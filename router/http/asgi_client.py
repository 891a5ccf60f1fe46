"""The client's side of a turn, behind an ASGI connection; and what becomes of a turn whose client leaves.

Where the server is our own (``router/http/protocol``) a connection offers a ``Straight``: parts of a body go
to its transport without a message and an await each, and it calls when the client has left, so that no task
has to wait for that. Behind any other ASGI server both go the usual way.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, Protocol

from starlette.types import Message, Receive, Scope, Send

from router import errors
from router.turn import tap
from router.turn.context import ChunkWriter

STRAIGHT: Final = "boomerang.straight"
"""The ASGI extension that holds a ``Straight``."""


class Straight(ChunkWriter, Protocol):
    """A short way to one request's connection."""

    when_gone: Callable[[], None] | None
    """Called once when it does."""

    def whole_body(self) -> bytes | None:
        """The request's body, if all of it has come and nobody has taken any; None: it is to be received."""

    def start(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Begin an answer whose body goes this way. Headers have been checked."""

    def put(self, data: bytes, chunk: bytes | None = None) -> bool:
        """Write a part of the body; False where it piles up. ``chunk`` is the same as one HTTP/1.1 chunk."""

    def put_last(self, data: bytes) -> bool:
        """As ``put``, where the end follows most likely: it may go out with that."""

    def end(self) -> None:
        """The body is complete."""

    @property
    def is_owing(self) -> bool:
        """Whether something that was put is still to be written."""

    async def drained(self) -> None:
        """Until the client has read enough of what piled up, or is gone."""

    def drop(self) -> None:
        """Close the connection at once."""

    def watch(self) -> None:
        """Look out for the client's leaving, also while nothing is read of it."""


def straight_of(scope: Scope) -> Straight | None:
    """The connection's short way, where it has one."""
    found: Straight | None = scope.get("extensions", {}).get(STRAIGHT)
    return found


class AsgiClient:
    """A client behind an ASGI connection. ``request_id`` is echoed on every answer."""

    def __init__(self, send: Send, request_id: str, straight: Straight | None = None) -> None:
        self._send = send
        self.request_id = request_id
        self._straight = self.chunk_writer = straight
        self.put = self._keep if straight is None else straight.put
        self.put_last = self._keep if straight is None else straight.put_last
        self._unsent: list[bytes] = []
        self.started = False
        self.ended = False
        self.left = False
        self._told_all = False

    @property
    def has_all(self) -> bool:
        return self.ended or (self._told_all and not (self._straight is not None and self._straight.is_owing))

    def told_all(self) -> None:
        self._told_all = True

    async def start(self, status: int, headers: Sequence[tuple[str, str]]) -> None:
        if self._straight is not None:
            self.started = True
            self._straight.start(status, self._encoded(headers))
        else:
            await self._send_head(status, headers)

    async def _send_head(self, status: int, headers: Sequence[tuple[str, str]]) -> None:
        self.started = True
        message = {"type": "http.response.start", "status": status, "headers": self._encoded(headers)}
        await self._send(message)

    def _encoded(self, headers: Sequence[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
        encoded = [(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in headers]
        encoded.append((b"x-request-id", self.request_id.encode("latin-1", "replace")))
        return encoded

    def _keep(self, data: bytes, chunk: bytes | None = None) -> bool:
        self._unsent.append(data)
        return False

    async def flush(self) -> None:
        if self._straight is not None:
            await self._straight.drained()
        elif self._unsent:
            data = b"".join(self._unsent)
            self._unsent.clear()
            await self._send({"type": "http.response.body", "body": data, "more_body": True})

    def drop(self) -> None:
        self.ended = True
        if self._straight is not None:
            self._straight.drop()
        # Another server closes the connection of an answer that is left incomplete.

    async def end(self) -> None:
        self.ended = True
        if self._straight is not None:
            self._straight.end()
        else:
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def whole(self, status: int, headers: Sequence[tuple[str, str]], body: bytes) -> None:
        await self._send_head(status, [*headers, ("content-length", str(len(body)))])
        self.ended = True
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def refuse(self, error: Exception) -> None:
        """Answer with an error of ours."""
        await self.whole(
            errors.error_row(error).status, errors.error_headers(error), errors.openai_error(error)
        )

    async def tell_stop(self, path: str) -> None:
        """The router stops and cannot finish the answer: an error, in ``path``'s stream if that has begun."""
        if self.ended:
            return
        if self._told_all:
            await self.end()
            return
        error = errors.NoCapacity("the router is stopping")
        if not self.started:
            await self.refuse(error)
            return
        row = errors.error_row(error)
        if not self.put(tap.error_event(error.message, row.type, row.code, path)):
            await self.flush()
        await self.end()


def unless_client_leaves(
    turn: Coroutine[Any, Any, None], receive: Receive, client: AsgiClient, straight: Straight | None
) -> Coroutine[Any, Any, None]:
    """Run ``turn`` to its end, or cancel it and wait for its clean-up as soon as the client has left.

    A turn whose answer is complete is not cut off: the connection of a client that has all it wants may close
    while the turn still puts things in order.
    """
    if straight is None:
        return _beside_a_watch(turn, receive, client)
    return _until_called(turn, straight, client)


async def _until_called(turn: Coroutine[Any, Any, None], straight: Straight, client: AsgiClient) -> None:
    task = asyncio.current_task()

    def leave() -> None:
        if task is not None and not client.has_all:
            client.left = True
            task.cancel()

    straight.when_gone = leave
    straight.watch()
    if straight.is_gone:
        leave()
    try:
        await turn
    except asyncio.CancelledError:
        if not client.left or task is None or task.uncancel():
            raise  # the server's own, perhaps besides
    finally:
        straight.when_gone = None


async def _left(receive: Receive) -> None:
    message: Message = {}
    while message.get("type") != "http.disconnect":
        message = await receive()


async def _beside_a_watch(turn: Coroutine[Any, Any, None], receive: Receive, client: AsgiClient) -> None:
    running = asyncio.create_task(turn)
    leaving = asyncio.create_task(_left(receive))
    try:
        await asyncio.wait((running, leaving), return_when=asyncio.FIRST_COMPLETED)
        if client.has_all:
            await asyncio.wait((running,))
    except asyncio.CancelledError:
        running.cancel()
        raise
    finally:
        leaving.cancel()
        if not running.done() and not running.cancelling():
            client.left = True
            running.cancel()
        await asyncio.wait((running, leaving))
    if not running.cancelled() and (error := running.exception()) is not None:
        raise error
