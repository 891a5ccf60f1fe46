"""The inference routes, as plain ASGI: nothing between the client's bytes and the relay.

A route reads the body, and runs the turn until that ends or the client leaves: a client that leaves in any
phase closes the open leg at once.
"""

import asyncio
import logging
import os
from dataclasses import dataclass
from typing import Final

from starlette.types import Receive, Scope, Send

from router import errors
from router.http.asgi_client import AsgiClient, straight_of, unless_client_leaves
from router.http.identity import tenant_of
from router.telemetry.facts import RequestRefused
from router.turn.members import InvalidRequest
from router.turn.relay import Relay
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
    "/v2/rerank": Endpoint.OTHER,
    "/rerank": Endpoint.OTHER,
    "/v1/score": Endpoint.OTHER,
    "/score": Endpoint.OTHER,
    "/classify": Endpoint.OTHER,
    "/pooling": Endpoint.OTHER,
    "/tokenize": Endpoint.OTHER,
    "/detokenize": Endpoint.OTHER,
}
"""POST routes that go to engines; ``OTHER`` ones to one node, unsplit."""


class _ClientLeft(Exception):
    """The client closed its connection while its request was read."""


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
        turn_id = f"brg-{os.urandom(12).hex()}"
        headers = _headers(scope)
        given = dict(headers)
        straight = straight_of(scope)
        client = AsgiClient(send, client_id(given, turn_id), straight)
        try:
            _check_media(given)
            body = straight.whole_body() if straight is not None else None
            if body is None:
                body = await self._body(receive, given)
            elif len(body) > self.max_body_bytes:
                raise errors.BodyTooLarge(_too_large(self.max_body_bytes))
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
            await unless_client_leaves(turn, receive, client, straight)
        except asyncio.CancelledError:
            # The server's time for draining is over. Its task ends here, with an answer that looks broken.
            await client.tell_stop(scope["path"])
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
        # Joined as it comes: a body that trickles in is not to take its size many times over.
        joined = bytearray()
        size_bytes, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _ClientLeft
            part: bytes = message.get("body", b"")
            size_bytes += len(part)
            if size_bytes > self.max_body_bytes:
                raise errors.BodyTooLarge(_too_large(self.max_body_bytes))
            more = message.get("more_body", False)
            if not more and not joined:
                return part
            joined += part
        return bytes(joined)


def _too_large(limit_bytes: int) -> str:
    return f"the request body is larger than {limit_bytes} bytes"


def _headers(scope: Scope) -> tuple[tuple[str, str], ...]:
    raw: list[tuple[bytes, bytes]] = scope["headers"]
    return tuple([(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in raw])


def _check_media(headers: dict[str, str]) -> None:
    if "content-encoding" in headers:
        encoding = headers["content-encoding"].strip().lower()
        if encoding not in ("", "identity"):
            raise errors.UnsupportedMedia(f"a request body in {encoding!r} encoding is not taken")
    given = headers.get("content-type", "application/json")
    if given == "application/json":
        return
    media = given.partition(";")[0].strip().lower()
    if not (media == "application/json" or media.endswith("+json")):
        raise errors.UnsupportedMedia("the request body has to be application/json")
