"""Pass-through proxies that stand between the router and the engines, and write down each leg.

The router throws P's one sampled token away and keeps the engines' parameters to itself. Here both are seen
as they are on the wire, without changing either side.
"""

import asyncio
import json
import threading
import time
from dataclasses import dataclass
from typing import Any, Self

import aiohttp
from aiohttp import web

Json = dict[str, Any]

# Hop by hop, or made anew on the other side.
_NOT_FORWARDED = frozenset({"host", "connection", "keep-alive", "transfer-encoding", "content-length"})


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and its answer. Bodies that are not JSON objects are None."""

    role: str
    path: str
    request: Json | None
    status: int
    response: Json | None
    duration_s: float


def _json_object(body: bytes) -> Json | None:
    try:
        value = json.loads(body)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


class Recorder:
    """One proxy per role, in a thread and a loop of its own. A context manager.

    ``exchanges`` grows from that thread; an exchange is in it before its answer's last byte goes out, so
    whoever has an answer finds the legs that led to it.
    """

    def __init__(self, prefill_url: str, decode_url: str) -> None:
        self.exchanges: list[Exchange] = []
        self.urls: dict[str, str] = {}
        self._upstreams = {"prefill": prefill_url, "decode": decode_url}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._runners: list[web.AppRunner] = []
        self._session: aiohttp.ClientSession | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(timeout=30)
        return self

    def __exit__(self, *_error: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(timeout=30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _start(self) -> None:
        # A connection per request: vLLM closes idle ones after 5 s, and a retry here would be a second leg.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(force_close=True),
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
        )
        for role in self._upstreams:
            app = web.Application(client_max_size=64 << 20)
            app.router.add_route("*", "/{path:.*}", self._handler(role))
            # A caller that leaves has to be seen by the engine as well.
            runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self._runners.append(runner)
            self.urls[role] = f"http://127.0.0.1:{runner.addresses[0][1]}"

    async def _stop(self) -> None:
        for runner in self._runners:
            await runner.cleanup()
        if self._session is not None:
            await self._session.close()

    def _handler(self, role: str) -> Any:
        async def forward(request: web.Request) -> web.StreamResponse:
            assert self._session is not None
            started = time.monotonic()
            body = await request.read()
            headers = {k: v for k, v in request.headers.items() if k.lower() not in _NOT_FORWARDED}
            url = self._upstreams[role] + request.raw_path
            async with self._session.request(
                request.method, url, data=body or None, headers=headers, allow_redirects=False
            ) as upstream:
                kept = {k: v for k, v in upstream.headers.items() if k.lower() not in _NOT_FORWARDED}
                response = web.StreamResponse(status=upstream.status, headers=kept)
                await response.prepare(request)
                seen = bytearray()
                async for chunk in upstream.content.iter_any():
                    seen += chunk
                    await response.write(chunk)
                self.exchanges.append(
                    Exchange(
                        role=role,
                        path=request.path,
                        request=_json_object(body),
                        status=upstream.status,
                        response=_json_object(bytes(seen)),
                        duration_s=time.monotonic() - started,
                    )
                )
                await response.write_eof()
            return response

        return forward
