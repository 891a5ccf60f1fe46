"""Plans over several nodes: conversations come back to their nodes, leave overloaded ones, and spread."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import pytest

from router.fleet.node import Role
from router.telemetry.facts import TurnEnded
from tests.e2e.http_pool import (
    NO_CACHE_P,
    STOCK_33,
    HttpPool,
    assert_right,
    carries_handle,
    continued,
    http_pool,
    legs,
    opening,
    second_turn,
)


@asynccontextmanager
async def planned(prefill: Any = STOCK_33, **options: Any) -> AsyncIterator[HttpPool]:
    """Two of each, planned."""
    given = {"policy": "planned", **options}
    async with http_pool(prefill=[prefill] * 2, decode=[STOCK_33] * 2, **given) as pool:
        yield pool


def turns(pool: HttpPool) -> list[TurnEnded]:
    return [fact for fact in pool.facts if isinstance(fact, TurnEnded)]


async def test_a_conversation_comes_back_to_its_nodes() -> None:
    async with planned() as pool:
        body = await second_turn(pool)
        await pool.turn(body, plan="local")
        first, second = turns(pool)
        assert (first.prefill, first.decode) == (second.prefill, second.decode)
        pool.sound()


async def test_an_overloaded_prefill_node_is_left_and_the_handle_goes_to_another() -> None:
    async with planned(NO_CACHE_P) as pool:
        body = await second_turn(pool)
        (first,) = turns(pool)
        load, now = pool.router.context.load, pool.router.context.now
        with load.prefilling(first.prefill, 1_000_000, now):
            answer = await pool.chat(body)
        assert answer.headers["x-boomerang-plan"] == "pull"
        second = turns(pool)[-1]
        assert second.prefill != first.prefill
        assert second.reused_tokens
        await assert_right(pool, answer, body)


async def test_an_overloaded_decode_node_is_left_and_its_handle_is_read() -> None:
    """KV goes from one D to a P, and from there to another D."""
    async with planned(NO_CACHE_P) as pool:
        body = await second_turn(pool)
        (first,) = turns(pool)
        load, now = pool.router.context.load, pool.router.context.now
        with ExitStack() as crowd:
            for _ in range(400):
                crowd.enter_context(load.decoding(first.decode, now))
            answer = await pool.chat(body)
        second = turns(pool)[-1]
        assert (second.plan, second.reason) == ("pull", "extension")
        assert second.decode != first.decode
        assert second.reused_tokens
        await assert_right(pool, answer, body)
        third = continued(body, answer.json())
        await assert_right(pool, await pool.chat(third), third)
        assert turns(pool)[-1].decode == second.decode, "the conversation has moved"


async def test_a_decode_node_that_drains_gives_its_conversations_away() -> None:
    async with planned(NO_CACHE_P) as pool:
        body = await second_turn(pool)
        (first,) = turns(pool)
        pool.router.context.fleet.drain(first.decode, "test")
        answer = await pool.chat(body)
        second = turns(pool)[-1]
        assert (second.plan, second.reason) == ("pull", "extension")
        assert second.decode != first.decode
        await assert_right(pool, answer, body)


async def test_siblings_that_lost_the_race_go_to_the_p_that_has_their_prefix() -> None:
    async with planned() as pool:
        body = await second_turn(pool)
        (first,) = turns(pool)
        asked = [{**body, "seed": number} for number in range(3)]
        answers = await asyncio.gather(*(pool.chat(one) for one in asked))
        assert [answer.status_code for answer in answers] == [200] * 3
        handles = [one for server in pool.prefills for one in legs(server) if carries_handle(one)]
        assert len(handles) == 1
        lost = [turn for turn in turns(pool)[1:] if turn.reason == "no_handle"]
        assert len(lost) == 2
        assert any(turn.prefill == first.prefill and turn.reused_tokens for turn in lost)
        pool.sound()


async def test_first_turns_that_come_together_spread() -> None:
    async with planned() as pool:
        bodies = [{**opening(), "messages": [{"role": "user", "content": f"{n} " * 50}]} for n in range(16)]
        await asyncio.gather(*(pool.turn(body) for body in bodies))
        for role in Role:
            counted = Counter(getattr(turn, role.value) for turn in turns(pool))
            assert len(counted) == 2, counted


@pytest.mark.parametrize("policy", ["round_robin", "least_load", "sticky"])
async def test_every_policy_reads_what_it_can(policy: str) -> None:
    async with planned(NO_CACHE_P, policy=policy) as pool:
        body = opening()
        for _ in range(4):
            body = continued(body, await pool.turn(body))
        answer = await pool.chat(body)
        assert all(turn.reason == "extension" and turn.reused_tokens for turn in turns(pool)[1:])
        await assert_right(pool, answer, body)
