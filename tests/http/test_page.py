"""The live page over sockets: its files, who gets them, and the stream of what happens."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from router.app import Router, build
from router.http import page
from router.http.listener import origin_of
from router.http.page import FILES, MAX_WATCHERS, OPEN, STATIC, PageRoutes
from tests.e2e.http_pool import (
    CHAT,
    NO_CACHE_P,
    PATIENCE_S,
    HttpPool,
    continued,
    direct_client,
    error_of,
    fault,
    http_pool,
    opening,
    serving,
    settings_for,
    until,
)
from tests.engines.scripted import closed_port

TOKEN = "s3cret-of-operators"
EVENTS = "/page/events"
CANARY = "canary-Zxq7"


@asynccontextmanager
async def admin(**options: Any) -> AsyncIterator[tuple[Router, httpx.AsyncClient]]:
    """A router whose nodes are not there, and a client of its admin listener."""
    nowhere = [f"http://127.0.0.1:{closed_port()}" for _ in range(2)]
    settings = settings_for(nowhere[:1], nowhere[1:], admin_port=0, **options)
    router = build(settings)
    origin = origin_of(router.listen_for_admin())
    async with serving(settings, router), direct_client(origin) as http:
        yield router, http


@asynccontextmanager
async def watched(**options: Any) -> AsyncIterator[tuple[HttpPool, httpx.AsyncClient]]:
    """A pool with an admin listener, and a client of that."""
    async with (
        http_pool(NO_CACHE_P, admin_port=0, **options) as pool,
        direct_client(origin_of(pool.router.listen_for_admin())) as http,
    ):
        yield pool, http


@asynccontextmanager
async def watching(http: httpx.AsyncClient) -> AsyncIterator["Frames"]:
    async with asyncio.timeout(PATIENCE_S), http.stream("GET", EVENTS) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield Frames(answer)


class Frames:
    """What one watcher was sent."""

    def __init__(self, answer: httpx.Response) -> None:
        self._lines = answer.aiter_lines()
        self.turns: list[dict[str, Any]] = []
        self.state: dict[str, Any] = {}
        self.raw = ""

    async def next(self) -> dict[str, Any]:
        async for line in self._lines:
            self.raw += line
            if line.startswith("data: "):
                frame: dict[str, Any] = json.loads(line[6:])
                self.turns += frame.get("turns", [])
                self.state = frame.get("state", self.state)
                return frame
        raise AssertionError("the stream ended")

    async def until_turns(self, count: int) -> None:
        while len(self.turns) < count:
            await self.next()


# -- files ------------------------------------------------------------------------------------------------


async def test_every_file_comes_with_its_type_and_is_kept_by_its_tag() -> None:
    async with admin() as (_, http):
        for path, name in FILES.items():
            answer = await http.get(path)
            assert answer.status_code == 200
            assert answer.content == (STATIC / name).read_bytes()
            assert answer.headers["content-type"] == page.MEDIA[Path(name).suffix]
            assert answer.headers["x-content-type-options"] == "nosniff"
            again = await http.get(path, headers={"if-none-match": answer.headers["etag"]})
            assert (again.status_code, again.content) == (304, b"")
        root = await http.get("/")
        assert (root.status_code, root.headers["location"]) == (307, "page")


async def test_the_policy_lets_nothing_in_from_elsewhere() -> None:
    async with admin() as (_, http):
        policy = (await http.get("/page")).headers["content-security-policy"]
    directives = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    assert directives["default-src"] == directives["frame-ancestors"] == directives["form-action"] == "'none'"
    assert directives["script-src"] == directives["style-src"] == directives["connect-src"] == "'self'"
    assert "unsafe" not in policy


def test_the_files_need_nothing_from_elsewhere_and_take_no_html() -> None:
    for name in FILES.values():
        text = (STATIC / name).read_text()
        # The one address is the name of SVG's own namespace.
        addresses = set(re.findall(r"https?://[^\s\"'`)]+", text))
        assert addresses <= {"http://www.w3.org/2000/svg"}, name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", text), name
        assert not re.search(r"\sstyle=|\son[a-z]+=", text), f"{name}: the policy would drop it"


def test_each_file_that_another_one_names_is_there() -> None:
    named = set()
    for name in FILES.values():
        text = (STATIC / name).read_text()
        named |= set(re.findall(r'from "\./([\w.]+)"', text))
        named |= set(re.findall(r'(?:href|src)="page/([\w.]+)"', text))
    assert named == set(FILES.values()) - {"index.html"}


# -- who gets them ----------------------------------------------------------------------------------------


async def test_with_a_token_the_files_are_open_and_what_happens_is_not() -> None:
    async with admin(admin_token=TOKEN) as (_, http):
        for path in OPEN:
            assert (await http.get(path)).status_code in (200, 307)
        assert TOKEN not in (await http.get("/page")).text
        for headers in ({}, {"authorization": "Bearer wrong"}):
            assert error_of(await http.get(EVENTS, headers=headers))["status"] == 401
        assert error_of(await http.get(f"{EVENTS}?token={TOKEN}"))["status"] == 401, "never in an address"
        for host in ("h/page?", "h/page#", "h/page;", "h\\/page?"):
            # What a client calls the host is no part of the path that is asked for.
            for path in (EVENTS, "/admin/nodes"):
                assert (await http.get(path, headers={"host": host})).status_code in (400, 401)
        async with http.stream("GET", EVENTS, headers={"authorization": f"Bearer {TOKEN}"}) as answer:
            assert answer.status_code == 200


async def test_without_a_token_the_page_may_fetch_from_its_own_origin_alone() -> None:
    async with admin() as (_, http):
        host = f"{http.base_url.host}:{http.base_url.port}"
        assert (await http.get("/page/main.js", headers={"origin": f"http://{host}"})).status_code == 200
        for headers in (
            {"origin": "http://evil.example"},
            {"origin": f"http://{http.base_url.host}:1"},
            {"origin": "http://evil.example", "host": "evil.example"},
            {"host": "evil.example"},
        ):
            for path in ("/page", "/page/main.js", EVENTS):
                assert error_of(await http.get(path, headers=headers))["status"] == 403


async def test_it_is_not_on_the_clients_port() -> None:
    async with watched() as (pool, _):
        for path in ("/page", EVENTS, "/page/main.js"):
            assert (await pool.http.get(path)).status_code == 404


# -- what happens -----------------------------------------------------------------------------------------


async def test_turns_come_as_they_end_with_what_came_back() -> None:
    async with watched() as (pool, http), watching(http) as frames:
        first = await frames.next()
        assert first["state"]["sums"]["turns"] == 0
        assert first["state"]["status"] == "ready"
        assert {node["role"] for node in first["state"]["nodes"]} == {"prefill", "decode"}

        body = {**opening(CANARY), "user": CANARY}
        answer = await pool.turn(body, **{"x-session-id": CANARY})
        await pool.turn(continued(body, answer), plan="pull", **{"x-session-id": CANARY})
        await frames.until_turns(2)
        cold, pull = frames.turns
        assert [cold["number"], pull["number"]] == [1, 2]
        assert (cold["plan"], pull["plan"]) == ("cold", "pull")
        assert cold["line"] == pull["line"] != ""
        assert pull["moved_tokens"] == pull["reused_tokens"] > 0, "P has no cache of its own"
        assert pull["prompt_tokens"] > pull["moved_tokens"]
        assert (pull["prefill"], pull["decode"]) == tuple(
            node.key for node in pool.router.context.fleet.snapshot.nodes
        )

        while frames.state["sums"]["turns"] < 2:
            await frames.next()
        sums = frames.state["sums"]
        assert sums["reused_tokens"] == sums["moved_tokens"] == pull["moved_tokens"]
        assert sums["prompt_tokens"] == cold["prompt_tokens"] + pull["prompt_tokens"]
        assert CANARY not in frames.raw, "neither content nor the client's own name for it"


async def test_who_comes_later_is_told_of_what_was() -> None:
    async with watched() as (pool, http):
        await pool.turn(opening("one"))
        async with watching(http) as frames:
            await frames.until_turns(1)
        assert frames.turns[0]["plan"] == "cold"


async def test_an_open_turn_is_shown_until_it_ends() -> None:
    async with watched() as (pool, http), watching(http) as frames:
        await frames.next()
        fault(pool.d, path=CHAT, delay_s=1.5)  # several looks long, also where they come late
        turn = asyncio.create_task(pool.turn(opening("slow"), plan="cold"))
        while not (frames.state["running"] and frames.state["running"][0]["phase"] == "first_token"):
            await frames.next()
        (running,) = frames.state["running"]
        await turn
        await frames.until_turns(1)
        while frames.state["running"]:
            await frames.next()
        assert running["turn"] == frames.turns[0]["turn"]
        assert running["line"] == frames.turns[0]["line"]
        assert running["prompt_tokens"] > 0
        assert pool.router.context.running == {}


async def test_two_conversations_have_two_names_and_two_processes_two_more() -> None:
    async with watched() as (pool, http), watching(http) as frames:
        await pool.turn(opening("one"))
        await pool.turn(opening("two"))
        await pool.turn(opening("one"), authorization="Bearer sk-another")
        await frames.until_turns(3)
        assert len({turn["line"] for turn in frames.turns}) == 3, "tenants share no name either"


async def test_a_dead_node_is_warned_of() -> None:
    async with watched(decode=[NO_CACHE_P, NO_CACHE_P]) as (pool, http), watching(http) as frames:
        fleet = pool.router.context.fleet
        dying = fleet.snapshot.nodes[1].key
        assert (await frames.next())["state"]["nodes"][1]["state"] == "ready"
        pool.d.engine.dead = True
        for _ in range(3):
            await fleet.refresh(pool.router.context.upstream)
        while frames.state["nodes"][1]["state"] == "ready":
            await frames.next()
        errors = [one["text"] for one in frames.state["warnings"] if one["level"] == "error"]
        assert any(text.startswith(f"{dying} is down") for text in errors)


# -- bounds -----------------------------------------------------------------------------------------------


async def test_watchers_are_bounded_and_counted_out() -> None:
    async with admin() as (_, http):
        streams = [http.stream("GET", EVENTS) for _ in range(MAX_WATCHERS)]
        for stream in streams:
            assert (await stream.__aenter__()).status_code == 200
        one_more = await http.get(EVENTS)
        assert error_of(one_more)["status"] == 503
        await streams.pop().__aexit__(None, None, None)
        async with asyncio.timeout(PATIENCE_S):
            while True:
                async with http.stream("GET", EVENTS) as answer:
                    if answer.status_code == 200:
                        break
                await asyncio.sleep(0.01)
        for stream in streams:
            await stream.__aexit__(None, None, None)


async def test_who_asks_for_the_headers_alone_is_no_watcher() -> None:
    async with admin() as (_, http), asyncio.timeout(PATIENCE_S):
        for _ in range(MAX_WATCHERS + 1):
            answer = await http.head(EVENTS)
            assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store")


class Scripted:
    """A view of a few frames."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def frame(self, after: int, known_state: bytes) -> tuple[bytes, int, bytes]:
        self.asked.append(after)
        return b"{}", after + 1, b"s"


async def never() -> Any:
    await asyncio.Event().wait()


async def test_a_watcher_that_does_not_read_is_let_go_and_nothing_piles_up() -> None:
    view = Scripted()
    routes = PageRoutes(view, tick_s=0.0, stalled_s=0.05)
    sent = []

    async def send(message: Any) -> None:
        sent.append(message)
        if len(sent) == 3:
            await never()

    await asyncio.wait_for(routes.stream(never, send), PATIENCE_S)
    assert len(sent) == 3
    assert view.asked == [0, 1, 2], "each frame is made when the one before it was read"
    assert routes.watchers == 0


async def test_nothing_is_sent_while_nothing_happens_but_a_sign_of_life(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Quiet:
        def frame(self, after: int, known_state: bytes) -> tuple[bytes, int, bytes]:
            return b"" if known_state else b"{}", after, b"s"

    monkeypatch.setattr(page, "COMMENT_EVERY_S", 0.05)
    routes, sent = PageRoutes(Quiet(), tick_s=0.001), []

    async def send(message: Any) -> None:
        sent.append(message["body"])
        if len(sent) == 3:
            routes.close()

    await asyncio.wait_for(routes.stream(never, send), PATIENCE_S)
    assert sent == [b"data: {}\n\n", b":\n\n", b":\n\n", b""]


async def test_the_router_stops_while_someone_watches() -> None:
    async with admin() as (router, http):
        stream = http.stream("GET", EVENTS)
        answer = await stream.__aenter__()
        lines = answer.aiter_lines()
        assert (await anext(lines)).startswith("data: ")
    # Both the router and its listeners are closed by now, and no task was left behind.
    await until(lambda: router.admin_listener is not None and router.admin_listener.fileno() < 0)
    await stream.__aexit__(None, None, None)
