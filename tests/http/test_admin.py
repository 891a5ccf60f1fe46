"""The admin API as it is served: over a socket, beside the clients' own port."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from router.app import build
from router.fleet.node import Role, State
from router.http.listener import listen, origin_of
from router.sim.config import EngineConfig
from tests.e2e.http_pool import PATIENCE_S, direct_client, error_of, serving, settings_for, sim_servers
from tests.engines.scripted import closed_port

NODES = "/admin/nodes"
TOKEN = "sk-admin-hunter2"


@asynccontextmanager
async def admin(**options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """The admin API of a router whose nodes are not there."""
    nowhere = [f"http://127.0.0.1:{closed_port()}" for _ in range(2)]
    settings = settings_for(nowhere[:1], nowhere[1:], admin_port=0, **options)
    router = build(settings)
    origin = origin_of(router.listen_for_admin())
    async with serving(settings, router), direct_client(origin) as http:
        yield http


async def nodes(http: httpx.AsyncClient) -> dict[str, dict[str, Any]]:
    answer = await http.get(NODES)
    assert answer.status_code == 200, answer.text
    return {node["node"]: node for node in answer.json()["nodes"]}


async def test_every_node_with_its_state_and_why() -> None:
    async with admin() as http:
        async with asyncio.timeout(PATIENCE_S):
            while not all(node["reason"] for node in (await nodes(http)).values()):
                await asyncio.sleep(0.01)
        answer = (await http.get(NODES)).json()
        assert {key: answer[key] for key in ("cooling", "mistrusted", "tainted")} == {
            "cooling": [], "mistrusted": [], "tainted": [],
        }  # fmt: skip
        for node in answer["nodes"]:
            assert node["state"] == "starting"
            assert "connect" in node["reason"].lower()
            assert node["since_s"] >= 0
            assert node["breaker"] == {"circuit": "closed", "why": "", "trips": 0, "faults_in_a_row": 0}
            assert (node["in_flight"], node["weight"], node["limit"], node["rank"]) == (0, 1.0, None, None)
            assert node["engine"]["version"] is None


async def test_a_node_comes_drains_comes_back_and_goes() -> None:
    async with sim_servers([EngineConfig()]) as (engine,), admin() as http:
        asked = {"url": engine.origin, "role": "both", "weight": 2, "limit": 9}
        answer = await http.post(NODES, json=asked)
        assert answer.status_code == 201
        p, d = (node["node"] for node in answer.json()["nodes"])
        assert (p[0], d[0]) == ("p", "d")
        async with asyncio.timeout(PATIENCE_S):
            while {node["state"] for key, node in (await nodes(http)).items() if key in (p, d)} != {"ready"}:
                await asyncio.sleep(0.01)
        node = (await nodes(http))[d]
        assert (node["weight"], node["limit"]) == (2.0, 9)
        assert node["engine"]["models"]

        again = await http.post(NODES, json=asked)
        assert (again.status_code, error_of(again)["code"]) == (409, "conflict")

        drained = (await http.post(f"{NODES}/{d}/drain")).json()
        assert (drained["state"], drained["reason"]) == ("draining", "drained by an operator")
        assert (await http.post(f"{NODES}/{d}/undrain")).json()["state"] == "ready"

        leaving = await http.delete(f"{NODES}/{d}")
        assert (leaving.status_code, leaving.json()["state"]) == (202, "draining"), (
            "it may still be read from"
        )
        back = await http.post(NODES, json={"url": engine.origin, "role": "decode"})
        assert (back.status_code, back.json()["nodes"][0]["state"]) == (201, "ready")
        gone = await http.delete(f"{NODES}/{d}", params={"now": "true"})
        assert (gone.status_code, gone.json()) == (200, {"node": d, "state": "gone"})
        idle = await http.delete(f"{NODES}/{p}")
        assert (idle.status_code, idle.json()["state"]) == (200, "gone"), "nothing is held, nothing is open"
        assert {p, d} & set(await nodes(http)) == set()


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ({"url": "http://a:1"}, "role"),
        ({"url": "http://a:1", "role": "router"}, "role"),
        ({"url": "ftp://a:1", "role": "prefill"}, "http"),
        ({"url": "http://u:hunter2@a:1", "role": "prefill"}, "no user and password"),
        ({"url": "http://a:1", "role": "prefill", "weight": 0}, "weight"),
        ({"url": "http://a:1", "role": "prefill", "limit": 0}, "limit"),
        ({"url": "http://a:1", "role": "prefill", "wieght": 1}, "wieght"),
        ([], "object"),
    ],
)
async def test_what_is_no_node_is_refused(body: object, complaint: str) -> None:
    async with admin() as http:
        answer = await http.post(NODES, json=body)
        error = error_of(answer)
        assert error["status"] == 400
        assert complaint in error["message"]
        assert "hunter2" not in answer.text
        assert len(await nodes(http)) == 2


async def test_other_refusals_are_in_openais_shape() -> None:
    async with admin() as http:
        for status, answer in (
            (404, await http.post(f"{NODES}/d:nowhere:1/drain")),
            (404, await http.delete(f"{NODES}/d:nowhere:1")),
            (404, await http.get("/v1/models")),
            (405, await http.put(NODES)),
            (415, await http.post(NODES, content=b"{}")),
            (
                413,
                await http.post(NODES, content=b" " * 70_000, headers={"content-type": "application/json"}),
            ),
            (400, await http.post(NODES, content=b"{", headers={"content-type": "application/json"})),
        ):
            assert error_of(answer)["status"] == status
        key = next(iter(await nodes(http)))
        assert error_of(await http.delete(f"{NODES}/{key}", params={"now": "1"}))["param"] == "now"


async def test_the_token_is_wanted_and_can_be_rotated(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    async with admin(admin_token_file=file) as http:
        for shown in (
            None,
            "Bearer wrong",
            f"Basic {TOKEN}",
            f"Bearer {TOKEN}x",
            "Bearer",
            f"Bearer {TOKEN[:-1]}é",
        ):
            headers = {} if shown is None else {b"authorization": shown.encode()}
            answer = await http.get(NODES, headers=headers)
            assert (error_of(answer)["status"], answer.headers["www-authenticate"]) == (401, "Bearer")
            assert TOKEN not in answer.text
        good = {"authorization": f"Bearer {TOKEN}"}
        assert (await http.get(NODES, headers=good)).status_code == 200
        assert (await http.get(NODES, headers={**good, "host": "admin.example"})).status_code == 200
        file.write_text("another")
        assert (await http.get(NODES, headers=good)).status_code == 401
        assert (await http.get(NODES, headers={"authorization": "bearer another"})).status_code == 200
        file.unlink()
        assert error_of(await http.get(NODES, headers=good))["status"] == 403


async def test_without_a_token_no_web_page_gets_through() -> None:
    async with admin() as http:
        for headers in (
            {"origin": "http://evil.example"},
            {"origin": "null"},
            {"host": "evil.example"},
            {"host": "127.0.0.1.evil.example:80"},
        ):
            assert error_of(await http.get(NODES, headers=headers))["status"] == 403
        for host in ("localhost:9000", "127.0.0.1", "[::1]:9000"):
            assert (await http.get(NODES, headers={"host": host})).status_code == 200


async def test_it_is_not_on_the_clients_port() -> None:
    nowhere = f"http://127.0.0.1:{closed_port()}"
    settings = settings_for([nowhere], [nowhere], admin_port=0)
    router = build(settings)
    async with serving(settings, router) as origin, direct_client(origin) as http:
        assert error_of(await http.get(NODES))["status"] == 404
    assert router.admin_listener is not None
    assert router.admin_listener.fileno() < 0, "it is closed with the router"


async def test_without_a_port_there_is_none() -> None:
    nowhere = f"http://127.0.0.1:{closed_port()}"
    settings = settings_for([nowhere], [nowhere])
    router = build(settings)
    async with serving(settings, router):
        assert router.admin_listener is None
    assert {node.role for node in router.context.fleet.snapshot.nodes} == set(Role)
    assert {node.state for node in router.context.fleet.snapshot.nodes} == {State.STARTING}


def test_it_can_listen_on_ipv6() -> None:
    with listen("::1", 0) as listener:
        assert origin_of(listener).startswith("http://[::1]:")
