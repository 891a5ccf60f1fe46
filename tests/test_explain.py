"""``boomerang explain``: asks a running router, and shows people and machines what it was told."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from router.cli import main
from router.explain import text
from router.http.admin import admin_application
from router.http.explain import ExplainRoute
from router.http.listener import listen, serve_on
from tests.e2e.http_pool import HttpPool, http_pool, opening, second_turn

TOKEN = "admin-token"


@contextlib.asynccontextmanager
async def admin_of(pool: HttpPool, token: str | None = None) -> AsyncIterator[str]:
    """The explain route of a router's admin API, and its origin."""

    routes = ExplainRoute(pool.router.context, "", 1 << 20).routes()
    listener = listen("127.0.0.1", 0)
    app = admin_application(routes, lambda: token)
    running = asyncio.create_task(serve_on(listener, app))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


async def run(*args: str) -> int:
    """The command, beside the event loop that answers it."""
    return await asyncio.to_thread(main, ["explain", *args])


def write(file: Path, content: str) -> None:
    file.write_text(content)


@pytest.fixture
def asked(tmp_path: Path) -> Path:
    file = tmp_path / "request.json"
    file.write_text(json.dumps(opening()))
    return file


async def test_a_table_for_people(asked: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with http_pool(policy="planned", stay_max_tokens=256) as pool, admin_of(pool) as url:
        assert await run(str(asked), "--url", url) == 0
        first = capsys.readouterr().out
        assert first.startswith("cold (first_turn) on p:127.0.0.1:")
        assert "nothing is known of its history" in first
        write(asked, json.dumps(await second_turn(pool)))
        assert await run(str(asked), "--url", url) == 0
        second = capsys.readouterr().out.splitlines()
        assert second[1].startswith("extension at boundary 2 of 4, turn 2 of its branch; d:127.0.0.1:")
        rows = [line.split() for line in second if line and line.split()[0] in ("local", "cold", "stay")]
        assert {row[0] for row in rows[1:]} >= {"local", "cold", "stay"}


async def test_json_for_machines_of_the_tenant_that_a_header_names(
    asked: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with http_pool() as pool, admin_of(pool, TOKEN) as url:
        body = opening()
        answer = await pool.turn(body, authorization="Bearer sk-one")
        said = answer["choices"][0]["message"]["content"]
        messages = [*body["messages"], {"role": "assistant", "content": said}, body["messages"][1]]
        write(asked, json.dumps({**body, "messages": messages}))
        write(tmp_path / "token", TOKEN + "\n")
        write(tmp_path / "headers", "Authorization: Bearer sk-one\n\nX-Session-ID: s\n")
        given = [str(asked), "--url", url, "--json", "--token-file", str(tmp_path / "token")]
        assert await run(*given, "--header-file", str(tmp_path / "headers")) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["found"]["depth"] == 2
        assert told["conversation"] == "s"
        assert await run(*given) == 0
        assert json.loads(capsys.readouterr().out)["found"] is None, "another tenant"


async def test_without_the_token_nothing_is_told(asked: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with http_pool() as pool, admin_of(pool, TOKEN) as url:
        assert await run(str(asked), "--url", url) == 1
        assert "the router answered 401" in capsys.readouterr().err


async def test_without_nodes_there_is_no_plan(asked: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with http_pool() as pool, admin_of(pool) as url:
        for node in pool.router.context.fleet.snapshot.nodes:
            pool.router.context.fleet.remove(node.key)
        assert await run(str(asked), "--url", url) == 1
        assert capsys.readouterr().out.startswith("no plan")


async def test_a_body_that_is_no_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "request.json"
    file.write_text("[1]")
    async with http_pool() as pool, admin_of(pool) as url:
        assert await run(str(file), "--url", url) == 1
        assert "400" in capsys.readouterr().err


def test_a_router_that_does_not_answer(asked: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    assert main(["explain", str(asked), "--url", url]) == 1
    assert "does not answer" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["FILE"], "--url is required"),
        (["FILE", "--url", "no origin"], "--url: an origin begins with"),
        (["missing.json", "--url", "http://h:1"], "FILE: the file cannot be read"),
        (["FILE", "--url", "http://h:1", "--token-file", "missing"], "--token-file: the file cannot be read"),
        (["TEXT", "--url", "http://h:1"], "FILE: not a JSON document"),
        (["FILE", "--url", "http://h:1", "--header-file", "TEXT"], "--header-file: each line"),
    ],
)
def test_wrong_usage_is_one_line(
    args: list[str], said: str, asked: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text").write_text("sk-secret without a colon")
    named = {"FILE": str(asked), "TEXT": str(tmp_path / "text")}
    assert main(["explain", *(named.get(arg, arg) for arg in args)]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1
    assert "sk-secret" not in told


def test_a_turn_that_nothing_is_known_of_still_has_a_table() -> None:
    told: dict[str, Any] = {
        "plan": None, "found": {"cold_reason": "ledger_down"}, "alternatives": [],
        "tokens": {"prompt": 10, "append": 10},
    }  # fmt: skip
    assert text(told).splitlines()[-1].startswith("way")
