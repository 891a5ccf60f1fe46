"""Pass-through proxies that stand between the router and the engines, and write down each leg.

The router throws P's one sampled token away and keeps the engines' parameters to itself. Here both are seen
as they are on the wire. Where the router does not ask P for token ids, they are asked for here, and taken out
of the answer again. A test can also hold answers back, or change what a leg carries: trouble below the router
that it cannot know of.
"""

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import aiohttp
from aiohttp import web

Json = dict[str, Any]
Edit = Callable[[str, Json], Json]
"""From a leg's role and ``kv_transfer_params`` to the params that are sent in their place."""

PARAMS = "kv_transfer_params"
_DONE = b"data: [DONE]"
INFERENCE = ("/v1/chat/completions", "/v1/completions")

# Hop by hop, or made anew on the other side.
_NOT_FORWARDED = frozenset({"host", "connection", "keep-alive", "transfer-encoding", "content-length"})


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request, as it was sent to the engine, and its answer. A body that is no JSON object is None."""

    role: str
    path: str
    request: Json | None
    status: int
    """0 where the engine gave no answer, or nobody waited for it."""
    response: Json | None
    events: tuple[Json, ...]
    """The chunks of a streamed answer."""
    duration_s: float

    @property
    def sent(self) -> Json:
        """The params of the leg; empty without any."""
        return (self.request or {}).get(PARAMS) or {}

    @property
    def handle(self) -> Json | None:
        """The params in the answer, streamed or not."""
        given = [each[PARAMS] for each in (self.response or {}, *self.events) if each.get(PARAMS)]
        assert len(given) <= 1, "an answer has one handle"
        return given[0] if given else None


def _json_object(body: bytes) -> Json | None:
    try:
        value = json.loads(body)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _events(body: bytes) -> tuple[Json, ...]:
    lines = [line[len(b"data: ") :] for line in body.split(b"\n") if line.startswith(b"data: {")]
    return tuple(found for line in lines if (found := _json_object(line)) is not None)


def _without_ids(answer: Json) -> bytes:
    """P's answer as it is where nobody asked for token ids."""
    choices = [choice | {"token_ids": None} for choice in answer.get("choices", ())]
    return json.dumps(answer | {"prompt_token_ids": None, "choices": choices}).encode()


class Recorder:
    """One proxy per role, in a thread and a loop of its own. A context manager.

    ``exchanges`` grows from that thread; an exchange is in it before its answer's last byte goes out, so
    whoever has an answer finds the legs that led to it.
    """

    def __init__(self, prefill_url: str, decode_url: str) -> None:
        self.exchanges: list[Exchange] = []
        self.open: Counter[str] = Counter()
        """Legs, by role, that have been sent to the engine and have not ended."""
        self.urls: dict[str, str] = {}
        self._edit: Edit | None = None
        self._held_back: set[str] = set()
        self._upstreams = {"prefill": prefill_url, "decode": decode_url}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._runners: list[web.AppRunner] = []
        self._session: aiohttp.ClientSession | None = None

    @contextmanager
    def editing(self, edit: Edit) -> Iterator[None]:
        """Change the params of legs while this is open."""
        self._edit = edit
        try:
            yield
        finally:
            self._edit = None

    @contextmanager
    def holding_back(self, role: str) -> Iterator[None]:
        """Give no answer of a role's legs on while this is open; those that end meanwhile are lost."""
        self._held_back.add(role)
        try:
            yield
        finally:
            self._held_back.discard(role)

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(timeout=30)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(timeout=60)
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
            body = await request.read()
            leg = _Leg(role, request, _json_object(body), body, self._edit)
            if request.path in INFERENCE:
                self.open[role] += 1
            try:
                return await self._pass_on(leg)
            except (aiohttp.ClientError, ConnectionError):
                # As it would be without this proxy: a connection that breaks, and no answer.
                if request.transport is not None:
                    request.transport.abort()
                raise
            finally:
                if request.path in INFERENCE:
                    self.open[role] -= 1
                    self._record(leg, 0, b"")

        return forward

    async def _pass_on(self, leg: "_Leg") -> web.StreamResponse:
        assert self._session is not None
        url = self._upstreams[leg.role] + leg.request.raw_path
        async with self._session.request(
            leg.request.method, url, data=leg.body or None, headers=leg.headers, allow_redirects=False
        ) as upstream:
            kept = {k: v for k, v in upstream.headers.items() if k.lower() not in _NOT_FORWARDED}
            response = web.StreamResponse(status=upstream.status, headers=kept)
            while leg.role in self._held_back and leg.is_inference:
                await asyncio.sleep(0.05)
            await response.prepare(leg.request)
            seen = bytearray()
            async for chunk in upstream.content.iter_any():
                seen += chunk
                if seen.rstrip().endswith(_DONE):
                    self._record(leg, upstream.status, bytes(seen))  # nobody need wait for more
                if not leg.hides_ids:
                    await response.write(chunk)
            self._record(leg, upstream.status, bytes(seen))
            if leg.hides_ids:
                answer = _json_object(bytes(seen))
                await response.write(_without_ids(answer) if answer else bytes(seen))
            await response.write_eof()
        return response

    def _record(self, leg: "_Leg", status: int, answer: bytes) -> None:
        if leg.is_inference and not leg.recorded:
            leg.recorded = True
            self.exchanges.append(leg.exchange(status, answer))


class _Leg:
    """One request on its way, as it goes on to the engine."""

    def __init__(
        self, role: str, request: web.Request, asked: Json | None, body: bytes, edit: Edit | None
    ) -> None:
        self.role, self.request = role, request
        self.is_inference = request.path in INFERENCE
        self.hides_ids = False
        self.recorded = False
        self.headers = {k: v for k, v in request.headers.items() if k.lower() not in _NOT_FORWARDED}
        self.body = body
        self._asked = asked
        self._started_s = time.monotonic()
        if asked is None or not self.is_inference:
            return
        changes: Json = {}
        if role == "prefill" and not asked.get("return_token_ids"):
            self.hides_ids = True
            changes["return_token_ids"] = True
        if edit is not None and asked.get(PARAMS):
            changes[PARAMS] = edit(role, asked[PARAMS])
        if changes:
            self._asked = asked | changes
            self.body = json.dumps(self._asked).encode()

    def exchange(self, status: int, answer: bytes) -> Exchange:
        return Exchange(
            role=self.role,
            path=self.request.path,
            request=self._asked,
            status=status,
            response=_json_object(answer),
            events=_events(answer),
            duration_s=time.monotonic() - self._started_s,
        )
