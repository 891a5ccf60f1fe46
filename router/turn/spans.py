"""The spans of one turn that is traced: its own, and one for each request to an engine.

Nothing here knows OpenTelemetry. A turn that is not traced has no ``Spans``, and its client's ``traceparent``
passes to both legs as it came. One that is traced tells each engine the span of its leg, so that an engine's
own spans become children of it, and publishes what there was when it has ended (``TurnTraced``).
"""

import asyncio
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from router.telemetry.facts import LegSpan, SpanEvent, TurnEnded, TurnTraced, Value
from router.turn.traceparent import TraceParent, is_sampled_at, read_traceparent

MAX_EVENTS: Final = 64
"""Of one span; a turn has a handful, and one that goes round many nodes a few more."""


class OpenSpan:
    """A request to an engine, under way within a ``with`` statement. An exception that passes through is its
    error. Its id is there before: an engine is told it with the request."""

    __slots__ = (
        "_began_ns", "_ended_ns", "_error", "_events", "_name", "_node", "_request_id", "_span_id", "_spans",
        "_status",
    )  # fmt: skip

    def __init__(self, spans: "Spans", name: str, node: str, request_id: str) -> None:
        self._spans, self._name, self._node, self._request_id = spans, name, node, request_id
        self._events: list[SpanEvent] = []
        self._span_id = os.urandom(8).hex()
        self._began_ns = 0
        self._ended_ns: int | None = None
        self._status: int | None = None
        self._error = ""

    @property
    def traceparent(self) -> str | None:
        """What the engine is told; None of ``NO_SPAN``: it is told what the client said."""
        return TraceParent(self._spans.trace_id, self._span_id, is_sampled=True).header

    def answered(self, status: int) -> None:
        """The engine answered with this HTTP status."""
        self._status = status

    def failed(self, why: str) -> None:
        """It did not go well, as its caller found; the first reason stays."""
        self._error = self._error or why

    def event(self, name: str, **attributes: Value) -> None:
        if len(self._events) < MAX_EVENTS:
            self._events.append(SpanEvent(name, self._spans.now_ns(), attributes))

    def told(self) -> LegSpan:
        """What it came to; of one that is still open, up to now."""
        ended_ns = self._ended_ns if self._ended_ns is not None else self._spans.now_ns()
        return LegSpan(
            self._name, self._span_id, self._node, self._request_id, self._began_ns, ended_ns, self._status,
            self._error, tuple(self._events),
        )  # fmt: skip

    def __enter__(self) -> Self:
        self._began_ns = self._spans.begun(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended_ns = self._spans.now_ns()
        if error is not None:
            is_cancelled = isinstance(error, asyncio.CancelledError)
            self.failed("cancelled" if is_cancelled else f"{type(error).__name__}: {error}")


class _NoSpan:
    """A request to an engine of a turn that is not traced."""

    __slots__ = ()
    traceparent: Final[str | None] = None

    def answered(self, status: int) -> None:
        """Nobody listens."""

    def failed(self, why: str) -> None:
        """Nobody listens."""

    def event(self, name: str, **attributes: Value) -> None:
        """Nobody listens."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing was opened."""


NO_SPAN: Final = _NoSpan()
Span = OpenSpan | _NoSpan


class Spans:
    """The spans of one turn. Times are nanoseconds since the epoch, of a clock that never goes back."""

    __slots__ = ("_began_ns", "_clock_ns", "_events", "_legs", "_parent_id", "_span_id", "trace_id")

    def __init__(self, trace_id: str, parent_id: str) -> None:
        self.trace_id, self._parent_id = trace_id, parent_id
        self._span_id = os.urandom(8).hex()
        self._began_ns, self._clock_ns = time.time_ns(), time.monotonic_ns()
        self._events: list[SpanEvent] = []
        self._legs: list[OpenSpan] = []

    def now_ns(self) -> int:
        return self._began_ns + time.monotonic_ns() - self._clock_ns

    def leg(self, name: str, node: str, request_id: str) -> OpenSpan:
        """A request to an engine that is to be made. One that never is made is not told of."""
        return OpenSpan(self, name, node, request_id)

    def begun(self, leg: OpenSpan) -> int:
        """A request to an engine is made, now, which is what is returned."""
        self._legs.append(leg)
        return self.now_ns()

    @property
    def newest(self) -> Span:
        """The request to an engine that was begun last."""
        return self._legs[-1] if self._legs else NO_SPAN

    def event(self, name: str, **attributes: Value) -> None:
        if len(self._events) < MAX_EVENTS:
            self._events.append(SpanEvent(name, self.now_ns(), attributes))

    def traced(self, turn: TurnEnded, path: str) -> TurnTraced:
        """All of it, now that the turn has ended."""
        return TurnTraced(
            turn, path, self._span_id, self._parent_id, self._began_ns, self.now_ns(), tuple(self._events),
            tuple(leg.told() for leg in self._legs),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tracing:
    """Which turns are traced: those whose caller traces, and of those without a caller's word ``ratio``."""

    ratio: float = 1.0

    def begin(self, headers: Sequence[tuple[str, str]]) -> Spans | None:
        """The spans of a turn with these headers; None where it is not to be traced."""
        parent = read_traceparent(headers)
        if parent is not None:
            return Spans(parent.trace_id, parent.span_id) if parent.is_sampled else None
        trace_id = os.urandom(16).hex()
        return Spans(trace_id, "") if is_sampled_at(trace_id, self.ratio) else None
