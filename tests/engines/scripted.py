"""Raw TCP servers that follow a script, for what no well-behaved HTTP server would do."""

import asyncio
import contextlib
import os
import resource
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")

PATIENCE_S = 10.0
"""How long a test waits for what has to happen; only a failing test waits that long."""


async def soon(awaitable: Awaitable[T]) -> T:
    return await asyncio.wait_for(awaitable, PATIENCE_S)


@dataclass(frozen=True, slots=True)
class Seen:
    """A request as it came off the wire."""

    line: str
    headers: tuple[tuple[str, str], ...]
    body: bytes = b""

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name), None)


@dataclass(slots=True)
class Peer:
    """One connection, seen from the engine."""

    number: int
    """Of how many this one is the latest; the first is 1."""
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """The client has closed the connection, or reset it."""

    async def head(self) -> Seen:
        raw = (await soon(self.reader.readuntil(b"\r\n\r\n"))).decode("latin-1")
        line, *rest = raw.split("\r\n")[:-2]
        pairs = (entry.partition(": ") for entry in rest)
        return Seen(line, tuple((name, value) for name, _, value in pairs))

    async def request(self) -> Seen:
        head = await self.head()
        length = int(head.header("content-length") or 0)
        return Seen(head.line, head.headers, await soon(self.reader.readexactly(length)))

    async def say(self, data: bytes) -> None:
        self.writer.write(data)
        await soon(self.writer.drain())

    async def answer(self, body: bytes = b"ok", *, status: str = "200 OK", headers: str = "") -> None:
        await self.say(f"HTTP/1.1 {status}\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body)

    async def chunk(self, data: bytes) -> None:
        await self.say(b"%x\r\n%s\r\n" % (len(data), data))

    async def wait_gone(self) -> None:
        """Until the client closes or resets; what it still sends is thrown away."""
        try:
            while await self.reader.read(65_536):
                pass
        except ConnectionError:
            pass
        self.gone.set()

    def reset(self) -> None:
        """Close with a TCP reset."""
        sock: socket.socket = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


Script = Callable[[Peer], Awaitable[None]]


@dataclass(slots=True)
class Engine:
    origin: str
    port: int
    peers: list[Peer] = field(default_factory=list)
    faults: list[Exception] = field(default_factory=list)


@asynccontextmanager
async def engine(
    script: Script, *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> AsyncIterator[Engine]:
    """Run ``script`` on each connection, and close it at its end. Faults of a script are raised here.

    A test lets the connections that it opens arrive before it ends: uvloop loses track of one that comes
    while its server closes, and reports that as a leak.
    """
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(len(here.peers) + 1, reader, writer)
        here.peers.append(peer)
        try:
            await script(peer)
        except (ConnectionError, asyncio.IncompleteReadError):
            peer.gone.set()
        except Exception as fault:
            here.faults.append(fault)
        finally:
            writer.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, host, 0, ssl=tls, backlog=1024)
    port = server.sockets[0].getsockname()[1]
    name = f"[{host}]" if ":" in host else host
    here = Engine(f"{'https' if tls else 'http'}://{name}:{port}", port)
    try:
        yield here
    finally:
        running = tuple(tasks)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for peer in here.peers:
            peer.writer.transport.abort()
        server.close()
        await asyncio.sleep(0)
    if here.faults:
        raise here.faults[0]


@contextlib.contextmanager
def no_files_left() -> Iterator[None]:
    """This process can open no file and no socket meanwhile."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = os.open(os.devnull, os.O_RDONLY)
    resource.setrlimit(resource.RLIMIT_NOFILE, (taken + 1, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        os.close(taken)


def closed_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port
