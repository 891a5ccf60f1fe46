"""Nodes from a name: each of its addresses is an engine, as behind a headless Service.

The name is looked up every ``dns_interval_s`` seconds. A look-up that fails changes nothing, also where it
says that there is no such name: that is what a resolver answers for a while after a Service was made, and
what one that is overloaded may answer for any.

Where a name has IPv4 and IPv6 addresses, only the former are nodes: the engines behind a name of both
families have one of each, and are not to be taken for two.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from router.fleet.discovery.reconcile import Listing
from router.fleet.node import Role, node_of
from router.origin import at_port, parse_dns

LOOKUP_S: Final = 5.0

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""The addresses of a name. Raises OSError."""


async def system_addresses(name: str, port: int) -> Sequence[str]:
    """What the system's resolver says. Raises OSError, TimeoutError among them."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(LOOKUP_S):
        found = await loop.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    # A scope behind "%" names an interface of this machine: such an address is no origin.
    return [str(address[0]) for *_, address in found if "%" not in str(address[0])]


class DnsName:
    """The source that ``dns://NAME:PORT`` names. Raises ValueError for anything else."""

    def __init__(
        self, address: str, role: Role, *, interval_s: float, resolve: Resolve = system_addresses
    ) -> None:
        self._host, self._port = parse_dns(address)
        self._role, self._interval_s, self._resolve = role, interval_s, resolve

    @property
    def name(self) -> str:
        return f"{self._role} dns://{self._host}:{self._port}"

    async def run(self, listing: Listing) -> None:
        while True:
            try:
                found = _of_one_family(await self._resolve(self._host, self._port))
                if found:
                    listing.are(node_of(at_port(address, self._port), self._role) for address in found)
                else:
                    listing.failed("the name has no address")
            except TimeoutError:
                listing.failed(f"no answer to a look-up within {LOOKUP_S:g} s")
            except (OSError, ValueError) as error:
                listing.failed(f"the look-up failed: {getattr(error, 'strerror', None) or error}")
            await asyncio.sleep(self._interval_s)


def _of_one_family(addresses: Sequence[str]) -> list[str]:
    """The IPv4 addresses, where there are any, else the others; sorted, each once."""
    distinct = sorted(set(addresses))
    return [address for address in distinct if ":" not in address] or distinct
