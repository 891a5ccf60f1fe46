"""Prefill legs that carry a handle and go wrong: the worst outcome is a cold turn with the right answer."""

import asyncio
import json
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

import httpx
import pytest

from router.sim.record import Corruption, Received
from router.sim.server import SimServer
from tests.e2e.http_pool import (
    CHAT,
    NO_CACHE_P,
    STOCK_33,
    Body,
    HttpPool,
    assert_right,
    carries_handle,
    comparable,
    continued,
    direct_client,
    fault,
    http_pool,
    legs,
    opening,
    second_turn,
    sim_servers,
)

# -- a prefill leg that carried a handle: once more, cold ------------------------------------------------


async def test_an_expired_handle_is_a_cold_turn() -> None:
    """T4: P refuses from 5 s before D's own end on, which is sooner than the router was told."""
    async with http_pool(prefill=[NO_CACHE_P], decode=[replace(STOCK_33, ttl_s=5.05)]) as pool:
        second = await second_turn(pool)
        await asyncio.sleep(0.1)
        answer = await pool.chat(second)
        await assert_right(pool, answer, second)
        assert (answer.headers["x-boomerang-plan"], answer.headers["x-boomerang-reason"]) == ("cold", "retry")
        assert list(map(carries_handle, legs(pool.p))) == [False, True, False]
        assert await pool.metric("leg_failures_total", action="cold_retry", with_handle="yes") == 1
        assert await pool.metric("handles_total", outcome="failed", detail="failed") == 1


async def test_a_restarted_decode_node_is_a_cold_turn() -> None:
    async with http_pool(prefill=[NO_CACHE_P]) as pool:
        second = await second_turn(pool)
        pool.d.engine.restart()
        await assert_right(pool, await pool.chat(second), second)


@pytest.mark.parametrize("script", [{"status": 500}, {"status": 503}, {"finish_reason": "abort"}])
async def test_a_prefill_leg_that_fails_with_a_handle_goes_cold_and_the_pair_cools(
    script: dict[str, Any],
) -> None:
    async with http_pool(prefill=[NO_CACHE_P]) as pool:
        second = await second_turn(pool)
        fault(pool.p, with_handle=True, **script)
        answer = await pool.chat(second)
        await assert_right(pool, answer, second)
        third = continued(second, answer.json())
        again = await pool.chat(third)
        assert again.headers["x-boomerang-reason"] == "pair_cooling"
        await assert_right(pool, again, third)
        (pair,) = (await pool.http.get("/health")).json()["pairs"]
        assert pair["verify"] == "off"


async def test_a_stale_connection_costs_the_handle_and_says_nothing_of_the_pair() -> None:
    """P may have read the leg, and with it the handle: it is not sent twice."""
    async with http_pool(prefill=[NO_CACHE_P]) as pool:
        second = await second_turn(pool)
        fault(pool.p, with_handle=True, cut_after_chunks=0)
        answer = await pool.chat(second)
        await assert_right(pool, answer, second)
        assert answer.headers["x-boomerang-reason"] == "retry"
        await pool.turn(continued(second, answer.json()), plan="pull")
        assert sum(map(carries_handle, legs(pool.p))) == 2


async def test_a_prefill_node_that_hangs_on_handles_costs_one_time_out() -> None:
    """T7: without bidirectional transfer P waits for ever for tokens that nobody loads."""
    one_way = replace(NO_CACHE_P, bidirectional=False)
    async with http_pool(prefill=[one_way], pull_timeout_s=0.3) as pool:
        second = await second_turn(pool)
        answer = await pool.chat(second)
        await assert_right(pool, answer, second)
        assert answer.headers["x-boomerang-reason"] == "retry"
        assert await pool.metric("handles_total", outcome="failed", detail="overdue") == 1
        assert pool.p.engine.aborts, "the hanging leg was closed"
        third = continued(second, answer.json())
        await assert_right(pool, await pool.chat(third), third)
        assert sum(map(carries_handle, legs(pool.p))) == 1


# -- a prompt that is read otherwise than it was verified ------------------------------------------------


def drifting(pool: HttpPool, held: Sequence[int]) -> None:
    """Let ``/tokenize`` say once that the prompt goes on just as D's tokens do."""
    fault(
        pool.p,
        path="/tokenize",
        status=200,
        body=json.dumps({"tokens": [*held, *range(1 << 30, (1 << 30) + 40)]}),
    )


def held_by_d(answer: Body) -> list[int]:
    return [*answer["prompt_token_ids"], *answer["choices"][0]["token_ids"][:-1]]


def salts(server: SimServer) -> list[str | None]:
    return [one.body.get("cache_salt") for one in legs(server)]


def mistrusting() -> AbstractAsyncContextManager[HttpPool]:
    """Engines whose answers retokenise, so that a prompt does not go on as D's tokens do."""
    config = replace(STOCK_33, retokenise=1.0)
    return http_pool(replace(config, prefix_cache=False), prefill=[config])


LONG_QUESTION = "and then? " * 40
"""So that the prompt is longer than what D holds, and P would read all of that."""


async def test_a_first_pull_that_was_verified_wrongly_spoils_nothing() -> None:
    """It ran under a salt that nothing else has: what P filed then is found by nobody."""
    async with mistrusting() as pool:
        body = opening(return_token_ids=True)
        first = await pool.turn(body)
        second = continued(body, first, LONG_QUESTION)
        drifting(pool, held_by_d(first))
        answer = await pool.chat(second)
        assert {record.kind for record in pool.p.engine.corruptions} == {Corruption.FOREIGN_KV}
        pool.p.engine.corruptions.clear()  # what P read before anybody could know; nothing may follow from it
        await assert_retokenised(pool, answer, second)
        assert answer.headers["x-boomerang-reason"] == "mismatch"
        assert await pool.metric("prompt_mismatches_total") == 1
        assert await pool.metric("leg_failures_total", action="salted") == 1
        assert [salt is not None for salt in salts(pool.p)] == [False, True, False]
        assert len(legs(pool.d)) == 2, "no decode leg of what P read wrongly"
        for later in (continued(second, answer.json()), second, opening("x", return_token_ids=True)):
            await assert_retokenised(pool, await pool.chat(later), later)
        assert not any(map(reads_a_handle, legs(pool.p)[3:])), "the model gets no reuse for now"


async def test_a_later_pull_that_was_verified_wrongly_puts_its_engine_under_a_salt() -> None:
    async with mistrusting() as pool:
        body = opening(return_token_ids=True)
        body = continued(body, await pool.turn(body), LONG_QUESTION)
        last = await pool.turn(body, plan="local")
        body = continued(body, last, LONG_QUESTION)
        drifting(pool, held_by_d(last))
        answer = await pool.chat(body)
        assert {record.kind for record in pool.p.engine.corruptions} == {Corruption.FOREIGN_KV}
        pool.p.engine.corruptions.clear()
        await assert_retokenised(pool, answer, body)
        assert answer.headers["x-boomerang-reason"] == "mismatch"
        wrong, again = salts(pool.p)[-2:]
        assert wrong is None
        assert again is not None
        reasons = []
        for later in (
            continued(body, answer.json()),
            body,
            opening("somebody else's", return_token_ids=True),
        ):
            answer = await pool.chat(later)
            await assert_retokenised(pool, answer, later)
            assert salts(pool.p)[-1] == salts(pool.d)[-1] == again
            reasons.append(answer.headers["x-boomerang-reason"])
        assert reasons[0] == "model_mistrusted"
        assert await pool.metric("handles_total", outcome="released", detail="model_mistrusted") == 1


def reads_a_handle(received: Received) -> bool:
    """Whether P is given a handle to read, and not only to let D free it."""
    return carries_handle(received) and received.body["kv_transfer_params"]["remote_num_tokens"] > 0


async def assert_retokenised(pool: HttpPool, answer: httpx.Response, body: Body) -> None:
    """The answer is that of an engine of this kind that is alone. Raises AssertionError."""
    assert answer.status_code == 200
    config = replace(NO_CACHE_P, retokenise=1.0)
    async with sim_servers([config]) as (server,), direct_client(server.origin) as http:
        assert comparable(answer.content) == comparable((await http.post(CHAT, json=body)).content)
    pool.sound()
