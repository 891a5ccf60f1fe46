"""A small Kubernetes API server: EndpointSlices, listed and watched, with RBAC and a short memory."""

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

PATH = "/apis/discovery.k8s.io/v1/namespaces/serving/endpointslices"


def endpoint(*addresses: str, ready: bool | None = True, uid: str = "") -> dict[str, Any]:
    told: dict[str, Any] = {"addresses": list(addresses), "conditions": {"ready": ready}}
    if uid:
        told["targetRef"] = {"kind": "Pod", "uid": uid}
    return told


def endpoint_slice(
    name: str, *endpoints: dict[str, Any], family: str = "IPv4", **labels: str
) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "serving", "labels": {"app": "vllm", **labels}},
        "addressType": family,
        "endpoints": list(endpoints),
        "ports": [{"name": "metrics", "port": 9090}, {"name": "http", "port": 8000}],
    }


@dataclass(slots=True)
class ApiServer:
    """Its state, and what it was asked. ``forget`` makes it answer 410 to all older versions."""

    origin: str = ""
    token: str = "tok"
    allowed: bool = True
    version: int = 100
    oldest: int = 0
    slices: dict[str, dict[str, Any]] = field(default_factory=dict)
    events: list[tuple[int, str]] = field(default_factory=list)
    lists: int = 0
    watches: list[str] = field(default_factory=list)
    """The version from which each watch began."""
    open_watches: int = 0
    seen: list[dict[str, str]] = field(default_factory=list)
    gone_as_event: bool = False
    _moved: asyncio.Event = field(default_factory=asyncio.Event)
    _cuts: int = 0

    def put(self, piece: dict[str, Any]) -> None:
        name = piece["metadata"]["name"]
        self._event("MODIFIED" if name in self.slices else "ADDED", piece)
        self.slices[name] = piece

    def delete(self, name: str) -> None:
        self._event("DELETED", self.slices.pop(name))

    def bookmark(self) -> None:
        self._event("BOOKMARK", {"metadata": {}})

    def send(self, line: str) -> None:
        """Put anything into the watches."""
        self.version += 1
        self.events.append((self.version, line))
        self._wake()

    def cut_watches(self) -> None:
        """Break the connection of every watch."""
        self._cuts += 1
        self._wake()

    def forget(self) -> None:
        """A compaction: what came before is not known any more."""
        self.version += 1
        self.oldest = self.version

    def _event(self, kind: str, piece: dict[str, Any]) -> None:
        self.version += 1
        piece["metadata"]["resourceVersion"] = str(self.version)
        self.events.append((self.version, json.dumps({"type": kind, "object": piece})))
        self._wake()

    def _wake(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(dict(request.headers))
        if request.headers.get("authorization") != f"Bearer {self.token}":
            return _status(401, "Unauthorized")
        if not self.allowed:
            return _status(403, "endpointslices.discovery.k8s.io is forbidden: cannot list resource")
        if request.query.get("watch") == "1":
            return await self._watch(request)
        self.lists += 1
        wanted = dict(pair.split("=") for pair in request.query["labelSelector"].split(","))
        items = [p for p in self.slices.values() if wanted.items() <= p["metadata"]["labels"].items()]
        return web.json_response({"metadata": {"resourceVersion": str(self.version)}, "items": items})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        begin, cuts = int(request.query["resourceVersion"]), self._cuts
        self.watches.append(request.query["resourceVersion"])
        if begin < self.oldest and not self.gone_as_event:
            return _status(410, "too old resource version")
        response = web.StreamResponse()
        await response.prepare(request)
        if begin < self.oldest:
            gone = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old"}}
            await response.write(json.dumps(gone).encode() + b"\n")
            return response
        self.open_watches += 1
        try:
            while cuts == self._cuts:
                for version, line in self.events:
                    if version > begin:
                        begin = version
                        # In two pieces: a line is whole only at its end.
                        raw = line.encode() + b"\n"
                        await response.write(raw[:7])
                        await response.write(raw[7:])
                await self._moved.wait()
        finally:
            self.open_watches -= 1
        if request.transport is not None:
            request.transport.abort()
        return response


def _status(code: int, message: str) -> web.Response:
    return web.json_response({"kind": "Status", "code": code, "message": message}, status=code)


@asynccontextmanager
async def api_server(*, tls: ssl.SSLContext | None = None) -> AsyncIterator[ApiServer]:
    server = ApiServer()
    app = web.Application()
    app.router.add_get(PATH, server.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    ((_, port),) = [address[:2] for address in runner.addresses]
    server.origin = f"{'https' if tls else 'http'}://127.0.0.1:{port}"
    try:
        yield server
    finally:
        server.cut_watches()
        with contextlib.suppress(asyncio.CancelledError):
            await runner.cleanup()
