"""Legs that fail before the client got a byte, where there are other nodes to go to."""

import asyncio
from typing import Any

import pytest

from tests.e2e.http_pool import (
    NO_CACHE_P,
    STOCK_33,
    HttpPool,
    assert_right,
    fault,
    http_pool,
    legs,
    opening,
    second_turn,
    until,
)

TWO_OF_EACH: dict[str, Any] = {"prefill": [NO_CACHE_P, NO_CACHE_P], "decode": [STOCK_33, STOCK_33]}


def both(servers: list[Any], **what: Any) -> None:
    """The next leg of whichever node gets it goes wrong; the other node's then has to go well."""
    for server in servers:
        fault(server, **what)


async def clear(pool: HttpPool, touched: list[Any]) -> None:
    """Take the fault back from the node that was not asked."""
    await until(lambda: any(legs(server) for server in touched), "a leg")
    for server in touched:
        server.engine.faults.clear()


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_prefill_leg_that_an_engine_refuses_is_run_on_another_node(status: int) -> None:
    async with http_pool(**TWO_OF_EACH) as pool:
        both(pool.prefills, status=status, delay_s=0.05)
        asked = asyncio.create_task(pool.chat(opening()))
        await clear(pool, pool.prefills)
        await assert_right(pool, await asked, opening())
        assert sorted(len(legs(server)) for server in pool.prefills) == [1, 1]
        assert await pool.metric("leg_failures_total", action="other_node") == 1
        await pool.idle()


async def test_a_prefill_node_that_dies_costs_no_turn() -> None:
    async with http_pool(**TWO_OF_EACH) as pool:
        both(pool.prefills, restart=True, delay_s=0.05)
        asked = asyncio.create_task(pool.chat(opening()))
        await clear(pool, pool.prefills)
        await assert_right(pool, await asked, opening())
        await pool.idle()


@pytest.mark.parametrize("script", [{"status": 500}, {"status": 429}, {"status": 503}, {"restart": True}])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_decode_leg_that_fails_before_its_first_byte_moves_the_turn(
    script: dict[str, Any], stream: bool
) -> None:
    async with http_pool(**TWO_OF_EACH) as pool:
        both(pool.decodes, delay_s=0.05, **script)
        body = opening(stream=stream)
        asked = asyncio.create_task(pool.chat(body))
        await clear(pool, pool.decodes)
        answer = await asked
        assert answer.status_code == 200, answer.text
        if not stream:
            await assert_right(pool, answer, body)
        asked_each = sorted(len(legs(server)) for server in pool.decodes)
        # An idle connection that closes with no byte of an answer speaks against no node.
        assert asked_each == [1, 1] or (script == {"restart": True} and asked_each == [0, 2])
        # D may have seen the first P's params, and freed its blocks: the prompt was computed again.
        assert sum(len(legs(server)) for server in pool.prefills) == 2
        assert await pool.metric("leg_failures_total", action="prefill_again") == 1
        await pool.idle()
        pool.sound()


async def test_a_later_turn_moves_too_and_uses_its_handle_once() -> None:
    async with http_pool(**TWO_OF_EACH) as pool:
        second = await second_turn(pool)
        before = [len(legs(server)) for server in pool.decodes]
        holder = pool.decodes[before.index(max(before))]
        fault(holder, restart=True)
        await assert_right(pool, await pool.chat(second), second)
        await pool.idle()
        pool.sound()


async def test_without_another_node_the_engines_own_error_is_told() -> None:
    async with http_pool(NO_CACHE_P) as pool:
        fault(pool.d, status=500)
        answer = await pool.chat(opening())
        assert answer.status_code in (500, 502)
        assert len(legs(pool.d)) == 1
        await pool.idle()


async def test_a_request_that_fails_everywhere_does_not_go_round_all_nodes() -> None:
    async with http_pool(prefill=[NO_CACHE_P] * 5, decode=[STOCK_33]) as pool:
        both(pool.prefills, status=500)
        answer = await pool.chat(opening())
        assert answer.status_code in (500, 502)
        assert sum(len(legs(server)) for server in pool.prefills) == 3
        await pool.idle()


async def test_a_stream_that_broke_off_is_not_begun_again() -> None:
    async with http_pool(**TWO_OF_EACH) as pool:
        for server in pool.decodes:
            fault(server, cut_after_chunks=3)
        said = await pool.stream(opening())
        assert b'"error"' in said
        assert sum(len(legs(server)) for server in pool.decodes) == 1


@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_turn_does_not_wait_for_a_node_that_answers_no_probes_any_more(
    role: str, stream: bool
) -> None:
    async with http_pool(**TWO_OF_EACH) as pool:
        servers = pool.prefills if role == "prefill" else pool.decodes
        both(servers, hang=True)
        body = opening(stream=stream)
        asked = asyncio.create_task(pool.chat(body))
        await clear(pool, servers)
        stuck = next(server for server in servers if legs(server))
        fleet, upstream = pool.router.context.fleet, pool.router.context.upstream
        stuck.engine.dead = True  # its /health answers 503 from now on
        while not asked.done():
            await fleet.refresh(upstream)
            await asyncio.sleep(0.01)
        answer = await asked
        assert answer.status_code == 200, answer.text
        assert sorted(len(legs(server)) for server in servers) == [1, 1]
        key = next(node.key for node in fleet.snapshot.nodes if node.origin == stuck.origin)
        assert (await pool.metric("node_state", node=key, state="ejected")) == 1
