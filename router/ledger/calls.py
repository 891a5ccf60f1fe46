"""One call of a shared store: within its time, behind a breaker for each server, and never repeated.

A turn waits no longer than ``turn_s`` for an answer, half as long for a server that did not give the last one
(so that a turn which asks twice pays less than twice), and not at all for one that failed several times in a
row: ``probe`` asks that one in the background until it answers. An answer that comes too late for its turn is
not lost: whoever made the call may say what becomes of it.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha1
from importlib.resources import files
from typing import Any, Final

from redis.asyncio import RedisCluster
from redis.exceptions import NoScriptError, RedisError

from router.ledger.breaker import Breaker
from router.ledger.connection import Access, Client, connect, disconnect
from router.ledger.store import LedgerNotAsked, LedgerUnavailable

LATE_TURNS_OF_THE_LOOP: Final = 4
"""A loop that was held up sees a time-out before an answer that had come in time: it gets to read it."""
_MAX_CHARS: Final = 120
_CLOCK: Final = "local time = redis.call('TIME') return {time[1], time[2]}"

OnState = Callable[[str, bool, str], None]
"""Server, whether it is asked again or not asked any more, and why."""
OnCall = Callable[[str, float], None]
"""The operation, and how long a turn waited for it in seconds, whatever came of it."""
Late = Callable[[Any], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Script:
    """A script that the server runs in one step."""

    source: bytes
    digest: str
    name: str

    @classmethod
    def of(cls, source: str, name: str) -> "Script":
        raw = source.encode()
        return cls(raw, sha1(raw, usedforsecurity=False).hexdigest(), name)

    @classmethod
    def named(cls, name: str) -> "Script":
        """The script of that name in the folder ``lua``."""
        folder = files("router.ledger") / "lua"
        return cls.of(
            "".join((folder / f"{part}.lua").read_text(encoding="utf-8") for part in ("common", name)), name
        )


CLOCK: Final = Script.of(_CLOCK, "clock")


@dataclass(slots=True)
class _Server:
    """A server of the store. ``key`` is one that it holds, to ask it by."""

    key: bytes
    breaker: Breaker = field(default_factory=Breaker)


class Calls:
    """The calls of one store. Methods raise ``LedgerUnavailable`` and nothing else."""

    def __init__(
        self,
        access: Access,
        *,
        turn_s: float,
        on_state: OnState | None = None,
        on_call: OnCall | None = None,
    ) -> None:
        self._access = access
        self._turn_s = turn_s
        self._on_state, self._on_call = on_state, on_call
        self._client: Client | None = None
        self._free = asyncio.Semaphore(access.max_connections)
        self._servers: dict[str, _Server] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    async def run(
        self, script: Script, keys: tuple[bytes, ...], args: tuple[Any, ...], *, late: Late | None = None
    ) -> Any:
        """Run a script on the server that holds ``keys``.

        ``late`` is awaited with an answer that came after the turn had given up, or had been cancelled.
        """

        async def call() -> Any:
            return await self._evaluate(script, keys, args)

        return await self._within(keys[0], call, late, operation=script.name)

    def up(self) -> Mapping[str, bool]:
        """Whether each server that was asked so far is still asked, by its address."""
        return {name: not server.breaker.open for name, server in self._servers.items()}

    async def pipeline(self, key: bytes, commands: list[tuple[Any, ...]]) -> list[Any]:
        """Run plain commands, whichever servers they go to; ``key`` says whose breaker counts."""

        async def call() -> list[Any]:
            pipeline = self._connected().pipeline(transaction=False)
            for command in commands:
                pipeline.execute_command(*command)
            return list(await pipeline.execute())

        answers: list[Any] = await self._within(key, call, None, operation="pipeline")
        return answers

    async def probe(self, keys: tuple[bytes, ...]) -> tuple[float, float]:
        """Ask the servers that are not asked otherwise, and one of ``keys``; its time, and how long it took.

        Both in seconds. Raises LedgerUnavailable where that one does not answer.
        """
        for server in [server for server in self._servers.values() if server.breaker.open]:
            if server.key not in keys:
                await self._ask(server.key)
        return await self._asked_time(keys[0])

    async def close(self) -> None:
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        client, self._client = self._client, None
        if client is not None:
            await disconnect(client)

    async def _ask(self, key: bytes) -> None:
        try:
            await self._asked_time(key)
        except LedgerUnavailable:
            return

    async def _asked_time(self, key: bytes) -> tuple[float, float]:
        began_s = time.monotonic()
        server = self._server(key)
        try:
            async with asyncio.timeout(self._access.connect_s + self._turn_s):
                seconds, micros = await self._evaluate(CLOCK, (key,), ())
            self._answered(server)
            return int(seconds) + int(micros) / 1e6, time.monotonic() - began_s
        except (RedisError, OSError, TimeoutError, ValueError, RuntimeError) as error:
            self._failed(server, _told(error))
            raise LedgerUnavailable(_told(error)) from error

    async def _within(
        self, key: bytes, call: Callable[[], Awaitable[Any]], late: Late | None, *, operation: str
    ) -> Any:
        if self._closed:
            raise LedgerUnavailable("the ledger is closed")
        server = self._server(key)
        if server.breaker.open:
            raise LedgerNotAsked(f"the store is not asked: {server.breaker.reason}")
        began_s = time.monotonic()
        try:
            return await self._waited(server, call, late)
        finally:
            if self._on_call is not None:
                self._on_call(operation, time.monotonic() - began_s)

    async def _waited(self, server: _Server, call: Callable[[], Awaitable[Any]], late: Late | None) -> Any:
        turn_s = self._turn_s / 2 if server.breaker.failures else self._turn_s
        task = asyncio.ensure_future(self._limited(call))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            await asyncio.wait({task}, timeout=turn_s)
            for _ in range(LATE_TURNS_OF_THE_LOOP):
                if not task.done():
                    await asyncio.sleep(0)
        except asyncio.CancelledError:
            self._leave(task, late)
            raise
        if not task.done():
            self._leave(task, late)
            reason = f"no answer within {turn_s:g} s"
            self._failed(server, reason)
            raise LedgerUnavailable(reason)
        try:
            answer = task.result()
        except (RedisError, OSError, TimeoutError, ValueError, RuntimeError) as error:
            self._failed(server, _told(error))
            raise LedgerUnavailable(_told(error)) from error
        self._answered(server)
        return answer

    async def _limited(self, call: Callable[[], Awaitable[Any]]) -> Any:
        # A connection's own time-outs end this; the sum is a last limit on what is left alone.
        async with self._free, asyncio.timeout(self._access.connect_s + self._access.answer_s):
            return await call()

    def _leave(self, task: asyncio.Task[Any], late: Late | None) -> None:
        """Nobody waits for ``task`` any more."""

        async def follow() -> None:
            try:
                answer = await task
                if late is not None:
                    await late(answer)
            except (RedisError, OSError, TimeoutError, ValueError, RuntimeError, LedgerUnavailable):
                return  # it is as lost as the turn has taken it to be

        following = asyncio.ensure_future(follow())
        self._tasks.add(following)
        following.add_done_callback(self._tasks.discard)

    async def _evaluate(self, script: Script, keys: tuple[bytes, ...], args: tuple[Any, ...]) -> Any:
        client = self._connected()
        try:
            return await client.execute_command("EVALSHA", script.digest, len(keys), *keys, *args)
        except NoScriptError:
            # Nothing was run. This runs it and makes it known, also on the one node of a cluster.
            return await client.execute_command("EVAL", script.source, len(keys), *keys, *args)

    def _connected(self) -> Client:
        if self._client is None:
            self._client = connect(self._access)
        return self._client

    def _server(self, key: bytes) -> _Server:
        name = self._server_name(key)
        server = self._servers.get(name)
        if server is None:
            server = self._servers[name] = _Server(key)
        return server

    def _server_name(self, key: bytes) -> str:
        if isinstance(self._client, RedisCluster):
            try:
                node = self._client.get_node_from_key(key.decode("latin-1"))
            except (RedisError, KeyError, IndexError):
                node = None
            if node is not None:
                return str(node.name)
        return str(self._access.address)

    def _answered(self, server: _Server) -> None:
        if server.breaker.answered():
            self._tell(server, up=True, reason="it answers")

    def _failed(self, server: _Server, reason: str) -> None:
        if server.breaker.failed(reason):
            self._tell(server, up=False, reason=reason)

    def _tell(self, server: _Server, *, up: bool, reason: str) -> None:
        if self._on_state is not None:
            name = next(name for name, one in self._servers.items() if one is server)
            self._on_state(name, up, reason)


def _told(error: BaseException) -> str:
    """What went wrong, for an operator. A server that does not know a command quotes what it was sent."""
    text = str(error).partition("with args")[0].rstrip(" ,")
    return f"{type(error).__name__}{f': {text[:_MAX_CHARS]}' if text else ''}"
