"""A listing that a test waits on, and a source that runs meanwhile."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from router.fleet.discovery.reconcile import Source
from router.fleet.node import Node

PATIENCE_S = 30.0


@dataclass(slots=True)
class Listened:
    """What a source has told, in order: lists of keys, and reasons of failures."""

    told: list[tuple[str, ...] | str] = field(default_factory=list)
    nodes: tuple[Node, ...] = ()
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def are(self, nodes: Iterable[Node]) -> None:
        self.nodes = tuple(nodes)
        self.told.append(tuple(node.key for node in self.nodes))
        self._changed.set()

    def failed(self, why: str) -> None:
        self.told.append(why)
        self._changed.set()

    @property
    def failures(self) -> list[str]:
        return [told for told in self.told if isinstance(told, str)]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def until_keys(self, *keys: str) -> None:
        """The newest list is this one."""
        await self.until(lambda: bool(self.told) and self.told[-1] == keys)


@asynccontextmanager
async def listening(source: Source) -> AsyncIterator[Listened]:
    """Run a source; it must not end by itself."""
    heard = Listened()
    running = asyncio.ensure_future(source.run(heard))
    try:
        yield heard
        assert not running.done()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
