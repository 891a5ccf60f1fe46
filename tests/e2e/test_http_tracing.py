"""Traces over sockets: from the caller through the router to both engines, and to a collector."""

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest

from router.sim.server import SimServer
from tests.e2e.http_pool import (
    CHAT,
    NO_CACHE_P,
    HttpPool,
    fault,
    http_pool,
    legs,
    opening,
    second_turn,
    until,
)
from tests.telemetry.collector import Collector, Got, collecting

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CALLER = f"00-{TRACE}-{SPAN}-01"


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "*")


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    async with collecting() as here:
        yield here


async def children(collector: Collector, turn_id: str) -> tuple[Got, list[Got]]:
    """The span of a turn, and those that are its children, in order; once all are there."""

    def turn() -> Got | None:
        return next(
            (span for span in collector.spans if span.attributes.get("boomerang.turn_id") == turn_id), None
        )

    await until(lambda: turn() is not None, "the turn's span")
    own = turn()
    assert own is not None
    below = [span for span in collector.spans if span.parent_id == own.span_id]
    return own, sorted(below, key=lambda span: span.began_ns)


def told(server: SimServer, path: str = CHAT) -> list[str]:
    """The ``traceparent`` of each request that an engine got, in order."""
    return [one.headers.get("traceparent", "") for one in server.engine.received if one.path == path]


async def test_a_turn_that_pulls(collector: Collector) -> None:
    async with http_pool(NO_CACHE_P, otlp_endpoint=collector.origin) as pool:
        body = await second_turn(pool)
        answer = await pool.chat({**body, "stream": True}, traceparent=CALLER, tracestate="vendor=1")
        assert answer.headers["x-boomerang-plan"] == "pull"
        turn, below = await children(collector, pool.ended().turn_id)
        assert pool.ended().trace_id == TRACE

        assert (turn.trace_id, turn.parent_id, turn.name) == (TRACE, SPAN, "chat sim-qwen3")
        assert turn.attributes["boomerang.plan"] == "pull"
        assert turn.attributes["boomerang.reused_tokens"] > 0
        assert turn.attributes["gen_ai.usage.input_tokens"] > turn.attributes["boomerang.reused_tokens"]
        assert [event.name for event in turn.events] == ["ledger.found", "planned"]
        assert turn.events[0].attributes == {"relation": "extension", "took_handle": True}

        names = [span.name for span in below]
        assert names[-2:] == ["prefill", "decode"]
        assert set(names[:-2]) == {"render"}, "the prompt's tokens were compared"
        prefill, decode = below[-2:]
        assert {span.trace_id for span in below} == {TRACE}
        assert all(turn.began_ns <= span.began_ns <= span.ended_ns <= turn.ended_ns for span in below)
        assert [event.name for event in decode.events] == ["first_byte"]
        # What each engine was told is the span of the request that it got.
        assert told(pool.p)[-1] == f"00-{TRACE}-{prefill.span_id}-01"
        assert told(pool.d)[-1] == f"00-{TRACE}-{decode.span_id}-01"
        assert legs(pool.d)[-1].headers["tracestate"] == "vendor=1"
        assert legs(pool.d)[-1].headers["x-request-id"] == decode.attributes["boomerang.request_id"]
        await pool.idle()


async def test_a_trace_begins_here_where_the_caller_has_none(collector: Collector) -> None:
    async with http_pool(otlp_endpoint=collector.origin, otlp_service_name="router-7") as pool:
        await pool.turn(opening())
        turn, below = await children(collector, pool.ended().turn_id)
        assert turn.parent_id == ""
        assert turn.resource["service.name"] == "router-7"
        assert [span.name for span in below] == ["prefill", "decode"]
        assert told(pool.d) == [f"00-{turn.trace_id}-{below[1].span_id}-01"]
        assert pool.ended().trace_id == turn.trace_id


async def test_a_pull_that_fails_is_seen_to_be_run_again_cold(collector: Collector) -> None:
    async with http_pool(NO_CACHE_P, otlp_endpoint=collector.origin) as pool:
        body = await second_turn(pool)
        fault(pool.p, status=500, with_handle=True)
        await pool.turn(body, plan="cold")
        turn, all_below = await children(collector, pool.ended().turn_id)
        below = [span for span in all_below if span.name != "render"]
        assert [(span.name, span.error is None) for span in below] == [
            ("prefill", False), ("prefill", True), ("decode", True),
        ]  # fmt: skip
        assert below[0].attributes["http.response.status_code"] == 500
        failed = [event for event in turn.events if event.name == "leg_failed"]
        assert [event.attributes["action"] for event in failed] == ["cold_retry"]
        assert failed[0].attributes["fault"] == "status"
        assert turn.error is None, "it went well in the end"


async def test_a_stream_that_breaks_off_is_an_error_of_its_leg_and_its_turn(collector: Collector) -> None:
    async with http_pool(otlp_endpoint=collector.origin) as pool:
        fault(pool.d, cut_after_chunks=2, streamed=True)
        await pool.stream(opening())
        turn, below = await children(collector, pool.ended().turn_id)
        assert turn.error
        assert turn.attributes["error.type"] == "fault"
        assert below[-1].name == "decode"
        assert below[-1].error


@pytest.mark.parametrize(
    ("options", "caller"),
    [
        ({"otlp_sample_ratio": 0.0}, f"00-{TRACE}-{SPAN}-00"),
        ({"otlp_sample_ratio": 1.0}, f"00-{TRACE}-{SPAN}-00"),
        ({"otlp_endpoint": ""}, CALLER),
    ],
)
async def test_what_is_not_traced_here_passes_as_it_came(
    options: dict[str, object], caller: str, collector: Collector
) -> None:
    async with http_pool(**{"otlp_endpoint": collector.origin, **options}) as pool:  # type: ignore[arg-type]
        await pool.turn(opening(), traceparent=caller, tracestate="a=1")
        assert pool.ended().trace_id == TRACE, "the log can be found by it all the same"
        for server in (pool.p, pool.d):
            assert told(server) == [caller]
            assert legs(server)[0].headers["tracestate"] == "a=1"
        await pool.turn(opening("again"))
        # With a ratio of 1 a turn without a caller's word is traced here.
        assert bool(told(pool.d)[1]) is (options.get("otlp_sample_ratio") == 1.0)
    assert all(span.trace_id != TRACE for span in collector.spans)


async def some_turns(pool: HttpPool) -> None:
    for number in range(3):
        await pool.turn(opening(f"question {number}", max_tokens=3))


async def test_a_collector_that_is_not_there_costs_spans_and_nothing_else() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with http_pool(otlp_endpoint=f"http://127.0.0.1:{port}") as pool:
        await some_turns(pool)
        assert pool.ended().status == 200
        await pool.idle()


async def test_a_collector_that_never_answers_holds_up_no_turn_and_no_end(collector: Collector) -> None:
    collector.held = True
    async with http_pool(otlp_endpoint=collector.origin) as pool:
        await pool.turn(opening())
        await until(lambda: collector.asked > 0, "the sender hangs")
        await some_turns(pool)
        await pool.idle()
    assert collector.spans == []


async def test_what_is_sent_and_what_is_not_is_counted(collector: Collector) -> None:
    collector.status = 400
    async with http_pool(otlp_endpoint=collector.origin) as pool:
        await pool.turn(opening())
        async with asyncio.timeout(30):
            while await pool.metric("spans_total", outcome="failed") < 3:
                await asyncio.sleep(0.01)
        collector.status = 200
        await pool.turn(opening("again"))
        async with asyncio.timeout(30):
            while await pool.metric("spans_total", outcome="sent") < 3:
                await asyncio.sleep(0.01)


def test_without_a_collector_nothing_that_sends_spans_is_loaded() -> None:
    source = (
        "import sys; from router.app import build; from router.front import application;"
        "from router.settings import Settings;"
        "r = build(Settings(prefill=('http://p:1',), decode=('http://d:1',))); application(r);"
        "assert r.context.tracing is None;"
        "print([name for name in sys.modules if name in ('router.telemetry.tracing',"
        " 'opentelemetry.exporter.otlp.proto.http.trace_exporter')])"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
