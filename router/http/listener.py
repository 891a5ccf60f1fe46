"""A second server in the router's event loop, for what is not to be reached by clients."""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator

import uvicorn
from starlette.types import ASGIApp

from router.http.protocol import Protocol


class _Server(uvicorn.Server):
    """uvicorn without signal handlers: the router's own server has them."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens. Raises OSError where the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family)
    # asyncio sets this only where a socket names its protocol; without it each answer waits 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def origin_of(listener: socket.socket) -> str:
    """Where a socket listens, as an origin."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def serve_on(listener: socket.socket, app: ASGIApp, on_stop: Callable[[], None] = lambda: None) -> None:
    """Serve ``app`` until cancelled; the socket is closed at the end.

    ``on_stop`` is called first, to end answers that would go on for ever.
    """
    server = _Server(
        uvicorn.Config(
            app,
            loop="none",
            http=Protocol,
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            timeout_graceful_shutdown=1,
        )
    )
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    try:
        await asyncio.shield(serving)
    finally:
        on_stop()
        server.should_exit = server.force_exit = True
        await asyncio.wait((serving,))
        listener.close()
