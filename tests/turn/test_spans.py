"""The spans of a turn: which turns have them, what engines are told, and what there is in the end."""

import asyncio

import pytest

from router.telemetry.facts import LegSpan
from router.turn.spans import MAX_EVENTS, NO_SPAN, Spans, Tracing
from router.turn.traceparent import TraceParent, read_traceparent
from tests.telemetry.test_metrics import TURN

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def caller(*, is_sampled: bool) -> list[tuple[str, str]]:
    return [("traceparent", TraceParent(TRACE, SPAN, is_sampled).header)]


@pytest.mark.parametrize("ratio", [0.0, 1.0])
def test_a_caller_that_says_decides(ratio: float) -> None:
    tracing = Tracing(ratio)
    spans = tracing.begin(caller(is_sampled=True))
    assert spans is not None
    assert spans.trace_id == TRACE
    assert spans.traced(TURN, "/x").parent_id == SPAN
    assert tracing.begin(caller(is_sampled=False)) is None


def test_of_others_a_share_is_traced() -> None:
    assert not [1 for _ in range(200) if Tracing(0.0).begin([]) is not None]
    begun = [spans for _ in range(200) if (spans := Tracing(1.0).begin([])) is not None]
    assert len({spans.trace_id for spans in begun}) == 200
    assert all(spans.traced(TURN, "/x").parent_id == "" for spans in begun)


@pytest.mark.parametrize("value", ["", "nonsense", f"00-{'0' * 32}-{SPAN}-01"])
def test_a_caller_that_cannot_be_read_says_nothing(value: str) -> None:
    spans = Tracing(1.0).begin([("traceparent", value)])
    assert spans is not None
    assert spans.trace_id != TRACE
    assert spans.traced(TURN, "/x").parent_id == ""


def one(spans: Spans) -> LegSpan:
    (leg,) = spans.traced(TURN, "/x").legs
    return leg


def test_an_engine_is_told_the_span_of_its_leg() -> None:
    spans = Spans(TRACE, SPAN)
    with spans.leg("prefill", "p:1", "brg-1-p1") as span:
        span.answered(200)
    told = read_traceparent([("traceparent", span.traceparent or "")])
    assert told == TraceParent(TRACE, one(spans).span_id, is_sampled=True)
    assert (one(spans).name, one(spans).node, one(spans).request_id) == ("prefill", "p:1", "brg-1-p1")
    assert (one(spans).status, one(spans).error) == (200, "")


@pytest.mark.parametrize(
    ("error", "told"),
    [(ValueError("boom"), "ValueError: boom"), (asyncio.CancelledError(), "cancelled")],
)
def test_what_ends_a_leg_is_its_error(error: BaseException, told: str) -> None:
    spans = Spans(TRACE, SPAN)
    with pytest.raises(type(error)), spans.leg("decode", "d", "x"):
        raise error
    assert one(spans).error == told


def test_the_first_reason_stays() -> None:
    spans = Spans(TRACE, SPAN)
    with pytest.raises(ValueError, match="second"), spans.leg("decode", "d", "x") as span:
        span.failed("first")
        raise ValueError("second")
    assert one(spans).error == "first"


def test_times_are_in_order_and_an_open_leg_ends_with_its_turn() -> None:
    spans = Spans(TRACE, SPAN)
    with spans.leg("decode", "d", "x") as span:
        span.event("first_byte")
        traced = spans.traced(TURN, "/x")
    (leg,) = traced.legs
    times = [traced.began_ns, leg.began_ns, leg.events[0].at_ns, leg.ended_ns]
    assert times == sorted(times)
    assert leg.ended_ns <= spans.now_ns()


def test_a_leg_that_is_never_made_is_not_told_of() -> None:
    spans = Spans(TRACE, SPAN)
    ahead = spans.leg("decode", "d", "x")
    assert ahead.traceparent is not None
    with spans.leg("prefill", "p", "y") as made:
        assert spans.newest is made
    assert one(spans).name == "prefill"


def test_events_are_bounded() -> None:
    spans = Spans(TRACE, SPAN)
    with spans.leg("decode", "d", "x") as leg:
        for number in range(2 * MAX_EVENTS):
            spans.event("turn", number=number)
            leg.event("leg", number=number)
    traced = spans.traced(TURN, "/x")
    assert len(traced.events) == len(traced.legs[0].events) == MAX_EVENTS
    assert traced.events[0].attributes == {"number": 0}


def test_without_spans_nothing_is_told() -> None:
    assert Spans(TRACE, SPAN).newest is NO_SPAN
    with NO_SPAN as span:
        span.answered(200)
        span.failed("why")
        span.event("first_byte")
    assert span.traceparent is None
    with pytest.raises(ValueError, match="passes"), NO_SPAN:
        raise ValueError("passes")
