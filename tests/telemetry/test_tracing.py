"""Spans of turns: what becomes of a turn, as the queue, the wire and a collector see it."""

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import SpanKind, StatusCode

from router.telemetry.facts import EndedBy, HandleFact, LegSpan, Outcome, SpanEvent, SpanOutcome, TurnTraced
from router.telemetry.tracing import BATCH_TURNS, SpanSender, sender, spans_of
from tests.e2e.http_pool import until
from tests.telemetry.collector import collecting
from tests.telemetry.test_metrics import TURN

TRACE, OWN, PARENT, LEG = "4bf92f3577b34da6a3ce929d0e0e4736", "1" * 16, "2" * 16, "3" * 16
TRACED = TurnTraced(
    turn=replace(TURN, trace_id=TRACE),
    path="/v1/chat/completions",
    span_id=OWN,
    parent_id=PARENT,
    began_ns=1_000,
    ended_ns=9_000,
    events=(SpanEvent("planned", 1_500, {"plan": "pull"}),),
    legs=(LegSpan("prefill", LEG, "p1", "brg-1-p1", 2_000, 3_000, 200, "", ()),),
)


class Sink(SpanExporter):
    """Takes spans as a test says: at once, not at all, or when it is let go."""

    def __init__(self) -> None:
        self.took: list[ReadableSpan] = []
        self.result = SpanExportResult.SUCCESS
        self.raises = False
        self.free = threading.Event()
        self.free.set()
        self.entered = threading.Event()
        self.is_shut = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.entered.set()
        assert self.free.wait(30)
        if self.raises:
            raise RuntimeError("boom")
        if self.result is SpanExportResult.SUCCESS:
            self.took.extend(spans)
        return self.result

    def shutdown(self) -> None:
        self.is_shut = True
        self.free.set()


class Counts:
    def __init__(self) -> None:
        self.spans: Counter[SpanOutcome] = Counter()

    def __call__(self, outcome: SpanOutcome, spans: int) -> None:
        self.spans[outcome] += spans


def soon(condition: Any) -> None:
    """Wait until something is so; only a failing test waits long. Raises AssertionError."""
    until_s = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.001)


def a_sender(sink: Sink, counts: Counts, **options: Any) -> SpanSender:
    return SpanSender(sink, "boomerang", "1.0", counts, **{"every_s": 0.01, **options})


def test_turns_are_sent_and_no_other_fact() -> None:
    sink, counts = Sink(), Counts()
    sends = a_sender(sink, counts)
    sends(HandleFact(Outcome.USED, "d", 1))
    sends(TRACED.turn)
    sends(TRACED)
    soon(lambda: len(sink.took) == 2)
    sends.close()
    assert sink.is_shut
    assert counts.spans == {SpanOutcome.SENT: 2}


def test_what_is_left_is_sent_at_the_end() -> None:
    sink, counts = Sink(), Counts()
    sends = a_sender(sink, counts, every_s=3600.0)
    for _ in range(3):
        sends(TRACED)
    sends.close()
    assert len(sink.took) == 6
    assert counts.spans == {SpanOutcome.SENT: 6}


def test_many_do_not_wait_for_their_time() -> None:
    sink, counts = Sink(), Counts()
    sends = a_sender(sink, counts, every_s=3600.0)
    for _ in range(BATCH_TURNS):
        sends(TRACED)
    soon(lambda: len(sink.took) == 2 * BATCH_TURNS)
    sends.close()


def test_of_too_many_that_wait_the_oldest_are_dropped_and_nobody_waits() -> None:
    sink, counts = Sink(), Counts()
    sink.free.clear()
    sends = a_sender(sink, counts, queue_turns=5)
    sends(TRACED)
    soon(sink.entered.is_set)  # the thread is with a collector that does not answer
    for number in range(12):
        sends(replace(TRACED, began_ns=number))
    assert counts.spans == {SpanOutcome.DROPPED: 2 * 7}
    sink.free.set()
    soon(lambda: len(sink.took) == 2 * 6)
    assert [span.start_time for span in sink.took if span.kind is SpanKind.SERVER] == [1_000, 7, 8, 9, 10, 11]
    sends.close()
    assert counts.spans == {SpanOutcome.DROPPED: 14, SpanOutcome.SENT: 12}


def test_the_end_does_not_wait_for_a_collector_that_hangs() -> None:
    sink, counts = Sink(), Counts()
    sink.free.clear()
    sends = a_sender(sink, counts)
    sends(TRACED)
    soon(sink.entered.is_set)
    sends(TRACED)
    sends.close(within_s=0.05)
    assert sink.is_shut
    assert counts.spans[SpanOutcome.DROPPED] + counts.spans[SpanOutcome.SENT] >= 2


@pytest.mark.parametrize("raises", [True, False])
def test_a_collector_that_fails_is_told_of_once_and_when_it_is_well_again(
    raises: bool, caplog: pytest.LogCaptureFixture
) -> None:
    sink, counts = Sink(), Counts()
    caplog.set_level(logging.INFO, "router")
    sink.result, sink.raises = SpanExportResult.FAILURE, raises
    sends = a_sender(sink, counts)
    for number in range(1, 4):
        sends(TRACED)
        soon(lambda number=number: counts.spans[SpanOutcome.FAILED] == 2 * number)
    sink.result, sink.raises = SpanExportResult.SUCCESS, False
    sends(TRACED)
    soon(lambda: counts.spans[SpanOutcome.SENT] == 2)
    sends.close()
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


def spans(traced: TurnTraced = TRACED) -> list[ReadableSpan]:
    return list(spans_of(traced, Resource.create({})))


def test_a_turn_is_a_span_and_its_legs_are_its_children() -> None:
    turn, leg = spans()
    assert (turn.name, turn.kind, leg.name, leg.kind) == (
        "chat model-1", SpanKind.SERVER, "prefill", SpanKind.CLIENT,
    )  # fmt: skip
    assert turn.context is not None
    assert turn.parent is not None
    assert leg.parent is not None
    assert f"{turn.context.trace_id:032x}" == TRACE
    assert (f"{turn.parent.span_id:016x}", f"{leg.parent.span_id:016x}") == (PARENT, OWN)
    assert (turn.start_time, turn.end_time, leg.start_time, leg.end_time) == (1_000, 9_000, 2_000, 3_000)
    assert spans(replace(TRACED, parent_id=""))[0].parent is None


def attributes(traced: TurnTraced = TRACED) -> dict[str, Any]:
    return dict(spans(traced)[0].attributes or {})


def test_what_a_turns_span_tells() -> None:
    told = attributes()
    assert (
        told.items()
        >= {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "vllm",
            "gen_ai.request.model": "model-1",
            "gen_ai.request.stream": True,
            "gen_ai.conversation.id": "conversation-1",
            "gen_ai.response.finish_reasons": ["stop"],
            "gen_ai.usage.input_tokens": 821,
            "gen_ai.usage.output_tokens": 20,
            "gen_ai.usage.cache_read.input_tokens": 768,
            "http.response.status_code": 200,
            "boomerang.plan": "pull",
            "boomerang.reason": "extension",
            "boomerang.reused_tokens": 768,
            "boomerang.ended_by": "engine",
        }.items()
    )
    assert "error.type" not in told
    assert "boomerang.detail" not in told, "what is empty is not told"
    assert (
        attributes(replace(TRACED, turn=replace(TRACED.turn, reused_tokens=0)))["boomerang.reused_tokens"]
        == 0
    )


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/completions", "text_completion model-1"),
        ("/v1/embeddings", "embeddings model-1"),
        ("/v1/messages", "chat model-1"),
        ("/tokenize", "tokenize model-1"),
    ],
)
def test_an_operation_has_the_name_that_conventions_give_it(path: str, name: str) -> None:
    assert spans(replace(TRACED, path=path))[0].name == name


@pytest.mark.parametrize(
    ("ended_by", "status", "error"),
    [
        (EndedBy.ENGINE, 200, None),
        (EndedBy.ENGINE, 400, None),
        (EndedBy.CLIENT, 499, None),
        (EndedBy.ENGINE, 500, "500"),
        (EndedBy.ROUTER, 503, "503"),
        (EndedBy.FAULT, 502, "502"),
        (EndedBy.FAULT, 200, "fault"),  # it broke off in the stream
    ],
)
def test_only_what_the_router_or_an_engine_failed_is_an_error(
    ended_by: EndedBy, status: int, error: str | None
) -> None:
    turn = replace(TRACED.turn, ended_by=ended_by, status=status, detail="it broke")
    span = spans(replace(TRACED, turn=turn))[0]
    told = span.attributes or {}
    assert told.get("error.type") == error
    assert span.status.status_code is (StatusCode.UNSET if error is None else StatusCode.ERROR)
    assert span.status.description == (None if error is None else "it broke")


def test_a_leg_that_failed_is_an_error() -> None:
    leg = replace(TRACED.legs[0], error="Broken: reset by http://u:hunter2@p:1", status=None)
    span = spans(replace(TRACED, legs=(leg,)))[1]
    assert span.status.status_code is StatusCode.ERROR
    assert "hunter2" not in str(span.status.description)
    assert "http.response.status_code" not in (span.attributes or {})


def test_texts_are_bounded_and_hold_no_secret() -> None:
    turn = replace(
        TRACED.turn, model="m" * 100_000, conversation="redis://u:hunter2@h", detail="Bearer hunter2",
        ended_by=EndedBy.FAULT, finish_reason="Bearer hunter2 " + "f" * 1_000,
    )  # fmt: skip
    span = spans(replace(TRACED, turn=turn))[0]
    assert len(span.name) <= 256
    attributes = span.attributes or {}
    assert all(len(value) <= 256 for value in attributes.values() if isinstance(value, str))
    (finish,) = cast(tuple[str], attributes["gen_ai.response.finish_reasons"])
    assert len(finish) <= 256
    assert "hunter2" not in span.to_json()
    assert "hunter2" not in spans(replace(TRACED, turn=replace(turn, model="http://u:hunter2@m")))[0].name


async def test_over_the_wire(monkeypatch: pytest.MonkeyPatch) -> None:
    """As protobuf over HTTP, with what the environment says of the resource and the headers."""
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-api-key=of-the-collector")
    counts = Counts()
    async with collecting() as collector:
        sends = sender(f"{collector.origin}/v1/traces", "router-7", "1.2.3", counts)
        sends(TRACED)
        await until(lambda: len(collector.spans) == 2, "spans")
        await asyncio.to_thread(sends.close)
    turn, leg = collector.spans
    assert (
        turn.resource.items()
        >= {
            "service.name": "router-7",
            "service.version": "1.2.3",
            "deployment.environment.name": "test",
        }.items()
    )
    assert collector.headers[0]["x-api-key"] == "of-the-collector"
    assert (turn.trace_id, turn.span_id, turn.parent_id) == (TRACE, OWN, PARENT)
    assert (leg.trace_id, leg.span_id, leg.parent_id) == (TRACE, LEG, OWN)
    assert turn.attributes["gen_ai.response.finish_reasons"] == ["stop"]
    assert [(event.name, event.attributes) for event in turn.events] == [("planned", {"plan": "pull"})]
    assert counts.spans == {SpanOutcome.SENT: 2}
