"""How engines reach each other's KV: the side channel. In process it is a call, else HTTP."""

import asyncio
from typing import Any, Literal, Protocol

import aiohttp
import msgspec

from router.sim.blocks import Kv

Kept = Literal["kept", "used", "expired", "unknown"]


class ReadAnswer(msgspec.Struct, frozen=True):
    """What a peer's memory held when it was read."""

    status: Literal["ok", "engine_gone", "declined"]
    """``declined``: the reader's own check of the expiry time failed; nothing was read."""
    kept: Kept = "unknown"
    kvs: tuple[Kv, ...] = ()
    block_size: int = 0
    pinned_blocks: int = 0
    """How many blocks the peer had kept; 0 where it keeps none any more."""


class KvRead(msgspec.Struct, frozen=True):
    engine_id: str
    request_id: str
    blocks: tuple[int, ...]
    expiry_s: float | None = None


class Peer(Protocol):
    """The side of an engine that others see."""

    address: tuple[str, int]

    def serve_read(self, ask: KvRead) -> ReadAnswer: ...

    def serve_notify(self, engine_id: str, request_id: str) -> None: ...

    def serve_hold(self, engine_id: str, request_id: str) -> None: ...


class Fabric(Protocol):
    def join(self, peer: Peer, address: tuple[str, int] | None) -> tuple[str, int]:
        """Make an engine reachable; returns the address that it is to name in its params."""

    async def read(self, address: tuple[str, int], ask: KvRead) -> ReadAnswer:
        """Read a peer's blocks. An engine that cannot be reached is ``engine_gone``."""

    def notify(self, address: tuple[str, int], engine_id: str, request_id: str) -> None:
        """Tell a peer that its blocks were read, or are not wanted. Nobody waits for it."""

    def hold(self, address: tuple[str, int], engine_id: str, request_id: str) -> None:
        """Renew a peer's lease until the read: what vLLM's heartbeats come to."""

    async def close(self) -> None: ...


class LocalFabric:
    """Engines of one process."""

    def __init__(self) -> None:
        self._peers: dict[tuple[str, int], Peer] = {}

    def join(self, peer: Peer, address: tuple[str, int] | None) -> tuple[str, int]:
        chosen = address or ("127.0.0.1", 5_600 + len(self._peers))
        self._peers[chosen] = peer
        return chosen

    async def read(self, address: tuple[str, int], ask: KvRead) -> ReadAnswer:
        peer = self._peers.get(address)
        return peer.serve_read(ask) if peer else ReadAnswer("engine_gone")

    def notify(self, address: tuple[str, int], engine_id: str, request_id: str) -> None:
        if peer := self._peers.get(address):
            peer.serve_notify(engine_id, request_id)

    def hold(self, address: tuple[str, int], engine_id: str, request_id: str) -> None:
        if peer := self._peers.get(address):
            peer.serve_hold(engine_id, request_id)

    async def close(self) -> None:
        self._peers.clear()


class HttpFabric:
    """Engines of any process: ``POST /sim/kv`` on the peer's own port."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None
        self._notices: set[asyncio.Task[None]] = set()

    def join(self, peer: Peer, address: tuple[str, int] | None) -> tuple[str, int]:
        return address or ("127.0.0.1", 0)  # the server that carries the engine knows better

    async def _post(self, address: tuple[str, int], body: dict[str, Any]) -> bytes:
        if self._session is None:
            # A connection each: KV does not go over HTTP in a real pool, so an engine's own keep-alive must
            # not make a read fail.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(force_close=True), timeout=aiohttp.ClientTimeout(total=30)
            )
        url = f"http://{address[0]}:{address[1]}/sim/kv"
        async with self._session.post(url, data=msgspec.msgpack.encode(body)) as answer:
            answer.raise_for_status()
            return await answer.read()

    async def read(self, address: tuple[str, int], ask: KvRead) -> ReadAnswer:
        try:
            raw = await self._post(address, {"do": "read", "ask": ask})
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return ReadAnswer("engine_gone")
        return msgspec.msgpack.decode(raw, type=ReadAnswer)

    def notify(self, address: tuple[str, int], engine_id: str, request_id: str) -> None:
        self._tell(address, {"do": "notify", "engine_id": engine_id, "request_id": request_id})

    def hold(self, address: tuple[str, int], engine_id: str, request_id: str) -> None:
        self._tell(address, {"do": "hold", "engine_id": engine_id, "request_id": request_id})

    def _tell(self, address: tuple[str, int], body: dict[str, Any]) -> None:
        async def tell() -> None:
            try:
                await self._post(address, body)
            except (aiohttp.ClientError, TimeoutError, ValueError):
                return  # nobody waits for a notice; the peer's own time-out frees its blocks

        task = asyncio.get_running_loop().create_task(tell())
        self._notices.add(task)
        task.add_done_callback(self._notices.discard)

    async def close(self) -> None:
        for task in tuple(self._notices):
            task.cancel()
        if self._session is not None:
            await self._session.close()
            self._session = None


class KvNotice(msgspec.Struct, frozen=True):
    """The body of ``POST /sim/kv``."""

    do: Literal["read", "notify", "hold"]
    engine_id: str = ""
    request_id: str = ""
    ask: KvRead | None = None


def serve(peer: Peer, raw: bytes) -> bytes:
    """Answer one ``POST /sim/kv``. Raises msgspec.DecodeError for a body that is none."""
    notice = msgspec.msgpack.decode(raw, type=KvNotice)
    if notice.do == "read" and notice.ask is not None:
        return msgspec.msgpack.encode(peer.serve_read(notice.ask))
    if notice.do == "hold":
        peer.serve_hold(notice.engine_id, notice.request_id)
    else:
        peer.serve_notify(notice.engine_id, notice.request_id)
    return b""
