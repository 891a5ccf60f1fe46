"""A small OpenTelemetry collector: it takes spans over OTLP and HTTP, and keeps them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

ERROR = 2
"""STATUS_CODE_ERROR of OTLP."""


@dataclass(frozen=True, slots=True)
class Event:
    name: str
    attributes: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Got:
    """A span, as it was on the wire. Ids are hex; ``error`` is the status's text, None where it is none."""

    name: str
    kind: int
    trace_id: str
    span_id: str
    parent_id: str
    began_ns: int
    ended_ns: int
    attributes: dict[str, Any]
    events: list[Event]
    error: str | None
    resource: dict[str, Any]


@dataclass(slots=True)
class Collector:
    """``status`` is what it answers; while ``held`` is set it does not answer at all."""

    origin: str = ""
    status: int = 200
    held: bool = False
    asked: int = 0
    raw: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    spans: list[Got] = field(default_factory=list)
    go: asyncio.Event = field(default_factory=asyncio.Event)

    async def take(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.asked += 1
        if self.held:
            await self.go.wait()
        if self.status != 200:
            return web.Response(status=self.status)
        self.raw.append(body)
        self.headers.append(dict(request.headers))
        self.spans.extend(spans_in(body))
        return web.Response(
            body=ExportTraceServiceResponse().SerializeToString(), content_type="application/x-protobuf"
        )

    def named(self, name: str) -> list[Got]:
        return [span for span in self.spans if span.name == name]


def spans_in(body: bytes) -> list[Got]:
    """The spans of a request's body. Raises ``DecodeError`` for one that is none."""
    found: list[Got] = []
    for resource_spans in ExportTraceServiceRequest.FromString(body).resource_spans:
        resource = _attributes(resource_spans.resource.attributes)
        for scope_spans in resource_spans.scope_spans:
            found += [_got(span, resource) for span in scope_spans.spans]
    return found


def _got(span: Any, resource: dict[str, Any]) -> Got:
    return Got(
        span.name,
        span.kind,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        _attributes(span.attributes),
        [Event(event.name, _attributes(event.attributes)) for event in span.events],
        span.status.message if span.status.code == ERROR else None,
        resource,
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    return getattr(value, kind)


@asynccontextmanager
async def collecting(port: int = 0) -> AsyncIterator[Collector]:
    """A collector on a free port, or on that one."""
    collector = Collector()
    app = web.Application()
    app.router.add_post("/v1/traces", collector.take)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    host, bound = runner.addresses[0][:2]
    collector.origin = f"http://{host}:{bound}"
    try:
        yield collector
    finally:
        collector.go.set()
        await runner.cleanup()
