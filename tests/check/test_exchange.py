"""Single legs against a simulated engine, over sockets: every failure is a value."""

import time
from array import array
from collections.abc import AsyncIterator

import pytest

from router.check import prompts
from router.check.exchange import Engines, authorization
from router.check.observed import HandlePlace
from router.engines import nixl
from router.engines.aiohttp_upstream import AiohttpUpstream
from router.fleet.node import Node, Role
from router.fleet.pool import node_of
from router.sim.config import EngineConfig
from router.sim.faults import Fault
from router.sim.server import SimServer
from router.turn.request import Endpoint, Request
from tests.check.pools import dead_origin

KEY = "sk-engine"


@pytest.fixture
async def server() -> AsyncIterator[SimServer]:
    async with SimServer(EngineConfig(version="0.33.0", render="open")) as started:
        yield started


@pytest.fixture
async def engines() -> AsyncIterator[Engines]:
    upstream = AiohttpUpstream()
    yield Engines(upstream, api_key=KEY, timeout_s=20.0, connect_s=10.0, now=time.monotonic)
    await upstream.close()


def node(origin: str) -> Node:
    return node_of(origin, Role.PREFILL)


def request(*, stream: bool = False) -> Request:
    return prompts.opening(Endpoint.CHAT, "sim-qwen3", nonce="n0", tokens=20, max_tokens=4, stream=stream)


async def test_a_leg_brings_tokens_params_and_shows_the_key(server: SimServer, engines: Engines) -> None:
    leg = await engines.prefill(node(server.origin), request(), nixl.COLD_PARAMS, salt=None)
    assert leg.is_good
    assert leg.params is not None
    assert (leg.params.host, leg.params.read.do_remote_prefill) == ("127.0.0.1", True)
    assert leg.answer is not None
    assert leg.answer.prompt_token_ids
    assert 0 < leg.ended_s - leg.began_s < 20
    (received,) = server.engine.received
    assert dict(authorization(KEY)).items() <= received.headers.items()
    assert received.headers["x-request-id"].startswith("check-")


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (Fault(status=503, body='{"error":{"message":"too\\n much"}}'), "answered 503: too much"),
        (Fault(status=500, body="x" * 500), "answered 500: " + "x" * 159 + "…"),
        (Fault(status=404, body='{"detail":"Not Found"}'), "answered 404: Not Found"),
        (Fault(status=502, body=""), "answered 502"),
        (Fault(status=200, body="hello"), "answered 200 with something that is not a JSON object"),
        (Fault(finish_reason="abort"), "the engine ended the request with 'abort'"),
    ],
)
async def test_what_an_engine_answers_is_told(
    server: SimServer, engines: Engines, fault: Fault, told: str
) -> None:
    server.engine.faults.add(fault)
    leg = await engines.prefill(node(server.origin), request(), nixl.COLD_PARAMS, salt=None)
    assert leg.fault == told
    assert not leg.is_good
    assert not leg.timed_out


async def test_nobody_listens(engines: Engines) -> None:
    leg = await engines.post(node(dead_origin()), "/tokenize", b"{}")
    assert (leg.status, leg.timed_out, leg.is_good) == (None, False, False)
    assert leg.fault


async def test_a_time_out_is_known_as_one(server: SimServer) -> None:
    server.engine.faults.add(Fault(hang=True))
    upstream = AiohttpUpstream()
    hasty = Engines(upstream, api_key=None, timeout_s=0.2, connect_s=10.0, now=time.monotonic)
    leg = await hasty.prefill(node(server.origin), request(), nixl.COLD_PARAMS, salt=None)
    await upstream.close()
    assert leg.timed_out
    assert leg.fault == "no answer within 0.2 s"
    assert leg.status is None


@pytest.mark.parametrize(
    ("fault", "place"),
    [
        (None, HandlePlace.NATIVE),
        (Fault(params_at="last"), HandlePlace.PLUGIN),
        (Fault(params_at="usage"), HandlePlace.NONE),
        (Fault(params_at="none"), HandlePlace.NONE),
        (Fault(split_bytes=7), HandlePlace.NATIVE),
    ],
)
async def test_a_stream_s_handle_is_found_where_it_is(
    server: SimServer, engines: Engines, fault: Fault | None, place: HandlePlace
) -> None:
    where = node(server.origin)
    asked = request(stream=True)
    cold = await engines.prefill(where, asked, nixl.COLD_PARAMS, salt=None)
    assert cold.params is not None
    if fault is not None:
        server.engine.faults.add(fault)
    leg, found = await engines.stream(where, asked, cold.params.raw, salt=None)
    assert leg.is_good
    assert found is place
    assert (leg.params is None) == (place is HandlePlace.NONE)


async def test_a_stream_that_fails_is_a_value(server: SimServer, engines: Engines) -> None:
    where, asked = node(server.origin), request(stream=True)
    for fault, told in (
        (Fault(status=500), "answered 500: scripted"),
        (Fault(error_after_chunks=1), "answered an error under 200"),
        (Fault(cut_after_chunks=2), ""),
    ):
        server.engine.faults.add(fault)
        leg, _ = await engines.stream(where, asked, nixl.COLD_PARAMS, salt=None)
        assert leg.fault.startswith(told)
        assert leg.fault


async def test_routes_are_tried_in_the_router_s_order(server: SimServer, engines: Engines) -> None:
    where, asked = node(server.origin), request()
    first = await engines.prefill(where, asked, nixl.COLD_PARAMS, salt=None)
    assert first.answer is not None
    ids = first.answer.prompt_token_ids
    assert await engines.route(where, asked, ids) == await engines.route(where, asked, ids)
    found = await engines.route(where, asked, ids)
    assert (found.name, found.agrees) == ("render", True)
    server.engine.faults.add(Fault(path="/v1/chat/completions/render", status=403, times=2))
    found = await engines.route(where, asked, array("I", [1]))
    assert (found.name, found.agrees) == ("tokenize", False)
    server.engine.faults.add(Fault(path="/tokenize", status=404))
    assert (await engines.route(where, asked, ids)).name == ""


async def test_the_load_comes_from_metrics(server: SimServer, engines: Engines) -> None:
    assert (await engines.load(node(server.origin))).kv_usage == 0.0
    assert (await engines.load(node(dead_origin()))).kv_usage is None
