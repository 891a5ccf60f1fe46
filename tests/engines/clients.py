"""Clients that the conformance suite asks for, closed at the end."""

import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from router.engines.aiohttp_upstream import AiohttpUpstream
from router.engines.httptools_upstream import HttptoolsUpstream
from router.engines.upstream import Upstream
from tests.engines.conformance import MakeUpstream


@asynccontextmanager
async def making(kind: type[AiohttpUpstream] | type[HttptoolsUpstream]) -> AsyncIterator[MakeUpstream]:
    """Makes clients of a kind for one test."""
    async with AsyncExitStack() as made:

        def make(*, keepalive_s: float = 4.0, tls: ssl.SSLContext | None = None) -> Upstream:
            upstream = kind(keepalive_s=keepalive_s, tls=tls)
            made.push_async_callback(upstream.close)
            return upstream

        yield make
