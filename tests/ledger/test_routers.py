"""Routers as real processes that share one store: hopping conversations, a store that fails, workers."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from itertools import count

import aiohttp
import pytest

from bench.ledger.pool import Pool, corruptions, metric, pool
from bench.ledger.talk import Talk, reuse
from tests.ledger import servers
from tests.ledger.servers import Server

PATIENT = ("--policy", "sticky", "--store-timeout-s", "5", "--store-connect-timeout-s", "5")
LIMIT_S = 60.0


@pytest.fixture
def own() -> Iterator[Server]:
    servers.needed()
    with servers.server() as one:
        yield one


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    # Each request on a connection of its own: any worker may take it.
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as one:
        yield one


async def test_a_conversation_may_hop(own: Server, session: aiohttp.ClientSession) -> None:
    async with pool([own.url, own.url], options=PATIENT) as nodes:
        talk = Talk(session, lambda at, turn: nodes.routers[(at + turn) % 2])
        await talk.play(6, 5)
        assert [one.status for one in talk.seen] == [200] * 30
        assert [one.turn for one in talk.seen if one.plan == "cold"] == [0] * 6
        assert reuse(talk.seen) > 0.7
        assert await corruptions(session, nodes) == 0
        for router in nodes.routers:
            assert await metric(session, router, "boomerang_ledger_failures_total") == 0
        # One round trip for a turn that goes on; two for a first turn, which asks for its system prompt, too.
        calls = {
            operation: sum(
                [
                    await metric(
                        session, router, "boomerang_ledger_call_seconds_count", f'operation="{operation}"'
                    )
                    for router in nodes.routers
                ]
            )
            for operation in ("find", "put", "give_back")
        }
        assert calls == {"find": 24 + 2 * 6, "put": 30, "give_back": 0}


async def test_what_an_operator_drains_at_one_router_is_drained_at_the_other(
    own: Server, session: aiohttp.ClientSession
) -> None:
    async with pool([own.url, own.url], options=PATIENT, administered=True) as nodes:
        key = f"d:{nodes.decodes[0].removeprefix('http://')}"

        async def ask(admin: str, how: str) -> None:
            async with session.post(f"{admin}/admin/nodes/{key}/{how}") as answer:
                assert answer.status == 200, await answer.text()

        async def until(admin: str, state: str) -> None:
            async with asyncio.timeout(LIMIT_S):
                while True:
                    async with session.get(f"{admin}/admin/nodes") as answer:
                        told = {node["node"]: node["state"] for node in (await answer.json())["nodes"]}
                    if told[key] == state:
                        return
                    await asyncio.sleep(0.05)

        one, two = nodes.admins
        await ask(one, "drain")
        await until(two, "draining")
        await ask(two, "undrain")
        await until(one, "ready")


async def test_no_client_sees_that_the_store_is_gone(own: Server, session: aiohttp.ClientSession) -> None:
    options = ("--policy", "sticky", "--store-timeout-s", "0.2")
    async with pool([own.url, own.url], options=options) as nodes:
        talk = Talk(session, lambda at, turn: nodes.routers[(at + turn) % 2])
        numbers = count()

        async def until(plan: str) -> None:
            async with asyncio.timeout(LIMIT_S):
                while True:
                    talk.seen.clear()
                    await talk.converse(next(numbers), 4)
                    assert [one.status for one in talk.seen] == [200] * 4
                    if [one.plan for one in talk.seen[1:]] == [plan] * 3:
                        return

        await until("pull")
        for step, plan in (
            (own.freeze, "cold"),
            (own.thaw, "pull"),
            (own.kill, "cold"),
            (own.start, "pull"),
        ):
            await asyncio.to_thread(step)
            await until(plan)
            if plan == "cold":
                assert {one.reason for one in talk.seen} == {"ledger_down"}
        assert await corruptions(session, nodes) == 0
        told = nodes.logs[0].read_text()
        assert "does not answer; turns go cold" in told
        assert "is not asked" not in told, "each turn says it again"


async def test_workers_share_a_port_a_ledger_and_their_metrics(
    own: Server, session: aiohttp.ClientSession
) -> None:
    async with pool([own.url], options=(*PATIENT, "--workers", "3")) as nodes:
        router, parent = nodes.routers[0], nodes.processes[0]
        talk = Talk(session, lambda _at, _turn: router)
        await talk.play(8, 4)
        assert [one.status for one in talk.seen] == [200] * 32
        assert sorted({one.plan for one in talk.seen if one.turn}) == ["pull"]
        for _ in range(6):  # whichever of them answers
            assert await metric(session, router, "boomerang_turns_total") == 32
            assert await metric(session, router, "boomerang_time_to_first_byte_seconds_count") == 32
            assert await metric(session, router, "boomerang_build_info") == 1
        async with asyncio.timeout(LIMIT_S):
            while await metric(session, router, "boomerang_node_state") != 3:
                await asyncio.sleep(0.1)
            while await metric(session, router, "boomerang_node_breaker") != 3:
                await asyncio.sleep(0.1)
            while await metric(session, router, "boomerang_store_up") != 1:
                await asyncio.sleep(0.1)
            while await metric(session, router, "boomerang_open_turns") != 0:
                await asyncio.sleep(0.1)
        assert await metric(session, router, "boomerang_ledger_call_seconds_count") > 32
        workers = children(parent.pid)
        assert len(workers) == 3
        os.kill(workers[0], signal.SIGKILL)
        async with asyncio.timeout(LIMIT_S):
            while workers[0] in (now := children(parent.pid)) or len(now) < 3:
                await asyncio.sleep(0.05)
        await talk.play(8, 4)
        assert [one.status for one in talk.seen] == [200] * 64
        assert await metric(session, router, "boomerang_turns_total") == 64, "what a worker counted stays"
        parent.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(parent.wait, LIMIT_S) == 0
        assert await corruptions(session, nodes) == 0


async def test_workers_end_their_turns_before_they_stop(own: Server, session: aiohttp.ClientSession) -> None:
    async with pool([own.url], options=(*PATIENT, "--workers", "2")) as nodes:
        parent = nodes.processes[0]
        await _slow(session, nodes)
        talk = Talk(session, lambda _at, _turn: nodes.routers[0])
        playing = asyncio.ensure_future(talk.play(6, 1))
        async with asyncio.timeout(LIMIT_S):
            while await _running(session, nodes) < 6:
                await asyncio.sleep(0.02)
        parent.send_signal(signal.SIGTERM)
        await playing
        assert [one.status for one in talk.seen] == [200] * 6
        assert await asyncio.to_thread(parent.wait, LIMIT_S) == 0


async def _slow(session: aiohttp.ClientSession, nodes: Pool) -> None:
    """Let the decode nodes take their time."""
    for origin in nodes.decodes:
        body = [{"path": "/v1/chat/completions", "delay_s": 2.0, "times": 20}]
        async with session.post(f"{origin}/sim/faults", json=body) as answer:
            assert answer.status == 200, await answer.text()


async def _running(session: aiohttp.ClientSession, nodes: Pool) -> int:
    open_requests = 0
    for origin in nodes.decodes:
        async with session.get(f"{origin}/sim/state") as answer:
            open_requests += sum((await answer.json())["open_requests"].values())
    return open_requests


def children(pid: int) -> list[int]:
    """Process ids of a process's children."""
    told = subprocess.run(["ps", "-axo", "pid=,ppid="], capture_output=True, text=True, check=True)
    pairs = (line.split() for line in told.stdout.splitlines())
    return [int(child) for child, of in pairs if int(of) == pid]


@pytest.mark.parametrize("by", ["flag", "WEB_CONCURRENCY"])
def test_workers_without_a_shared_store_are_refused(by: str) -> None:
    command = [sys.executable, "-m", "router", "serve", "--prefill", "http://127.0.0.1:1"]
    command += ["--decode", "http://127.0.0.1:2", "--port", "0"]
    environment = {name: value for name, value in os.environ.items() if name != "WEB_CONCURRENCY"}
    if by == "flag":
        command += ["--workers", "2"]
    else:
        environment[by] = "2"
    told = subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=LIMIT_S, check=False
    )
    assert told.returncode == 2
    assert "2 processes need a shared store" in told.stderr
