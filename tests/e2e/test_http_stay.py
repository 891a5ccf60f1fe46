"""A turn that stays on D: one leg, the right answer, and a history that is found again afterwards."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from router.fleet.node import Role
from router.sim.config import EngineConfig
from router.sim.profiles import Profile
from router.sim.template import TemplateOptions
from tests.e2e.http_pool import (
    STOCK_33,
    Body,
    HttpPool,
    alone,
    assert_right,
    carries_handle,
    comparable,
    continued,
    fault,
    http_pool,
    legs,
    opening,
    until,
)

SLOW = Profile(prefill_ms=20.0, transfer_ms=20.0, delivery_ms=10.0)
STOCK = replace(STOCK_33, profile=SLOW, template=TemplateOptions(strip_reasoning=False))
PLUGIN = replace(STOCK, plugin=True)
STAYING: dict[str, Any] = {"policy": "planned", "stay_max_tokens": 256}
BOTH = pytest.mark.parametrize("engine", [STOCK, PLUGIN], ids=["stock", "plugin"])


async def opened(pool: HttpPool, **members: Any) -> Body:
    """A conversation that D holds; its second turn, which is short. Two legs are known to be slow there."""
    load, now_s = pool.router.context.load, pool.router.context.now()
    for node in pool.router.context.fleet.snapshot.nodes:
        if node.role is Role.DECODE:
            for _ in range(40):
                load.delivered(node.key, tokens=100, seconds=5.0, legs=0, now_s=now_s)
                load.stayed(node.key, computed_tokens=100, seconds=0.01, legs=0, now_s=now_s)
    body = opening("hello", max_tokens=24, **members)
    return continued(body, await pool.turn(body, plan="cold"))


def much(body: Body, answer: Body) -> Body:
    """The next turn, with more than may stay."""
    return continued(body, answer, " ".join(f"word{n}" for n in range(400)))


def pinned(pool: HttpPool) -> int:
    return len(pool.d.engine.pins.by_request)


@BOTH
@pytest.mark.parametrize("stream", [False, True])
async def test_a_short_append_is_one_leg_and_the_right_answer(engine: EngineConfig, stream: bool) -> None:
    async with http_pool(engine, **STAYING) as pool:
        body = {**await opened(pool), "stream": stream}
        before = len(legs(pool.p))
        answer = await pool.chat(body)
        assert answer.headers["x-boomerang-plan"] == "stay"
        assert answer.headers["x-boomerang-reason"] == "extension"
        assert comparable(answer.content) == await alone(body)
        assert len(legs(pool.p)) == before, "P had nothing to do"
        assert "kv_transfer_params" not in legs(pool.d)[-1].body
        await pool.idle()
        pool.sound()


async def test_on_a_stock_engine_the_handle_waits_for_the_turn_after() -> None:
    async with http_pool(STOCK, **STAYING) as pool:
        body = await opened(pool)
        before, handle = pinned(pool), list(pool.d.engine.pins.by_request)[-1]
        answer = await pool.turn(body, plan="stay")
        assert "vllm_xargs" not in legs(pool.d)[-1].body
        assert pinned(pool) == before, "a turn without params leaves no pin that nothing frees"
        body = continued(body, answer)
        body = much(body, await pool.turn(body, plan="stay"))
        last = await pool.chat(body)
        assert last.headers["x-boomerang-plan"] in ("local", "pull")
        (carried,) = [one for one in legs(pool.p) if carries_handle(one)]
        assert carried.body["kv_transfer_params"]["remote_request_id"] == handle
        await assert_right(pool, last, body)
        assert await pool.metric("handles_total", outcome="given_back", detail="stayed") == 2


async def test_with_the_plugin_a_turn_that_stays_leaves_a_handle_of_its_own() -> None:
    async with http_pool(PLUGIN, **STAYING) as pool:
        body = await opened(pool)
        answer = await pool.turn(body, plan="stay")
        assert legs(pool.d)[-1].body["vllm_xargs"] == {"boomerang_stay": 1}
        newest = list(pool.d.engine.pins.by_request)[-1]
        assert pool.d.engine.pins.by_request[newest].deadline_s is not None
        body = much(body, answer)
        last = await pool.chat(body)
        (carried,) = [one for one in legs(pool.p) if carries_handle(one)]
        assert carried.body["kv_transfer_params"]["remote_request_id"] == newest
        assert int(last.headers["x-boomerang-reused-tokens"]) > 300
        await assert_right(pool, last, body)


async def test_a_clients_own_arguments_stay_as_they_are() -> None:
    async with http_pool(PLUGIN, **STAYING) as pool:
        body = await opened(pool, vllm_xargs={"mine": 7, "boomerang_stay": 1})
        assert legs(pool.d)[-1].body["vllm_xargs"] == {"mine": 7}, "to pin blocks is not a client's to ask"
        await pool.turn(body, plan="stay")
        assert legs(pool.d)[-1].body["vllm_xargs"] == {"mine": 7, "boomerang_stay": 1}


@BOTH
async def test_a_long_append_goes_to_p(engine: EngineConfig) -> None:
    async with http_pool(engine, **STAYING) as pool:
        body = opening("hello", max_tokens=24)
        body = much(body, await pool.turn(body))
        answer = await pool.chat(body)
        assert answer.headers["x-boomerang-plan"] in ("local", "pull")
        await assert_right(pool, answer, body)


@BOTH
async def test_a_client_that_leaves_a_turn_that_stays_costs_no_handle(engine: EngineConfig) -> None:
    slow = replace(engine, profile=replace(SLOW, output_ms_per_token=20.0))
    async with http_pool(slow, **STAYING) as pool:
        body = await opened(pool)
        leaving = asyncio.create_task(pool.chat(body))
        await until(lambda: bool(pool.d.engine.running), "the turn on D")
        leaving.cancel()
        await pool.idle()
        again = much(body, {"choices": [{"message": {"role": "assistant", "content": "never said"}}]})
        assert pool.ended().plan == "stay"
        answer = await pool.chat(again)
        assert answer.headers["x-boomerang-plan"] in ("local", "pull"), dict(answer.headers)
        await assert_right(pool, answer, again)


async def test_a_turn_that_cannot_stay_goes_elsewhere() -> None:
    """D is not to be reached any more: the turn is planned again, without it."""
    async with http_pool(decode=[STOCK, STOCK], prefill=[STOCK], **STAYING) as pool:
        body = await opened(pool)
        (holder,) = [server for server in pool.decodes if pool.ended().decode.endswith(server.origin[7:])]
        await holder.__aexit__(None, None, None)
        answer = await pool.chat(body)
        assert answer.headers["x-boomerang-plan"] == "cold"
        await assert_right(pool, answer, body)
        assert await pool.metric("leg_failures_total", role="decode", action="prefill_again") == 1


async def test_an_engine_that_breaks_off_a_turn_that_stays_has_broken_it_off() -> None:
    """It may have run: it is not run again. What was known before is known afterwards."""
    async with http_pool(STOCK, **STAYING) as pool:
        body = await opened(pool)
        fault(pool.d, status=500, path="/v1")
        assert (await pool.chat(body)).status_code in (500, 502)
        again = await pool.chat(much(body, await pool.turn(body, plan="stay")))
        assert again.headers["x-boomerang-plan"] in ("local", "pull")
        pool.sound()


async def test_what_a_turn_was_estimated_to_take_is_told_beside_what_it_took() -> None:
    async with http_pool(STOCK, **STAYING) as pool:
        before = await pool.metric("estimate_ratio_count")
        body = await opened(pool)
        raw = await pool.stream(continued(body, await pool.turn(body)))
        assert raw.endswith(b"data: [DONE]\n\n")
        ended = pool.ended()
        assert ended.estimate_s is not None
        assert ended.estimate_ratio is not None
        assert await pool.metric("estimate_ratio_count") == before + 1


async def test_where_the_time_went_before_the_answer() -> None:
    async with http_pool(STOCK) as pool:
        body = await opened(pool)
        answer = await pool.chat(body)
        spans = dict(part.split(";dur=") for part in answer.headers["server-timing"].split(", "))
        assert set(spans) == {"verify", "prefill", "gap"}
        assert float(spans["prefill"]) >= SLOW.prefill_ms
    async with http_pool(STOCK, explain_headers=False) as pool:
        assert "server-timing" not in (await pool.chat(opening())).headers
