import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from router.engines.aiohttp_upstream import AiohttpUpstream
from router.engines.upstream import Exhausted, Limits
from router.fleet.node import Engine, Node, Role, State
from router.fleet.probe import Fault, Prober, engine_in_metrics, restarted, updated
from tests.engines.scripted import Peer, closed_port, engine, no_files_left
from tests.fleet.small_engine import SmallEngine, small_engine

PATIENT = Limits(connect_s=10.0, answer_s=10.0)
QUICK = Limits(connect_s=10.0, answer_s=1.0)
SEEN = Engine(
    version="0.32.0",
    models=("tiny", "lora"),
    block_size=128,
    num_blocks=900,
    prefix_cache=True,
    started_at_s=1000.0,
    kv_usage=0.25,
    running=2,
    waiting=3,
)


@pytest.fixture
async def upstream() -> AsyncIterator[AiohttpUpstream]:
    made = AiohttpUpstream()
    yield made
    await made.close()


@pytest.fixture
async def small() -> AsyncIterator[SmallEngine]:
    async with small_engine() as here:
        here.healthy()
        yield here


def node(origin: str, state: State = State.STARTING) -> Node:
    return Node("d:x", origin, Role.DECODE, state)


async def test_everything_is_seen(upstream: AiohttpUpstream, small: SmallEngine) -> None:
    probed = await Prober(limits=PATIENT, probe_s=30.0, headers=(("authorization", "Bearer k"),))(
        upstream, node(small.origin)
    )
    assert (probed.state, probed.fault, probed.seen) == (State.READY, None, SEEN)
    assert {one.header("authorization") for one in small.seen} == {"Bearer k"}


@pytest.mark.parametrize("path", ["/version", "/v1/models", "/metrics"])
@pytest.mark.parametrize("answer", [(404, ""), (500, "{}"), (200, "\0{nonsense"), (200, "[]"), (0, "")])
async def test_partial_knowledge_is_knowledge(
    upstream: AiohttpUpstream, small: SmallEngine, path: str, answer: tuple[int, str]
) -> None:
    small.answers[path] = answer
    limits = QUICK if answer == (0, "") else PATIENT
    probed = await Prober(limits=limits, probe_s=30.0)(upstream, node(small.origin))
    unseen = {
        "/version": replace(SEEN, version=None),
        "/v1/models": replace(SEEN, models=()),
        "/metrics": Engine(version=SEEN.version, models=SEEN.models),
    }
    assert (probed.state, probed.seen) == (State.READY, unseen[path])


@pytest.mark.parametrize(
    ("state", "then"),
    [
        (State.STARTING, State.STARTING),
        (State.READY, State.EJECTED),
        (State.EJECTED, State.EJECTED),
    ],
)
async def test_faults_are_values(
    upstream: AiohttpUpstream, small: SmallEngine, state: State, then: State
) -> None:
    prober = Prober(limits=QUICK, probe_s=30.0)
    refused = await prober(upstream, node(f"http://127.0.0.1:{closed_port()}", state))
    assert (refused.state, refused.fault, refused.seen) == (then, Fault.REFUSED, Engine())
    small.answers["/health"] = (503, "")
    status = await prober(upstream, node(small.origin, state))
    assert (status.state, status.fault, status.reason) == (then, Fault.STATUS, "/health answered 503")
    del small.answers["/health"]
    silent = await prober(upstream, node(small.origin, state))
    assert (silent.state, silent.fault) == (then, Fault.TIMED_OUT)
    assert refused.reason
    assert silent.reason


async def test_what_this_host_lacks_is_no_probe(upstream: AiohttpUpstream, small: SmallEngine) -> None:
    probe = Prober(limits=PATIENT, probe_s=30.0)
    with no_files_left(), pytest.raises(Exhausted):
        await probe(upstream, node(small.origin))
    assert (await probe(upstream, node(small.origin))).state is State.READY


async def test_what_is_not_http_is_broken(upstream: AiohttpUpstream) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.say(b"nonsense\r\n\r\n")

    async with engine(script) as here:
        assert (await Prober(limits=PATIENT)(upstream, node(here.origin))).fault is Fault.BROKEN


async def test_a_probe_does_not_stall(upstream: AiohttpUpstream) -> None:
    async def drip(peer: Peer) -> None:
        await peer.request()
        await peer.say(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
        while True:
            await peer.say(b" ")
            await asyncio.sleep(0.01)

    async with engine(drip) as here:
        prober = Prober(limits=PATIENT, probe_s=0.5)
        assert (await prober(upstream, node(here.origin))).fault is Fault.TIMED_OUT
        assert upstream.open_calls() == {}


def test_older_names_and_several_engines() -> None:
    text = b"""\
vllm:gpu_cache_usage_perc{engine="0"} 0.2
vllm:gpu_cache_usage_perc{engine="1"} 0.4
vllm:num_requests_running{engine="0"} 1.0
vllm:num_requests_running{engine="1"} 2.0
vllm:num_requests_waiting{engine="0"} NaN
vllm:cache_config_info{block_size="16",num_gpu_blocks="10",engine="0",enable_prefix_caching="False"} 1.0
vllm:cache_config_info{block_size="16",num_gpu_blocks="20",engine="1",enable_prefix_caching="False"} 1.0
"""
    seen = engine_in_metrics(text)
    assert seen.kv_usage == pytest.approx(0.3)
    assert replace(seen, kv_usage=None) == Engine(block_size=16, num_blocks=30, running=3, prefix_cache=False)


@pytest.mark.parametrize("size", ["None", "", "-1", "0", "16.0", "\N{SUPERSCRIPT TWO}"])
def test_a_strange_block_size_is_none(size: str) -> None:
    text = f'vllm:cache_config_info{{block_size="{size}",num_gpu_blocks="{size}"}} 1.0\n'.encode()
    assert engine_in_metrics(text) == Engine()


def test_unequal_block_sizes_are_no_block_size() -> None:
    text = b'vllm:cache_config_info{block_size="16"} 1\nvllm:cache_config_info{block_size="32"} 1\n'
    assert engine_in_metrics(text).block_size is None


LEARNED = replace(
    SEEN, engine_id="e", push_mode=True, stream_handle=True, stamps=True, verifies=True, render=True
)


def test_an_update_keeps_what_was_not_seen_but_for_the_load() -> None:
    assert updated(LEARNED, Engine()) == replace(LEARNED, kv_usage=None, running=None, waiting=None)
    seen = replace(SEEN, version="0.33.0", models=("other",), started_at_s=1000.4, prefix_cache=False)
    assert updated(LEARNED, seen) == replace(
        LEARNED, version="0.33.0", models=("other",), started_at_s=1000.4, prefix_cache=False
    )


def test_a_restart_forgets_everything() -> None:
    seen = Engine(started_at_s=2000.0, running=0)
    assert restarted(LEARNED, seen)
    assert updated(LEARNED, seen) == seen
    assert not restarted(LEARNED, Engine())
    assert not restarted(Engine(), seen)


async def test_ranks_behind_one_origin_are_seen_apart(upstream: AiohttpUpstream, small: SmallEngine) -> None:
    small.answers["/metrics"] = (
        200,
        """\
vllm:num_requests_running{engine="0"} 1.0
vllm:num_requests_running{engine="1"} 2.0
vllm:num_requests_running{engine="x"} 9.0
vllm:kv_cache_usage_perc{engine="0"} 0.2
vllm:kv_cache_usage_perc{engine="1"} 0.4
vllm:cache_config_info{block_size="16",num_gpu_blocks="10",engine="0"} 1.0
vllm:cache_config_info{block_size="16",num_gpu_blocks="20",engine="1"} 1.0
process_start_time_seconds 1000.0
""",
    )
    probed = await Prober(limits=PATIENT, probe_s=30.0)(upstream, node(small.origin))
    one = probed.seen_at(1)
    assert (one.running, one.kv_usage, one.num_blocks, one.block_size) == (2, 0.4, 20, 16)
    assert (one.version, one.models, one.started_at_s) == ("0.32.0", ("tiny", "lora"), 1000.0)
    for unknown in (None, 7):
        assert probed.seen_at(unknown) == probed.seen
    assert probed.seen.num_blocks == 30


async def test_an_engine_on_ipv6(upstream: AiohttpUpstream) -> None:
    async def well(peer: Peer) -> None:
        while True:
            await peer.request()
            await peer.answer(b"")

    async with engine(well, host="::1") as here:
        probed = await Prober(limits=PATIENT, probe_s=30.0)(upstream, node(here.origin))
        assert probed.state is State.READY
