"""``GET /v1/models``: one node's answer as it is, several merged, and what is told when there is none."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx

from router.app import build
from router.front import application
from router.settings import Settings
from router.sim.config import EngineConfig
from router.sim.engine import SimEngine
from router.sim.fabric import LocalFabric
from router.sim.upstream import SimUpstream

P = "http://p:8000"
ONE, TWO = "http://d1:8000", "http://d2:8000"
BASE = EngineConfig()
LORA = EngineConfig(adapters=("lora-a", "lora-b"))


@asynccontextmanager
async def front(**decodes: EngineConfig) -> AsyncIterator[tuple[httpx.AsyncClient, SimUpstream]]:
    """A client of a router over these decode nodes, and the engines to take down."""
    fabric = LocalFabric()
    configs = {P: BASE, **{f"http://{name}:8000": config for name, config in decodes.items()}}
    upstream = SimUpstream({at: SimEngine(config, fabric=fabric) for at, config in configs.items()})
    settings = Settings(prefill=(P,), decode=tuple(at for at in configs if at != P))
    router = build(settings, upstream=upstream)
    await router.context.fleet.refresh(upstream)
    transport = httpx.ASGITransport(app=application(router))
    async with httpx.AsyncClient(transport=transport, base_url="http://router") as client:
        yield client, upstream


def ids(answer: httpx.Response) -> list[str]:
    assert answer.status_code == 200
    assert answer.json()["object"] == "list"
    return [model["id"] for model in answer.json()["data"]]


async def test_one_nodes_answer_passes_unchanged() -> None:
    async with front(d1=LORA) as (client, _):
        answer = await client.get("/v1/models")
        assert ids(answer) == ["sim-qwen3", "lora-a", "lora-b"]
        assert answer.headers["content-type"] == "application/json"
        assert {model["max_model_len"] for model in answer.json()["data"]} == {BASE.max_model_len}


async def test_several_answers_are_merged_by_id() -> None:
    async with front(d1=BASE, d2=LORA) as (client, _):
        assert ids(await client.get("/v1/models")) == ["sim-qwen3", "lora-a", "lora-b"]


async def test_a_node_that_is_not_there_is_left_out() -> None:
    async with front(d1=BASE, d2=LORA) as (client, upstream):
        upstream.engines.pop(ONE)
        assert ids(await client.get("/v1/models")) == ["sim-qwen3", "lora-a", "lora-b"]


async def test_without_any_that_can_be_reached_it_is_a_502() -> None:
    async with front(d1=BASE, d2=BASE) as (client, upstream):
        upstream.engines.clear()
        answer = await client.get("/v1/models")
        assert answer.status_code == 502
        assert answer.json()["error"]["code"] == "engine_unreachable"


async def test_without_a_ready_node_it_is_a_503() -> None:
    settings = Settings(prefill=(P,), decode=(ONE,))
    app = application(build(settings, upstream=SimUpstream({})))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://router") as client:
        answer = await client.get("/v1/models")
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    assert json.loads(answer.content)["error"]["code"] == "no_capacity"
