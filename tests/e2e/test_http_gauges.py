"""Gauges tell what is so now: after a storm of turns that end in every way all that is open is zero again."""

import asyncio
from dataclasses import replace
from typing import Final

import httpx
import pytest

from router.sim.profiles import Profile
from tests.e2e.http_pool import (
    CHAT,
    PATIENCE_S,
    STOCK_33,
    HttpPool,
    continued,
    fault,
    http_pool,
    opening,
    total,
    until,
)

ZERO_AT_REST: Final = ("open_turns", "waiting_turns", "open_legs", "release_queue")


async def leave(pool: HttpPool, number: int) -> None:
    """A client that goes in whatever phase its turn is then."""
    with pytest.raises(httpx.TimeoutException):
        await pool.http.post(CHAT, json=opening(f"leave {number}", stream=True), timeout=0.002 * (number + 1))


async def at_rest(pool: HttpPool) -> str:
    """The metrics, once every gauge of what is open is zero. Raises TimeoutError."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            text = (await pool.http.get("/metrics")).text
            if not any(total(text, f"boomerang_{name}") for name in ZERO_AT_REST):
                return text
            await asyncio.sleep(0.01)


async def test_after_turns_that_end_in_every_way() -> None:
    slow = replace(STOCK_33, profile=Profile(output_ms_per_token=5.0))
    async with http_pool(
        slow, max_turns=4, max_waiting=4, admission_wait_s=0.3, max_body_bytes=50_000
    ) as pool:
        first = opening("a conversation", max_tokens=3)
        answer = await pool.turn(first)
        for server in (pool.p, pool.d):
            fault(server, status=500, times=2)
            fault(server, cut_after_chunks=0, times=2)
        fault(pool.d, cut_after_chunks=1, streamed=True, times=2)
        asked = [
            *(pool.chat(opening(f"whole {n}", max_tokens=4)) for n in range(8)),
            *(pool.stream(opening(f"stream {n}", max_tokens=4)) for n in range(8)),
            *(leave(pool, number) for number in range(6)),
            pool.chat(continued(first, answer)),
            pool.http.post(CHAT, content=b"{"),
            pool.http.post(CHAT, content=b"x" * 60_000),
        ]
        await asyncio.gather(*asked, return_exceptions=True)
        await until(lambda: pool.router.open_turns.count == 0, "open turns")
        text = await at_rest(pool)
        assert total(text, "boomerang_refusals_total", code="bad_request") == 1
        assert total(text, "boomerang_refusals_total", code="body_too_large") == 1
        turns = total(text, "boomerang_turns_total")
        assert turns == total(text, "boomerang_answers_total") == total(text, "boomerang_turn_seconds_count")
        assert turns >= 15
        assert total(text, "boomerang_leg_failures_total") == total(text, "boomerang_leg_faults_total") > 0
        await pool.idle()


async def test_a_gauge_is_above_zero_while_something_is_open() -> None:
    async with http_pool(max_turns=1) as pool:
        fault(pool.p, hang=True)
        running = asyncio.create_task(pool.chat(opening()))
        await until(lambda: pool.router.open_turns.count == 1, "a turn")
        waiting = asyncio.create_task(pool.chat(opening("again")))
        await until(lambda: pool.router.context.admission.waiting == 1, "a turn that waits")
        assert await pool.metric("open_turns") == 2
        assert await pool.metric("waiting_turns") == 1
        for task in (running, waiting):
            task.cancel()
        await asyncio.gather(running, waiting, return_exceptions=True)
        text = await at_rest(pool)
        assert total(text, "boomerang_client_departures_total") == 2
        assert total(text, "boomerang_client_departures_total", phase="wait") == 1
