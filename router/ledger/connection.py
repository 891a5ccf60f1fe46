"""A client of redis-py for an address: no retries of its own, no handshakes that are not needed.

A repeated ``find`` would lose the handle that the first one took, so nothing is ever sent twice.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis.asyncio import Redis, RedisCluster, Sentinel
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider
from redis.maint_notifications import MaintNotificationsConfig

from router.ledger.address import Address, Kind

Client = Redis | RedisCluster


@dataclass(frozen=True, slots=True)
class Access:
    """How a store is reached. Times in seconds."""

    address: Address
    connect_s: float = 0.05
    answer_s: float = 1.0
    """When a connection whose answer is overdue is given up. Turns do not wait that long."""
    max_connections: int = 64
    password_file: Path | None = None
    ca_file: Path | None = None


class _PasswordFile(CredentialProvider):
    """Reads the password anew for every connection, so that it can be rotated."""

    def __init__(self, user: str, file: Path) -> None:
        self._user, self._file = user, file

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        password = self._file.read_text(encoding="utf-8").strip()
        return (self._user, password) if self._user else (password,)

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        return self.get_credentials()


def connect(access: Access) -> Client:
    """A client; nothing is sent yet."""
    address = access.address
    options: dict[str, Any] = {
        "socket_timeout": access.answer_s,
        "socket_connect_timeout": access.connect_s,
        "protocol": 2,
        "driver_info": None,
        "retry": Retry(NoBackoff(), 0),
        "maint_notifications_config": MaintNotificationsConfig(enabled=False),
        "max_connections": access.max_connections,
    }
    if access.password_file is not None:
        options["credential_provider"] = _PasswordFile(address.user, access.password_file)
    elif address.user or address.password:
        options |= {"username": address.user or None, "password": address.password or None}
    if address.tls:
        options |= {"ssl": True, "ssl_ca_certs": str(access.ca_file) if access.ca_file else None}
    if address.kind is Kind.CLUSTER:
        nodes = [ClusterNode(host, port) for host, port in address.hosts]
        return RedisCluster(startup_nodes=nodes, require_full_coverage=False, **options)
    if address.kind is Kind.SENTINEL:
        limits = {key: options[key] for key in ("socket_timeout", "socket_connect_timeout", "retry")}
        sentinel: Any = Sentinel(list(address.hosts), sentinel_kwargs=limits)  # type: ignore[no-untyped-call]
        client: Redis = sentinel.master_for(address.primary, db=address.database, **options)
        return client
    host, port = address.hosts[0]
    return Redis(host=host, port=port, db=address.database, **options)


async def disconnect(client: Client) -> None:
    """Close all connections, also those that the client itself forgets."""
    await client.aclose()
    if isinstance(client, RedisCluster):
        # It closes nothing while it means to look at the cluster anew, as after every failed call.
        for nodes in ("nodes_cache", "startup_nodes"):
            await client.nodes_manager.aclose(nodes)
        return
    await client.connection_pool.disconnect()
    if isinstance(client.connection_pool, SentinelConnectionPool):
        for sentinel in client.connection_pool.sentinel_manager.sentinels:
            await sentinel.aclose()
