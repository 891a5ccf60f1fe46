"""Where a shared store is, as operators write it, and as it may be shown: never with a password. Pure.

    redis://[USER@]HOST[:PORT][/DATABASE]          one server; rediss:// with TLS
    redis+cluster://[USER@]HOST[:PORT][,HOST…]     a cluster, by some of its nodes; rediss+cluster://
    redis+sentinel://[USER@]HOST[:PORT][,HOST…]/NAME   the primary that sentinels name; rediss+sentinel://

``valkey`` may stand for ``redis`` everywhere.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import unquote

_ADDRESS = re.compile(
    r"(?P<scheme>redis|rediss|valkey|valkeys)(?:\+(?P<kind>cluster|sentinel))?://"
    r"(?:(?P<user>[^:@/]*)(?::(?P<password>[^@/]*))?@)?(?P<hosts>[^/@?#]+)(?:/(?P<path>[^/?#]*))?"
)
_HOST = re.compile(r"(?P<host>\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>\d{1,5}))?")
PORTS = {"single": 6379, "cluster": 6379, "sentinel": 26379}


class Kind(StrEnum):
    """How the servers of a store hang together."""

    SINGLE = "single"
    CLUSTER = "cluster"
    SENTINEL = "sentinel"


@dataclass(frozen=True, slots=True)
class Address:
    """Where a store is. ``repr`` does not show the password."""

    kind: Kind
    tls: bool
    hosts: tuple[tuple[str, int], ...]
    user: str = ""
    password: str = ""
    database: int = 0
    primary: str = ""
    """The name by which sentinels know it."""

    def __str__(self) -> str:
        """As it may be shown."""
        scheme = ("rediss" if self.tls else "redis") + ("" if self.kind is Kind.SINGLE else f"+{self.kind}")
        hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)
        path = self.primary or (str(self.database) if self.database else "")
        return f"{scheme}://{f'{self.user}@' if self.user else ''}{hosts}{f'/{path}' if path else ''}"

    __repr__ = __str__


def parse_address(text: str) -> Address:
    """Raises ValueError, whose text holds nothing of ``text``: there may be a password in it."""
    match = _ADDRESS.fullmatch(text)
    if match is None:
        raise ValueError(
            "expected redis://HOST:PORT, rediss:// for TLS, redis+cluster:// or redis+sentinel://…/NAME"
        )
    kind = Kind(match["kind"] or Kind.SINGLE)
    path, database, primary = unquote(match["path"] or ""), 0, ""
    if kind is Kind.SENTINEL:
        if not path:
            raise ValueError("a sentinel address ends in the primary's name: redis+sentinel://HOST:PORT/NAME")
        primary = path
    elif path:
        if kind is Kind.CLUSTER or not path.isdecimal() or len(path) > 4:
            raise ValueError("what follows the host is a database's number, and a cluster has none")
        database = int(path)
    hosts = tuple(_host(one, PORTS[kind]) for one in match["hosts"].split(","))
    if kind is Kind.SINGLE and len(hosts) > 1:
        raise ValueError("several hosts are for redis+cluster:// and redis+sentinel://")
    return Address(
        kind=kind,
        tls=match["scheme"] in ("rediss", "valkeys"),
        hosts=hosts,
        user=unquote(match["user"] or ""),
        password=unquote(match["password"] or ""),
        database=database,
        primary=primary,
    )


def _host(text: str, default_port: int) -> tuple[str, int]:
    match = _HOST.fullmatch(text.strip())
    if match is None:
        raise ValueError("a host is HOST, HOST:PORT or [IPV6]:PORT")
    port = int(match["port"] or default_port)
    if not 0 < port < 65_536:
        raise ValueError("a port lies between 1 and 65535")
    return match["host"].strip("[]"), port
