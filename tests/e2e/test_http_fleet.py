"""Fleets over sockets: nodes that drain, fail, hang, come and go, and turns that get over it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import generate_latest

from router.app import build
from router.fleet.node import Circuit, Node, Role, State
from router.http.listener import origin_of
from router.sim.server import SimServer
from tests.e2e.http_pool import (
    CHAT,
    MODEL,
    NO_CACHE_P,
    PATIENCE_S,
    STOCK_33,
    HttpPool,
    carries_handle,
    continued,
    direct_client,
    error_of,
    fault,
    http_pool,
    legs,
    opening,
    router_of,
    router_process,
    serving,
    settings_for,
    sim_servers,
    until,
)
from tests.engines.scripted import closed_port
from tests.fleet.small_engine import SmallEngine, small_engine

QUICK: dict[str, Any] = {"probe_interval_s": 0.05}


def node_at(pool: HttpPool, server: SimServer | SmallEngine, role: Role = Role.DECODE) -> Node:
    nodes = pool.router.context.fleet.snapshot.nodes
    return next(node for node in nodes if node.origin == server.origin and node.role is role)


@asynccontextmanager
async def administered(
    prefills: int, decodes: int, **options: Any
) -> AsyncIterator[tuple[HttpPool, httpx.AsyncClient]]:
    """A pool of so many nodes, and a client of its admin API."""
    configs = [NO_CACHE_P] * prefills + [STOCK_33] * decodes
    async with (
        sim_servers(configs) as servers,
        router_of(servers[:prefills], servers[prefills:], admin_port=0, **QUICK, **options) as pool,
    ):
        await until(lambda: pool.router.admin_listener is not None, "the admin API")
        assert pool.router.admin_listener is not None
        async with direct_client(origin_of(pool.router.admin_listener)) as admin:
            yield pool, admin


async def converse(pool: HttpPool, name: str, *, turns: int) -> list[httpx.Response]:
    """A conversation in which every turn has to be answered."""
    body, answers = opening(f"{name}: hello"), []
    for turn in range(turns):
        answer = await pool.chat(body)
        assert answer.status_code == 200, answer.text
        answers.append(answer)
        body = continued(body, answer.json(), f"{name}, turn {turn}")
    return answers


async def settled(pool: HttpPool) -> None:
    """No turn and no leg is open; probes go on."""
    await until(lambda: pool.router.open_turns.count == 0, "open turns")
    fleet = pool.router.context.fleet
    await until(lambda: not any(node.in_flight for node in fleet.snapshot.nodes), "open legs")


async def ask_until(pool: HttpPool, condition: Callable[[], bool]) -> set[int]:
    """Ask, a few at a time, until something is so; every status that came."""
    statuses, asked = set[int](), 0
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            asks = [opening(f"question {asked + n}") for n in range(4)]
            asked += len(asks)
            statuses |= {answer.status_code for answer in await asyncio.gather(*map(pool.chat, asks))}
    return statuses


# -- draining --------------------------------------------------------------------------------------------


async def test_a_drained_decode_nodes_conversations_move_and_are_read_from_it() -> None:
    async with administered(1, 2) as (pool, admin):
        body = opening("hello")
        first = await pool.turn(body)
        (holder,) = [server for server in pool.decodes if legs(server)]
        key = node_at(pool, holder).key
        assert (await admin.post(f"/admin/nodes/{key}/drain")).status_code == 200
        await pool.turn(continued(body, first), plan="pull")
        assert len(legs(holder)) == 1, "no new turn came to it"
        assert carries_handle(legs(pool.p)[-1])
        assert not holder.engine.pins.by_request, "what it kept was read"
        pool.sound()


async def test_all_nodes_drain_and_restart_one_by_one_under_load() -> None:
    async with administered(2, 2) as (pool, admin):
        stop = asyncio.Event()

        async def load(name: str) -> int:
            talks = 0
            while not stop.is_set():
                await converse(pool, f"{name} {talks}", turns=4)
                talks += 1
            return talks

        async def told(key: str) -> dict[str, Any]:
            nodes = (await admin.get("/admin/nodes")).json()["nodes"]
            return next(node for node in nodes if node["node"] == key)

        running = [asyncio.create_task(load(name)) for name in ("anna", "bert", "carl")]
        try:
            async with asyncio.timeout(2 * PATIENCE_S):
                for server in pool.engines:
                    role = Role.PREFILL if server in pool.prefills else Role.DECODE
                    key = node_at(pool, server, role).key
                    await admin.post(f"/admin/nodes/{key}/drain")
                    # What P computed is read for a while after its own leg has ended.
                    while (node := await told(key))["in_flight"] or (node["idle_s"] or 9.0) < 0.5:
                        await asyncio.sleep(0.02)
                    server.engine.restart()
                    await admin.post(f"/admin/nodes/{key}/undrain")
                    while (await told(key))["state"] != "ready":
                        await asyncio.sleep(0.02)
        finally:
            stop.set()
            talks = await asyncio.gather(*running)
        assert all(talks)
        await settled(pool)
        pool.sound()


async def test_a_pair_whose_pull_failed_cools_and_can_be_seen() -> None:
    async with administered(1, 1) as (pool, admin):
        body = opening("hello")
        second = continued(body, await pool.turn(body))
        fault(pool.p, with_handle=True, status=500)
        await pool.turn(second, plan="cold")
        told = (await admin.get("/admin/nodes")).json()
        (pair,) = told["cooling"]
        p, d = node_at(pool, pool.p, Role.PREFILL), node_at(pool, pool.d)
        assert (pair["prefill"], pair["decode"]) == (p.key, d.key)
        assert 0 < pair["for_s"] <= 30
        assert {node["breaker"]["faults_in_a_row"] for node in told["nodes"]} == {0}


# -- breakers --------------------------------------------------------------------------------------------


async def test_a_node_whose_legs_fail_is_ejected_and_comes_back_on_trial() -> None:
    taking_turns = {"policy": "round_robin", "breaker_failures": 2, "breaker_open_s": 0.3}
    async with administered(1, 2, **taking_turns) as (pool, admin):
        bad, _ = pool.decodes
        fault(bad, leg="decode", status=500, times=1000)
        await ask_until(pool, lambda: node_at(pool, bad).state is State.EJECTED)
        key = node_at(pool, bad).key
        (told,) = [n for n in (await admin.get("/admin/nodes")).json()["nodes"] if n["node"] == key]
        assert told["breaker"]["trips"] >= 1
        assert "status 500" in told["breaker"]["why"]
        bad.engine.faults.clear()
        await until(lambda: node_at(pool, bad).state is State.READY, "a trial")
        answered = await ask_until(pool, lambda: node_at(pool, bad).circuit is Circuit.CLOSED)
        assert answered == {200}
        await settled(pool)


async def test_a_pool_whose_breakers_are_all_open_still_serves() -> None:
    """E4: what one client's requests did is not everybody's outage."""
    async with http_pool(breaker_failures=2, breaker_open_s=3600) as pool:
        fault(pool.d, leg="decode", status=500, times=2)
        for n in range(2):
            assert (await pool.chat(opening(f"{n}"))).status_code == 500
        assert node_at(pool, pool.d).state is State.EJECTED
        assert (await pool.chat(opening("and now?"))).status_code == 200


@pytest.mark.parametrize("status", [400, 404, 422])
async def test_refusals_are_no_faults(status: int) -> None:
    async with http_pool(breaker_failures=1) as pool:
        fault(pool.p, leg="prefill", status=status, times=5)
        for n in range(5):
            assert (await pool.chat(opening(f"{n}"))).status_code == status
        assert node_at(pool, pool.p, Role.PREFILL).circuit is Circuit.CLOSED


async def test_a_busy_node_is_left_alone_for_as_long_as_it_says() -> None:
    async with http_pool(decode=[STOCK_33, STOCK_33], breaker_failures=1) as pool:
        busy, other = pool.decodes
        fault(busy, leg="decode", status=503, times=100)
        statuses = [(await pool.chat(opening(f"{n}"))).status_code for n in range(6)]
        assert statuses.count(200) >= 5, "one turn met it, and the others kept away"
        assert node_at(pool, busy).state is State.READY
        assert len(legs(other)) >= 5


# -- a node that accepts and never answers -----------------------------------------------------------------


@asynccontextmanager
async def with_silent_p(**options: Any) -> AsyncIterator[tuple[HttpPool, SmallEngine]]:
    """1P1D, and a P that answers probes, and nothing else."""
    async with small_engine() as silent, sim_servers([STOCK_33] * 2) as (p, d):
        silent.healthy()
        silent.answers["/v1/models"] = (200, f'{{"data":[{{"id":"{MODEL}"}}]}}')
        prefills: Sequence[Any] = (p, silent)
        async with router_of(prefills, [d], probe_timeout_s=0.3, **QUICK, **options) as pool:
            pool.prefills.remove(silent)  # type: ignore[arg-type]
            yield pool, silent


async def test_a_node_that_never_answers_a_leg_is_ejected() -> None:
    async with with_silent_p(prefill_timeout_s=0.3, breaker_failures=2, breaker_open_s=3600) as (
        pool,
        silent,
    ):
        answered = await ask_until(pool, lambda: node_at(pool, silent, Role.PREFILL).state is State.EJECTED)
        assert answered <= {200, 504}
        assert "no answer within 0.3 s" in node_at(pool, silent, Role.PREFILL).reason
        for n in range(8):
            assert (await pool.chat(opening(f"after {n}"))).status_code == 200


async def test_a_node_that_never_answers_a_probe_is_ejected_within_the_set_time() -> None:
    async with with_silent_p() as (pool, silent):
        silent.answers.clear()
        # Two probes have to fail: each is begun within an interval, and is overdue after its limit.
        took_s = await until(
            lambda: node_at(pool, silent, Role.PREFILL).state is State.EJECTED, "the ejection"
        )
        assert took_s < 20 * 2 * (QUICK["probe_interval_s"] + 0.3)
        assert "within 0.3 s" in node_at(pool, silent, Role.PREFILL).reason
        for n in range(6):
            assert (await pool.chat(opening(f"{n}"))).status_code == 200


# -- nodes that come and go --------------------------------------------------------------------------------


async def test_a_pool_from_a_file_follows_it(tmp_path: Path) -> None:
    path = tmp_path / "nodes.yaml"
    async with sim_servers([STOCK_33] * 3) as (p, d, later):
        path.write_text(f"prefill: [{p.origin}]\ndecode: [{d.origin}]\n")
        settings = settings_for((), (), nodes_file=path, probe_interval_s=0.05)
        router = build(settings)
        async with serving(settings, router) as origin, direct_client(origin) as http:
            fleet = router.context.fleet
            await until(lambda: len(fleet.snapshot.ready(Role.DECODE)) == 1, "the file's nodes")
            await until(lambda: len(fleet.snapshot.ready(Role.PREFILL)) == 1, "the file's nodes")
            assert (await http.post(CHAT, json=opening())).status_code == 200
            path.write_text(f"prefill: [{p.origin}]\ndecode: [{later.origin}]\n")
            await until(lambda: [n.origin for n in fleet.snapshot.ready(Role.DECODE)] == [later.origin])
            assert (await http.post(CHAT, json=opening("once more"))).status_code == 200
            assert legs(later)
            path.write_text("prefill: [")
            await until(lambda: "discovery_failures_total" in _exposition(router), "what is broken")
            assert (await http.post(CHAT, json=opening("and again"))).status_code == 200
            assert (await http.get("/ready")).status_code == 200


def _exposition(router: Any) -> str:
    text = generate_latest(router.registry).decode()
    return "\n".join(line for line in text.splitlines() if not line.startswith("#"))


async def test_without_any_node_the_client_is_told_to_come_again(tmp_path: Path) -> None:
    settings = settings_for((), (), nodes_file=tmp_path / "not-yet.yaml")
    async with serving(settings, build(settings)) as origin, direct_client(origin) as http:
        answer = await http.post(CHAT, json=opening())
        assert (error_of(answer)["status"], answer.headers["retry-after"]) == (503, "1")
        assert (await http.get("/ready")).status_code == 503
        assert (await http.get("/live")).status_code == 200


# -- data-parallel ranks -------------------------------------------------------------------------------------


async def test_each_rank_of_an_engine_is_a_node_and_its_legs_say_so() -> None:
    async with sim_servers([STOCK_33, replace(STOCK_33)]) as (p, d):
        settings = settings_for([f"{p.origin}@0", f"{p.origin}@1"], [f"{d.origin}@3"], probe_interval_s=0.05)
        router = build(settings)
        async with serving(settings, router) as origin, direct_client(origin) as http:
            await until(lambda: all(n.state is State.READY for n in router.context.fleet.snapshot.nodes))
            given = {"x-data-parallel-rank": "7"}
            answers = await asyncio.gather(
                *(http.post(CHAT, json=opening(f"{n}"), headers=given) for n in range(6))
            )
            assert {answer.status_code for answer in answers} == {200}
        ranks = {one.headers.get("x-data-parallel-rank") for one in legs(p)}
        assert ranks == {"0", "1"}
        assert {one.headers.get("x-data-parallel-rank") for one in legs(d)} == {"3"}


# -- as it is run --------------------------------------------------------------------------------------------


async def test_a_router_without_nodes_gets_them_by_its_admin_api_and_stops_well(tmp_path: Path) -> None:
    path, port = tmp_path / "nodes.yaml", closed_port()
    async with sim_servers([STOCK_33] * 2) as (p, d):
        path.write_text(f"prefill: [{p.origin}]\n")
        flags = ("--nodes-file", str(path), "--admin-port", str(port), "--policy", "round_robin")
        async with asyncio.timeout(2 * PATIENCE_S), direct_client(f"http://127.0.0.1:{port}") as admin:
            adding = asyncio.create_task(_add_when_it_is_there(admin, d.origin))
            async with router_process([], [], *flags) as (process, origin):
                assert (await adding).status_code == 201
                async with direct_client(origin) as http:
                    assert (await http.post(CHAT, json=opening())).status_code == 200
                process.terminate()
                assert await process.wait() == 0


async def _add_when_it_is_there(admin: httpx.AsyncClient, origin: str) -> httpx.Response:
    while True:
        with contextlib.suppress(httpx.TransportError):
            return await admin.post("/admin/nodes", json={"url": origin, "role": "decode"})
        await asyncio.sleep(0.05)
