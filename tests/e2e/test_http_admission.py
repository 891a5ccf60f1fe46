"""Turns that wait for a place: for a bounded time, in a bounded queue, and never between their legs."""

import asyncio
from dataclasses import replace

import httpx

from tests.e2e.http_pool import HttpPool, fault, http_pool, legs, opening, until


def named(number: int) -> dict[str, object]:
    return opening(f"question {number}", max_tokens=4)


async def hold(pool: HttpPool, turns: int, **headers: str) -> list["asyncio.Task[httpx.Response]"]:
    """Turns whose prefill legs hang until they are let go."""
    tasks = []
    for number in range(turns):
        before = len(legs(pool.p))
        fault(pool.p, hang=True)
        tasks.append(asyncio.create_task(pool.chat(named(number), **headers)))
        await until(lambda before=before: len(legs(pool.p)) > before, "the leg")  # type: ignore[misc]
    return tasks


async def let_go(tasks: list["asyncio.Task[httpx.Response]"]) -> None:
    """The clients of these turns leave."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_turn_waits_for_a_place_and_then_runs() -> None:
    async with http_pool(max_turns=1) as pool:
        held = await hold(pool, 1)
        waits = asyncio.create_task(pool.chat(named(7)))
        await until(lambda: pool.router.context.admission.waiting == 1, "a turn that waits")
        assert await pool.metric("waiting_turns") == 1
        assert len(legs(pool.p)) == 1
        await let_go(held)
        assert (await waits).status_code == 200
        assert pool.ended().waited_s is not None
        await pool.idle()
        assert pool.router.context.admission.running == 0


async def test_a_node_takes_as_many_turns_as_it_may() -> None:
    async with http_pool(max_turns_per_node=2) as pool:
        held = await hold(pool, 2)
        waits = asyncio.create_task(pool.chat(named(7)))
        await until(lambda: pool.router.context.admission.waiting == 1, "a turn that waits")
        await let_go(held[:1])
        assert (await waits).status_code == 200
        await let_go(held)
        await pool.idle()


async def test_a_node_that_is_given_a_limit_of_its_own_keeps_it() -> None:
    async with http_pool() as pool:
        fleet = pool.router.context.fleet
        for node in fleet.snapshot.nodes:
            fleet.add(replace(node, limit=2))
        held = await hold(pool, 2)
        waits = asyncio.create_task(pool.chat(named(7)))
        await until(lambda: pool.router.context.admission.waiting == 1, "a turn that waits")
        await let_go(held[:1])
        assert (await waits).status_code == 200
        await let_go(held)
        await pool.idle()


async def test_who_waits_too_long_is_told_to_come_back() -> None:
    async with http_pool(max_turns=1, admission_wait_s=0.05) as pool:
        held = await hold(pool, 1)
        answer = await pool.chat(named(7))
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "1"
        assert answer.json()["error"]["code"] == "no_capacity"
        assert len(legs(pool.p)) == 1
        await let_go(held)
        await pool.turn(named(8))
        await pool.idle()


async def test_a_queue_that_is_full_takes_nobody() -> None:
    async with http_pool(max_turns=1, max_waiting=0) as pool:
        held = await hold(pool, 1)
        answer = await pool.chat(named(7))
        assert answer.status_code == 503
        assert "retry-after" in answer.headers
        await let_go(held)
        await pool.idle()


async def test_a_tenant_has_its_share_and_no_more() -> None:
    async with http_pool(max_turns_per_tenant=1) as pool:
        held = await hold(pool, 1, authorization="Bearer sk-one")
        refused = await pool.chat(named(7), authorization="Bearer sk-one")
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "too_many_turns"
        assert "retry-after" in refused.headers
        await pool.turn(named(8), authorization="Bearer sk-two")
        await let_go(held)
        await pool.idle()


async def test_a_client_that_leaves_while_it_waits_leaves_nothing_behind() -> None:
    async with http_pool(max_turns=1) as pool:
        held = await hold(pool, 1)
        waits = asyncio.create_task(pool.chat(named(7)))
        admission = pool.router.context.admission
        await until(lambda: admission.waiting == 1, "a turn that waits")
        await let_go([waits])
        await until(lambda: admission.waiting == 0, "that nobody waits")
        assert len(legs(pool.p)) == 1
        await let_go(held)
        await pool.idle()
        assert (admission.running, admission.waiting) == (0, 0)
