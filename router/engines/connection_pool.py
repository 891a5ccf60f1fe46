"""Connections that wait for their next request, by origin.

The one used last is used first: fewer stay warm, and the others expire. The pool has no limit, and so no
queue: admission is the fleet's part.
"""

import asyncio
import contextlib
import functools
import ssl
from typing import Final

from router.engines.dialling import Dialler
from router.engines.httptools_connection import Connection
from router.engines.request_head import Destination

_CLOSE_S: Final = 1.0
"""How long ``close`` waits for connections that it has aborted; that takes a turn of the loop."""
_SWEEPS_PER_KEEPALIVE: Final = 10
"""Expired connections are never used again; closing them may wait for the next sweep."""


class ConnectionPool:
    """Opens, keeps and drops connections. Belongs to the event loop of its first call."""

    def __init__(self, *, keepalive_s: float, tls: ssl.SSLContext | None) -> None:
        self._keepalive_s = keepalive_s
        self._tls = tls
        self._dialler = Dialler()
        self._all: set[Connection] = set()
        self._idle: dict[str, dict[Connection, None]] = {}
        """By origin; the one that has been idle for longest is the first."""
        self._sweep: asyncio.TimerHandle | None = None
        self._emptied: asyncio.Event | None = None

    def take(self, origin: str) -> Connection | None:
        """An idle connection that is still good, or None. It is the caller's until it is put back or lost."""
        idle = self._idle.get(origin)
        if idle is None:
            return None
        too_old_s = asyncio.get_running_loop().time() - self._keepalive_s
        found = None
        while idle and found is None:
            connection, _ = idle.popitem()
            if connection.idle_since_s > too_old_s and connection.is_open and connection.is_quiet():
                found = connection
            else:
                connection.abort()
        if not idle:
            self._idle.pop(origin, None)
        return found

    async def open(self, to: Destination, limit_s: float) -> Connection:
        """A new connection. The caller bounds the time; ``limit_s`` is what it allows.

        Raises OSError (also for a certificate that is not trusted), and ValueError for what cannot be a name.
        """
        sock = await self._dialler.connect(to, limit_s)
        # From here the loop owns the socket, and closes it whatever happens.
        make = functools.partial(Connection, to.origin, sock, self._lost)
        loop = asyncio.get_running_loop()
        if to.is_tls:
            # Certificates name neither a name's closing dot (RFC 6066, 3) nor an address's zone.
            name = to.host.partition("%")[0].rstrip(".")
            _, connection = await loop.create_connection(
                make, sock=sock, ssl=self._context(), server_hostname=name
            )
        else:
            _, connection = await loop.create_connection(make, sock=sock)
        if connection.is_open:
            self._all.add(connection)
        return connection

    def put(self, connection: Connection) -> None:
        """Keep a connection whose last answer has ended, for the next request to its origin."""
        connection.receiver = None
        if not connection.is_open:
            return
        connection.resume()
        loop = asyncio.get_running_loop()
        connection.idle_since_s = loop.time()
        self._idle.setdefault(connection.origin, {})[connection] = None
        if self._sweep is None:
            self._sweep = loop.call_later(self._keepalive_s, self._expire)

    def drop_idle(self, origin: str) -> None:
        """Close every idle connection to ``origin``."""
        for connection in self._idle.pop(origin, ()):
            connection.abort()

    async def close(self) -> None:
        """Close every connection, idle or not."""
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        self._idle.clear()
        for connection in tuple(self._all):
            connection.abort()
        if self._all:
            self._emptied = asyncio.Event()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_S):
                    await self._emptied.wait()

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
            self._tls.set_alpn_protocols(["http/1.1"])
        return self._tls

    def _lost(self, connection: Connection) -> None:
        self._all.discard(connection)
        idle = self._idle.get(connection.origin)
        if idle is not None and idle.pop(connection, self) is None and not idle:
            del self._idle[connection.origin]
        if self._emptied is not None and not self._all:
            self._emptied.set()

    def _expire(self) -> None:
        """Close what has been idle for too long, and come back for the others."""
        self._sweep = None
        loop = asyncio.get_running_loop()
        too_old_s = loop.time() - self._keepalive_s
        next_s = None
        for origin, idle in tuple(self._idle.items()):
            for connection in tuple(idle):
                if connection.idle_since_s > too_old_s:
                    next_s = min(next_s or connection.idle_since_s, connection.idle_since_s)
                    break
                del idle[connection]
                connection.abort()
            if not idle:
                del self._idle[origin]
        if next_s is not None:
            wait_s = max(next_s - too_old_s, self._keepalive_s / _SWEEPS_PER_KEEPALIVE)
            self._sweep = loop.call_later(wait_s, self._expire)
