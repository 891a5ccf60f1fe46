"""The live page on the admin API's listener: its files, and what happens as server-sent events.

| route | answers |
|---|---|
| ``GET /page`` | the page, and below it its files: nothing in them but how to show what the next one sends |
| ``GET /page/events`` | a stream of ``router.page.schemas.Frame``, behind the admin token where one is set |

A watcher has no queue: each is sent what is new since its last event, four times a second at most, so that
one who reads slowly gets fewer and larger events, and one who does not read is let go.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, Protocol

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from router import errors

MAX_WATCHERS: Final = 16
TICK_S: Final = 0.25
COMMENT_EVERY_S: Final = 10.0
"""How often something is sent where nothing happens, so that either side learns that the other is gone."""
STALLED_S: Final = 30.0
"""A watcher who has not read for so long is let go."""

STATIC: Final = Path(__file__).parent.parent / "page" / "static"
MEDIA: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
FILES: Final = {
    "/page": "index.html",
    **{
        f"/page/{path.name}": path.name
        for path in sorted(STATIC.iterdir())
        if path.suffix in (".css", ".js", ".svg")
    },
}
"""The page's files, by the path that each is served at."""
OPEN: Final = frozenset({"/", *FILES})
"""Paths that hold nothing of the router's: a browser asks for them without a token."""
SECURITY: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class View(Protocol):
    """What there is to see; ``router.page.view.View``."""

    def frame(self, after: int, known_state: bytes) -> tuple[bytes, int, bytes]: ...


@dataclass(slots=True)
class PageRoutes:
    """The page's routes, and who watches."""

    view: View
    tick_s: float = TICK_S
    stalled_s: float = STALLED_S
    watchers: int = 0
    _closing: asyncio.Event = field(default_factory=asyncio.Event)

    def routes(self) -> list[Route]:
        return [
            Route("/", _to_page, methods=["GET"]),
            Route("/page/events", self.events, methods=["GET"]),
            *(Route(path, _file(name), methods=["GET"]) for path, name in FILES.items()),
        ]

    def close(self) -> None:
        """Let all watchers go: the router stops."""
        self._closing.set()

    async def events(self, request: Request) -> Response:
        if self.watchers >= MAX_WATCHERS:
            raise errors.NoCapacity(f"{MAX_WATCHERS} watch the page already")
        return _Events(self)

    async def stream(self, receive: Receive, send: Send) -> None:
        """Send one watcher what happens, until it leaves or stalls, or the router stops."""
        self.watchers += 1
        ends: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(_left(receive)),
            asyncio.ensure_future(self._closing.wait()),
        ]
        try:
            await self._send_all(ends, send)
        except (TimeoutError, OSError):
            pass  # it does not read any more, or has left
        finally:
            self.watchers -= 1
            for end in ends:
                end.cancel()
            await asyncio.wait(ends)

    async def _send_all(self, ends: Sequence[asyncio.Future[Any]], send: Send) -> None:
        view, loop = self.view, asyncio.get_running_loop()
        after, state, sent_s = 0, b"", loop.time()
        while not any(end.done() for end in ends):
            data, after, state = view.frame(after, state)
            if data or loop.time() - sent_s >= COMMENT_EVERY_S:
                async with asyncio.timeout(self.stalled_s):
                    await send(_body(b"data: " + data + b"\n\n" if data else b":\n\n"))
                sent_s = loop.time()
            await asyncio.wait(ends, timeout=self.tick_s, return_when=asyncio.FIRST_COMPLETED)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class _Events(Response):
    """The stream as an answer; its body is written as ``PageRoutes.stream`` says."""

    media_type = "text/event-stream"

    def __init__(self, page: PageRoutes) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"} | SECURITY)
        del self.headers["content-length"]
        self._page = page

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        if scope["method"] == "HEAD":  # a route that takes GET takes it, too; nobody watches by it
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return
        await self._page.stream(receive, send)


def _file(name: str) -> Callable[[Request], Awaitable[Response]]:
    body = (STATIC / name).read_bytes()
    tag = f'"{blake2b(body, digest_size=12).hexdigest()}"'
    headers = {"etag": tag, "cache-control": "no-cache"} | SECURITY

    async def answer(request: Request) -> Response:
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(body, headers=headers, media_type=MEDIA[Path(name).suffix])

    return answer


async def _to_page(request: Request) -> Response:
    return RedirectResponse("page", 307, SECURITY)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _body(data: bytes) -> dict[str, object]:
    return {"type": "http.response.body", "body": data, "more_body": True}
