"""The admin API: what the fleet is, and who belongs to it. On a listener of its own, never on the clients'.

| route | does |
|---|---|
| ``GET /admin/nodes`` | every node with its state, why, since when; breakers; what is not trusted for now |
| ``POST /admin/nodes`` | ``{"url", "role", "weight", "limit"}``: takes a node in; ``role`` may be ``both`` |
| ``DELETE /admin/nodes/{key}`` | drains it and lets it go, as ``Fleet.leave`` says; ``?now=true``: at once |
| ``POST /admin/nodes/{key}/drain`` | no new turns on it; what it holds may still be read |
| ``POST /admin/nodes/{key}/undrain`` | takes that back |

More routes go beside these: ``admin_application`` takes any.
"""

import hmac
import ipaddress
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from router import errors
from router.fleet.doubts import Doubts
from router.fleet.node import Node, Role, State, node_of
from router.fleet.pool import Fleet
from router.http.refusals import refuse, refused

MAX_BODY_BYTES: Final = 65_536


class NodeAsked(msgspec.Struct, forbid_unknown_fields=True):
    """The body of ``POST /admin/nodes``."""

    url: str
    role: Literal["prefill", "decode", "both"]
    weight: float = 1.0
    limit: int | None = None


class BreakerTold(msgspec.Struct):
    circuit: str
    why: str
    trips: int
    faults_in_a_row: int


class NodeTold(msgspec.Struct):
    """One node, as the API shows it. Spans are seconds before now, or from now on."""

    node: str
    origin: str
    role: str
    rank: int | None
    weight: float
    limit: int | None
    state: str
    reason: str
    since_s: float | None
    in_flight: int
    idle_s: float | None
    """How long ago its last leg ended. What a prefill node computed is read for a while after that."""
    busy_for_s: float | None
    renewed_s: float | None
    """How long ago another process was first seen behind it."""
    breaker: BreakerTold
    engine: dict[str, Any]


class PairTold(msgspec.Struct):
    prefill: str
    decode: str
    for_s: float


class ModelTold(msgspec.Struct):
    model: str
    for_s: float


class FleetTold(msgspec.Struct):
    nodes: list[NodeTold]
    cooling: list[PairTold]
    """Pairs that get no handles for now, because a pull failed."""
    mistrusted: list[ModelTold]
    """Models whose prompts were read otherwise than rendered."""
    tainted: list[str]
    """Engines whose prefix cache may be wrong."""


@dataclass(frozen=True, slots=True)
class NodeRoutes:
    """``/admin/nodes``. ``now`` is the fleet's clock."""

    fleet: Fleet
    doubts: Doubts
    now: Callable[[], float]

    def routes(self) -> list[Route]:
        one = "/admin/nodes/{key}"
        return [
            Route("/admin/nodes", self.listed, methods=["GET"]),
            Route("/admin/nodes", self.add, methods=["POST"]),
            Route(one, self.delete, methods=["DELETE"]),
            Route(f"{one}/drain", self.drain, methods=["POST"]),
            Route(f"{one}/undrain", self.undrain, methods=["POST"]),
        ]

    async def listed(self, request: Request) -> Response:
        now_s = self.now()
        return _json(
            200,
            FleetTold(
                nodes=[self._told(node) for node in self.fleet.snapshot.nodes],
                cooling=[PairTold(p, d, s) for (p, d), s in self.doubts.cooling_s(now_s).items()],
                mistrusted=[ModelTold(model, s) for model, s in self.doubts.mistrusted_s(now_s).items()],
                tainted=list(self.doubts.tainted),
            ),
        )

    async def add(self, request: Request) -> Response:
        body = await read_body(request)
        try:
            asked = msgspec.json.decode(body, type=NodeAsked)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise errors.BadRequest(f"the body is no node: {error}") from None
        roles = tuple(Role) if asked.role == "both" else (Role(asked.role),)
        try:
            nodes = [node_of(asked.url, role, weight=asked.weight, limit=asked.limit) for role in roles]
        except ValueError as error:
            raise errors.BadRequest(str(error)) from None
        there = [node.key for node in nodes if self._state(node.key) not in (None, State.DRAINING)]
        if there:
            raise errors.Conflict(f"{', '.join(there)} is in the fleet already", param="url")
        for node in nodes:
            self.fleet.add(node)
            self.fleet.undrain(node.key)
        there_now = [self.fleet.snapshot.get(node.key) or node for node in nodes]
        return _json(201, {"nodes": [self._told(node) for node in there_now]})

    async def delete(self, request: Request) -> Response:
        node = self._named(request)
        now = request.query_params.get("now", "false")
        if now not in ("true", "false"):
            raise errors.BadRequest("now is true or false", param="now")
        if now == "true":
            self.fleet.remove(node.key, "removed by an operator")
        else:
            self.fleet.leave(node.key, "removed by an operator")
        left = self.fleet.snapshot.get(node.key)
        if left is None:
            return _json(200, {"node": node.key, "state": State.GONE})
        return _json(202, self._told(left))

    async def drain(self, request: Request) -> Response:
        node = self._named(request)
        self.fleet.drain(node.key, "drained by an operator")
        return self._now_of(node)

    async def undrain(self, request: Request) -> Response:
        node = self._named(request)
        self.fleet.undrain(node.key)
        return self._now_of(node)

    def _now_of(self, node: Node) -> Response:
        return _json(200, self._told(self.fleet.snapshot.get(node.key) or node))

    def _state(self, key: str) -> State | None:
        node = self.fleet.snapshot.get(key)
        return None if node is None else node.state

    def _named(self, request: Request) -> Node:
        key = str(request.path_params["key"])
        node = self.fleet.snapshot.get(key)
        if node is None:
            raise errors.NotFound(f"there is no node {key}")
        return node

    def _told(self, node: Node) -> NodeTold:
        now_s, breaker = self.now(), self.fleet.breaker(node.key)
        return NodeTold(
            node=node.key,
            origin=node.origin,
            role=node.role,
            rank=node.rank,
            weight=node.weight,
            limit=node.limit,
            state=node.state,
            reason=node.reason,
            since_s=None if node.since_s is None else now_s - node.since_s,
            in_flight=node.in_flight,
            idle_s=None if node.idle_since_s is None else now_s - node.idle_since_s,
            busy_for_s=None if node.busy_until_s is None else node.busy_until_s - now_s,
            renewed_s=None if node.renewed_at_s is None else now_s - node.renewed_at_s,
            breaker=BreakerTold(
                circuit=node.circuit,
                why=breaker.why if breaker is not None else "",
                trips=breaker.trips if breaker is not None else 0,
                faults_in_a_row=breaker.in_a_row if breaker is not None else 0,
            ),
            engine=msgspec.to_builtins(node.engine),
        )


async def read_body(request: Request, max_bytes: int = MAX_BODY_BYTES) -> bytes:
    """The JSON body of an admin request. Raises UnsupportedMedia and BodyTooLarge."""
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/json":
        raise errors.UnsupportedMedia("the request body has to be application/json")
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > max_bytes:
            raise errors.BodyTooLarge(f"the request body is larger than {max_bytes} bytes")
    return bytes(body)


def _json(status: int, document: object) -> Response:
    return Response(msgspec.json.encode(document), status, media_type="application/json")


@dataclass(frozen=True, slots=True)
class Guard:
    """Lets through who shows the token; without one, whoever is on this machine and no web page.

    A page in an operator's browser can send to loopback addresses, and by a name of its own that it lets
    point there, read the answers. Its requests carry an ``Origin`` that is not ours, or a ``Host`` that is no
    loopback address.
    """

    app: ASGIApp
    secret: Callable[[], str | None]
    open_paths: Collection[str] = ()
    """Paths that need no token: they hold nothing that it guards."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = self._refusal(Request(scope)) if scope["type"] == "http" else None
        if error is None:
            await self.app(scope, receive, send)
            return
        answer = refused(error)
        if isinstance(error, errors.Unauthorized):
            answer.headers["www-authenticate"] = "Bearer"
        await answer(scope, receive, send)

    def _refusal(self, request: Request) -> errors.RequestError | None:
        try:
            secret = self.secret()
        except (OSError, ValueError):
            return errors.Forbidden("admin_token_file cannot be read, and nobody is let through")
        if secret is None:
            host, origin = request.headers.get("host", ""), request.headers.get("origin")
            if not _is_loopback(host) or origin not in (None, f"http://{host}"):
                return errors.Forbidden("without admin_token_file the admin API serves no other web pages")
            return None
        # As routes are found. A URL is put together with the caller's Host, which may bring a path along.
        if request.scope["path"] in self.open_paths:
            return None
        scheme, _, shown = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and hmac.compare_digest(shown.strip().encode(), secret.encode()):
            return None
        return errors.Unauthorized("the admin API wants its token, as Authorization: Bearer TOKEN")


def _is_loopback(host: str) -> bool:
    name = urlsplit(f"//{host}").hostname or ""
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def admin_application(
    routes: Sequence[Route], secret: Callable[[], str | None], open_paths: Collection[str] = ()
) -> ASGIApp:
    """The ASGI application of these routes, behind ``Guard``. ``secret`` gives the token as it is now."""
    handlers: dict[Any, Any] = {
        HTTPException: refuse,
        errors.RequestError: refuse,
        Exception: refuse,
    }
    return Guard(Starlette(routes=list(routes), exception_handlers=handlers), secret, open_paths)
