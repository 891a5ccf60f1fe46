"""Spans of turns to an OpenTelemetry collector, over OTLP and HTTP. Needs the extra ``otel``.

A subscriber to facts: it takes what ``TurnTraced`` tells into a bounded queue, and no more. A thread of its
own makes spans of it and sends them, so that a collector that is slow or dead costs spans and nothing else.
What waits for too long is dropped, the oldest first, and counted.

Attribute names are those of OpenTelemetry's conventions for generative AI (``gen_ai.…``) and HTTP, and
``boomerang.…`` for what is ours. No content, and no text of a caller's but names: the model, the
conversation, the request id.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.util.types import AttributeValue

from router.errors import redact
from router.telemetry.facts import EndedBy, Fact, LegSpan, SpanEvent, SpanOutcome, TurnEnded, TurnTraced

QUEUE_TURNS: Final = 2048
"""Turns that wait to be sent; some ten kilobytes each at the most."""
BATCH_TURNS: Final = 128
SEND_EVERY_S: Final = 1.0
EXPORT_S: Final = 10.0
"""How long a collector has for one batch, attempts and all."""
CLOSE_S: Final = 2.0
"""How long the router's end waits for what is still to be sent."""
_MAX_CHARS: Final = 256
_LOG: Final = logging.getLogger("router.tracing")

OPERATIONS: Final = {
    "/v1/chat/completions": "chat",
    "/v1/messages": "chat",
    "/v1/responses": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}
"""``gen_ai.operation.name`` by path; that of any other path is its last part."""

_SCOPE: Final = InstrumentationScope("boomerang")
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)


class SpanSender:
    """Sends the spans of turns. ``count`` is told what became of how many, from another thread."""

    def __init__(
        self,
        exporter: SpanExporter,
        service: str,
        version: str,
        count: Callable[[SpanOutcome, int], None],
        *,
        queue_turns: int = QUEUE_TURNS,
        every_s: float = SEND_EVERY_S,
    ) -> None:
        self._exporter, self._count, self._every_s = exporter, count, every_s
        # What OTEL_RESOURCE_ATTRIBUTES says comes with it.
        self._resource = Resource.create({"service.name": service, "service.version": version})
        self._queue: deque[TurnTraced] = deque()
        self._queue_turns = queue_turns
        self._is_taken = True
        """Whether the collector took the last batch."""
        self._wake, self._is_closing = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="spans", daemon=True)
        self._thread.start()

    def __call__(self, fact: Fact) -> None:
        """Take a turn's spans to be sent; of too many that wait, the oldest are dropped."""
        if not isinstance(fact, TurnTraced):
            return
        queue = self._queue
        queue.append(fact)
        if len(queue) > self._queue_turns:
            self._drop()
        if len(queue) >= BATCH_TURNS:
            self._wake.set()

    def close(self, within_s: float = CLOSE_S) -> None:
        """Send what is left, for so long; then give up. Blocks."""
        self._is_closing = True
        self._wake.set()
        self._thread.join(within_s)
        self._exporter.shutdown()  # whatever is under way is not tried again
        self._drop(len(self._queue))

    def _run(self) -> None:
        while not self._is_closing:
            self._wake.wait(self._every_s)
            self._wake.clear()
            self._send_all()
        self._send_all()

    def _send_all(self) -> None:
        while self._queue:
            spans: list[ReadableSpan] = []
            for _ in range(BATCH_TURNS):
                try:
                    spans.extend(spans_of(self._queue.popleft(), self._resource))
                except IndexError:
                    break  # the last was dropped meanwhile
            self._send(spans)
            if self._is_closing and not self._is_taken:
                return

    def _send(self, spans: list[ReadableSpan]) -> None:
        try:
            is_taken = self._exporter.export(spans) is SpanExportResult.SUCCESS
        except Exception:  # an exporter's fault is not to end the thread
            is_taken = False
        self._count(SpanOutcome.SENT if is_taken else SpanOutcome.FAILED, len(spans))
        if is_taken is not self._is_taken:
            self._is_taken = is_taken
            if is_taken:
                _LOG.info("the collector takes spans again")
            else:
                _LOG.warning("the collector does not take spans; they are dropped until it does")

    def _drop(self, turns: int = 1) -> None:
        dropped = 0
        for _ in range(turns):
            try:
                dropped += 1 + len(self._queue.popleft().legs)
            except IndexError:
                break  # the thread has taken it meanwhile
        if dropped:
            self._count(SpanOutcome.DROPPED, dropped)


def sender(
    endpoint: str, service: str, version: str, count: Callable[[SpanOutcome, int], None]
) -> SpanSender:
    """Sends spans to ``endpoint``. The exporter itself reads ``OTEL_EXPORTER_OTLP_HEADERS`` and the like."""
    # It would tell of each batch that fails, and of each attempt; we tell when that changes.
    logger = logging.getLogger("opentelemetry")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return SpanSender(OTLPSpanExporter(endpoint=endpoint, timeout=EXPORT_S), service, version, count)


def spans_of(traced: TurnTraced, resource: Resource) -> Iterator[ReadableSpan]:
    """A turn's span, and one for each request to an engine as its child."""
    turn = traced.turn
    own = _context(turn.trace_id, traced.span_id)
    operation = OPERATIONS.get(traced.path) or traced.path.rpartition("/")[2]
    yield ReadableSpan(
        _told(f"{operation} {turn.model}") if turn.model else operation,
        own,
        _context(turn.trace_id, traced.parent_id, is_remote=True) if traced.parent_id else None,
        resource,
        _of_turn(turn, traced.path, operation),
        [_event(event) for event in traced.events],
        kind=SpanKind.SERVER,
        status=Status(StatusCode.ERROR, _told(turn.detail)) if _failed(turn) else Status(),
        start_time=traced.began_ns,
        end_time=traced.ended_ns,
        instrumentation_scope=_SCOPE,
    )
    for leg in traced.legs:
        yield ReadableSpan(
            leg.name,
            _context(turn.trace_id, leg.span_id),
            own,
            resource,
            _of_leg(leg),
            [_event(event) for event in leg.events],
            kind=SpanKind.CLIENT,
            status=Status(StatusCode.ERROR, _told(leg.error)) if leg.error else Status(),
            start_time=leg.began_ns,
            end_time=leg.ended_ns,
            instrumentation_scope=_SCOPE,
        )


def _of_turn(turn: TurnEnded, path: str, operation: str) -> Mapping[str, AttributeValue]:
    finish = [_told(turn.finish_reason)] if turn.finish_reason else None
    error = str(turn.status) if turn.status >= 400 else turn.ended_by
    return _known(
        {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "vllm",
            "gen_ai.request.model": turn.model,
            "gen_ai.request.stream": turn.stream,
            "gen_ai.conversation.id": turn.conversation,
            "gen_ai.response.finish_reasons": finish,
            "gen_ai.response.time_to_first_chunk": turn.first_byte_s if turn.stream else None,
            "gen_ai.usage.input_tokens": turn.prompt_tokens,
            "gen_ai.usage.output_tokens": turn.completion_tokens,
            "gen_ai.usage.cache_read.input_tokens": turn.reused_tokens,
            "http.request.method": "POST",
            "http.route": path,
            "http.response.status_code": turn.status,
            "error.type": error if _failed(turn) else None,
            "boomerang.turn_id": turn.turn_id,
            "boomerang.client_id": turn.client_id,
            "boomerang.line": turn.line,
            "boomerang.plan": turn.plan,
            "boomerang.reason": turn.reason,
            "boomerang.reused_tokens": turn.reused_tokens,
            "boomerang.moved_tokens": turn.moved_tokens,
            "boomerang.prefill": turn.prefill,
            "boomerang.decode": turn.decode,
            "boomerang.ended_by": turn.ended_by,
            "boomerang.phase": turn.phase,
            "boomerang.detail": turn.detail,
            "boomerang.wait_s": turn.waited_s,
            "boomerang.verify_s": turn.verify_s,
            "boomerang.gap_s": turn.gap_s,
            "boomerang.estimate_s": turn.estimate_s,
        }
    )


def _of_leg(leg: LegSpan) -> Mapping[str, AttributeValue]:
    return _known(
        {
            "boomerang.node": leg.node,
            "boomerang.request_id": leg.request_id,
            "http.request.method": "POST",
            "http.response.status_code": leg.status,
        }
    )


def _known(attributes: Mapping[str, AttributeValue | None]) -> Mapping[str, AttributeValue]:
    """Those that have a value; texts of a bounded length and without what may be a secret."""
    return {
        name: _told(value) if isinstance(value, str) else value
        for name, value in attributes.items()
        if value is not None and value != ""
    }


def _told(text: str) -> str:
    return redact(text[: 4 * _MAX_CHARS])[:_MAX_CHARS]


def _event(event: SpanEvent) -> Event:
    return Event(event.name, _known(event.attributes), event.at_ns)


def _failed(turn: TurnEnded) -> bool:
    """Whether the router or an engine failed; that a client left, or sent nonsense, is no failure."""
    return turn.ended_by in (EndedBy.FAULT, EndedBy.ROUTER) or turn.status >= 500


def _context(trace_id: str, span_id: str, *, is_remote: bool = False) -> SpanContext:
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote, _SAMPLED)
