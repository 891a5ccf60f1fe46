"""From an origin to a connected socket: names, addresses, and a time-out that knows its own loop.

Addresses of a name are tried in order, each for its share of the time; the one that answered is tried first
the next time. Nothing is tried side by side: an engine has one address, or answers on all of them.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final

from router.engines.request_head import Destination

_NAME_KEPT_S: Final = 10.0
"""How long a name's addresses are believed. A pod that moves keeps its name."""
HELD_UP_S: Final = 0.1
"""A timer that fires later than this was kept waiting by the event loop."""

Address = tuple[socket.AddressFamily, Any]
"""A family, and an address as sockets of it take them."""


class ConnectClock:
    """A context that ends in TimeoutError after ``limit_s``, but for what our own loop is to blame for.

    Where the timer comes too late, somebody held this loop up, and kept it from seeing the connection too,
    which says nothing of the engine: the limit is then given a second time.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._timeout = asyncio.timeout(None)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> "ConnectClock":
        await self._timeout.__aenter__()
        due_s = self._loop.time() + self._limit_s
        self._timer = self._loop.call_at(due_s, self._check, due_s)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop_timer()
        await self._timeout.__aexit__(kind, error, trace)

    def expire(self) -> None:
        """End it now, if it has not ended."""
        self._stop_timer()
        if not self._timeout.expired():
            self._timeout.reschedule(self._loop.time())

    def _check(self, due_s: float) -> None:
        now_s = self._loop.time()
        if now_s < due_s + HELD_UP_S:
            self.expire()
        else:
            self._timer = self._loop.call_at(now_s + self._limit_s, self.expire)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


@dataclass(slots=True)
class _Lookup:
    """A name being resolved, or resolved."""

    ended: asyncio.Event = field(default_factory=asyncio.Event)
    addresses: list[Address] = field(default_factory=list)
    until_s: float = 0.0
    fault: OSError | UnicodeError | None = None


class Dialler:
    """Connects sockets. Belongs to the event loop of its first call."""

    def __init__(self) -> None:
        self._lookups: dict[tuple[str, int], _Lookup] = {}

    async def connect(self, to: Destination, limit_s: float) -> socket.socket:
        """A connected, non-blocking socket. The caller bounds the whole; ``limit_s`` is what it allows.

        Raises OSError (also for names without an address) and UnicodeError (for what cannot be a name).
        """
        addresses = await self._addresses(to)
        if not addresses:
            raise OSError(f"no address for {to.host}")
        for tried, address in enumerate(addresses[:-1]):
            try:
                async with ConnectClock(limit_s / (len(addresses) - tried)):
                    sock = await _connect(address)
            except OSError:  # TimeoutError is one
                continue
            self._worked(to, address)
            return sock
        try:
            sock = await _connect(addresses[-1])
        except OSError:
            # Perhaps it has moved: ask anew the next time.
            self._lookups.pop((to.host, to.port), None)
            raise
        self._worked(to, addresses[-1])
        return sock

    async def _addresses(self, to: Destination) -> Sequence[Address]:
        if (literal := _literal(to)) is not None:
            return [literal]
        loop, key = asyncio.get_running_loop(), (to.host, to.port)
        while (known := self._lookups.get(key)) is not None:
            if not known.ended.is_set():
                # Where it was given up by who began it, one of those who wait begins anew.
                await known.ended.wait()
                if known.fault is not None:
                    raise known.fault
            elif loop.time() < known.until_s:
                return tuple(known.addresses)
            else:
                self._forget_old(loop.time())
        return await self._look_up(to)

    async def _look_up(self, to: Destination) -> Sequence[Address]:
        loop, key = asyncio.get_running_loop(), (to.host, to.port)
        lookup = self._lookups[key] = _Lookup()
        try:
            found = await loop.getaddrinfo(to.host, to.port, type=socket.SOCK_STREAM)
            lookup.addresses = [(family, address) for family, _, _, _, address in found]
            lookup.until_s = loop.time() + _NAME_KEPT_S
        except (OSError, UnicodeError) as error:
            lookup.fault = error
            raise
        finally:
            lookup.ended.set()
            if not lookup.addresses:
                self._lookups.pop(key, None)
        return tuple(lookup.addresses)

    def _forget_old(self, now_s: float) -> None:
        for key, lookup in tuple(self._lookups.items()):
            if lookup.ended.is_set() and lookup.until_s <= now_s:
                del self._lookups[key]

    def _worked(self, to: Destination, address: Address) -> None:
        known = self._lookups.get((to.host, to.port))
        if known is not None and address in known.addresses:
            known.addresses.remove(address)
            known.addresses.insert(0, address)


def _literal(to: Destination) -> Address | None:
    """The address that the origin itself is. One with a zone is left to the resolver, which knows zones."""
    try:
        address = ipaddress.ip_address(to.host)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv4Address):
        return socket.AF_INET, (to.host, to.port)
    if address.scope_id is not None:
        return None
    return socket.AF_INET6, (to.host, to.port, 0, 0)


async def _connect(address: Address) -> socket.socket:
    family, place = address
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.settimeout(0)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        await asyncio.get_running_loop().sock_connect(sock, place)
    except BaseException:
        sock.close()
        raise
    return sock
