"""The inference routes, as plain ASGI: nothing between the client's bytes and the relay.

A route reads the body, and runs the turn in a task of its own beside one that waits for the client to leave.
Whichever ends first ends the other, so that a client that leaves in any phase closes the open leg at once.
"""

import asyncio
import logging
import secrets
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final

from starlette.types import Message, Receive, Scope, Send

from router import errors
from router.http.identity import tenant_of
from router.telemetry.facts import RequestRefused
from router.turn import tap
from router.turn.members import InvalidRequest
from router.turn.relay import STOPPING, Relay
from router.turn.request import Endpoint, client_id, read_request

_LOG: Final = logging.getLogger("router.http")

PATHS: Final[dict[str, Endpoint]] = {
    "/v1/chat/completions": Endpoint.CHAT,
    "/v1/completions": Endpoint.COMPLETIONS,
    "/v1/responses": Endpoint.OTHER,
    "/v1/messages": Endpoint.OTHER,
    "/v1/messages/count_tokens": Endpoint.OTHER,
    "/v1/embeddings": Endpoint.OTHER,
    "/v1/rerank": Endpoint.OTHER,
    "/v1/score": Endpoint.OTHER,
    "/tokenize": Endpoint.OTHER,
    "/detokenize": Endpoint.OTHER,
}
"""POST routes that go to engines; ``OTHER`` ones to one node, unsplit."""


class _ClientLeft(Exception):
    """The client closed its connection while its request was read."""


class AsgiClient:
    """A client behind an ASGI connection. ``request_id`` is echoed on every answer."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self.request_id = request_id
        self.started = False
        self.ended = False

    async def start(self, status: int, headers: Sequence[tuple[str, str]]) -> None:
        self.started = True
        encoded = [(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in headers]
        encoded.append((b"x-request-id", self.request_id.encode("latin-1", "replace")))
        await self._send({"type": "http.response.start", "status": status, "headers": encoded})

    async def write(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self) -> None:
        self.ended = True
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def whole(self, status: int, headers: Sequence[tuple[str, str]], body: bytes) -> None:
        await self.start(status, [*headers, ("content-length", str(len(body)))])
        self.ended = True
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def refuse(self, error: Exception) -> None:
        """Answer with an error of ours."""
        await self.whole(
            errors.error_row(error).status, errors.error_headers(error), errors.openai_error(error)
        )

    async def tell_stop(self) -> None:
        """The router stops and cannot finish the answer: an error, in the stream if that has begun."""
        if self.ended:
            return
        error = errors.NoCapacity("the router is stopping")
        if not self.started:
            await self.refuse(error)
            return
        row = errors.error_row(error)
        await self.write(tap.error_event(error.message, row.type, row.code))
        await self.end()


@dataclass(slots=True)
class OpenTurns:
    """How many turns are running; zero again when all have ended, however they did."""

    count: int = 0


@dataclass(frozen=True, slots=True)
class InferenceRoute:
    """An ASGI app for one path of ``PATHS``. ``identity_header`` as in ``identity.tenant_of``."""

    relay: Relay
    endpoint: Endpoint
    open_turns: OpenTurns
    max_body_bytes: int
    identity_header: str = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        turn_id = f"brg-{secrets.token_hex(12)}"
        headers = _headers(scope)
        given = dict(headers)
        client = AsgiClient(send, client_id(given, turn_id))
        try:
            _check_media(given)
            body = await self._body(receive, given)
            query = scope.get("query_string", b"").decode("latin-1")
            request = read_request(self.endpoint, scope["path"], headers, body, turn_id=turn_id, query=query)
        except _ClientLeft:
            self._refused(errors.ClientClosed(), turn_id, client)
            return
        except InvalidRequest as error:
            await self._refuse(errors.BadRequest(str(error), param=error.param), turn_id, client)
            return
        except errors.RequestError as error:
            await self._refuse(error, turn_id, client)
            return
        turn = self.relay.run(request, tenant_of(headers, self.identity_header), client)
        self.open_turns.count += 1
        try:
            await _unless_client_leaves(turn, receive, client)
        except asyncio.CancelledError:
            # The server's time for draining is over. Its task ends here, with an answer that looks broken.
            await client.tell_stop()
        except Exception:
            _LOG.exception("turn %s failed in the router", turn_id)
            if client.started:
                raise  # the server then closes the connection: a broken answer must not look complete
            await client.refuse(errors.InternalError())
        finally:
            self.open_turns.count -= 1

    async def _refuse(self, error: errors.RequestError, turn_id: str, client: AsgiClient) -> None:
        self._refused(error, turn_id, client)
        await client.refuse(error)

    def _refused(self, error: errors.RequestError, turn_id: str, client: AsgiClient) -> None:
        """Tell of a request that does not become a turn. Not its message, which may quote the request."""
        row = errors.error_row(error)
        self.relay.context.facts.publish(
            RequestRefused(turn_id, client.request_id, self.endpoint, row.status, row.code)
        )

    async def _body(self, receive: Receive, headers: dict[str, str]) -> bytes:
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length) > self.max_body_bytes:
            raise errors.BodyTooLarge(_too_large(self.max_body_bytes))
        parts: list[bytes] = []
        size_bytes, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _ClientLeft
            part: bytes = message.get("body", b"")
            size_bytes += len(part)
            if size_bytes > self.max_body_bytes:
                raise errors.BodyTooLarge(_too_large(self.max_body_bytes))
            parts.append(part)
            more = message.get("more_body", False)
        return parts[0] if len(parts) == 1 else b"".join(parts)


def _too_large(limit_bytes: int) -> str:
    return f"the request body is larger than {limit_bytes} bytes"


def _headers(scope: Scope) -> tuple[tuple[str, str], ...]:
    raw: list[tuple[bytes, bytes]] = scope["headers"]
    return tuple((name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in raw)


def _check_media(headers: dict[str, str]) -> None:
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise errors.UnsupportedMedia(f"a request body in {encoding!r} encoding is not taken")
    media = headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if not (media == "application/json" or media.endswith("+json")):
        raise errors.UnsupportedMedia("the request body has to be application/json")


async def _left(receive: Receive) -> None:
    message: Message = {}
    while message.get("type") != "http.disconnect":
        message = await receive()


async def _unless_client_leaves(
    turn: Coroutine[Any, Any, None], receive: Receive, client: AsgiClient
) -> None:
    """Run ``turn`` to its end, or cancel it and wait for its clean-up as soon as the client has left.

    A turn whose answer is complete is not cut off: the connection of a client that has all it wants may close
    while the turn still puts things in order.
    """
    running = asyncio.create_task(turn)
    leaving = asyncio.create_task(_left(receive))
    try:
        await asyncio.wait((running, leaving), return_when=asyncio.FIRST_COMPLETED)
        if client.ended:
            await asyncio.wait((running,))
    except asyncio.CancelledError:
        running.cancel(STOPPING)
        raise
    finally:
        leaving.cancel()
        if not running.done() and not running.cancelling():
            running.cancel()
        await asyncio.wait((running, leaving))
    if not running.cancelled() and (error := running.exception()) is not None:
        raise error
