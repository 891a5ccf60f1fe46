"""``boomerang top``: a router's state and turns in a terminal."""

import asyncio
import contextlib
import os
import pty
import re
import select
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from router.cli import main
from router.http.admin import admin_application
from router.http.listener import listen, serve_on
from router.http.page import OPEN, PageRoutes
from router.page.schemas import NodeSeen, StateSeen, SumsSeen, TurnSeen, Warned
from router.top.screen import PLAIN, Screen
from tests.e2e.http_pool import HttpPool, http_pool, opening, second_turn, until

TOKEN = "admin-token"


@contextlib.asynccontextmanager
async def page_of(pool: HttpPool, token: str | None = None) -> AsyncIterator[str]:
    """The page's events of a router, and their origin."""
    pool.router.context.facts.subscribe(pool.router.live)
    page = PageRoutes(pool.router.view())
    listener = listen("127.0.0.1", 0)
    app = admin_application(page.routes(), lambda: token, OPEN)
    running = asyncio.create_task(serve_on(listener, app, page.close))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        await until(lambda: not page.watchers, "all watchers to have left")
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


async def once(*args: str) -> int:
    return await asyncio.to_thread(main, ["top", "--once", *args])


async def test_turns_and_nodes_of_a_running_router(capsys: pytest.CaptureFixture[str]) -> None:
    async with http_pool() as pool, page_of(pool) as url:
        await pool.turn(await second_turn(pool))
        await pool.idle()
        assert await once("--url", url) == 0
    seen = capsys.readouterr().out
    assert "2 ended, 0 failed" in seen
    assert seen.count("ready") >= 2
    assert "cold first_turn" in seen
    assert re.search("(pull|local) extension", seen)


async def test_a_wrong_token_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    right.write_text(TOKEN)
    wrong.write_text("guess")
    async with http_pool() as pool, page_of(pool, TOKEN) as url:
        assert await once("--url", url, "--token-file", str(wrong)) == 1
        assert "the router answered 401: the admin API wants its token" in capsys.readouterr().err
        assert await once("--url", url, "--token-file", str(right)) == 0


async def test_a_router_that_is_not_there_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert await once("--url", "http://127.0.0.1:9") == 1
    assert "does not answer" in capsys.readouterr().err
    assert await once() == 2
    assert "--url is required" in capsys.readouterr().err


def read_until(terminal: int, wanted: bytes, limit_s: float = 30.0) -> bytes:
    got, until = b"", time.monotonic() + limit_s
    while wanted not in got and time.monotonic() < until:
        if select.select([terminal], [], [], 0.2)[0]:
            try:
                got += os.read(terminal, 65_536)
            except OSError:  # its other end is closed
                break
    assert wanted in got, got[-400:]
    return got


async def interrupted(process: asyncio.subprocess.Process) -> None:
    """Ctrl-C, again where nothing came of it: Python drops one that falls into a destructor."""
    for _ in range(10):
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), 3)
            return


async def test_a_terminal_shows_what_happens_and_is_left_as_it_was() -> None:
    async with http_pool() as pool, page_of(pool) as url:
        ours, theirs = pty.openpty()
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "router", "top", "--url", url, stdin=theirs, stdout=theirs, stderr=theirs
        )
        os.close(theirs)
        try:
            await asyncio.to_thread(read_until, ours, b"0 ended")
            await pool.turn(opening())
            await asyncio.to_thread(read_until, ours, b"1 ended")
            await interrupted(process)
            assert process.returncode == 0
            await asyncio.to_thread(read_until, ours, b"\x1b[?1049l")
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            os.close(ours)


def state() -> StateSeen:
    node = NodeSeen(
        node="p:h:1",
        role="prefill",
        state="ejected",
        reason="\x1b[31mrefused",
        circuit="open",
        is_reachable=False,
        in_flight=0,
        running=None,
        waiting=None,
        kv_usage=None,
        queue_s=None,
        pinned_tokens=None,
        pinned_handles=None,
        pinned_share=None,
        version=None,
    )
    return StateSeen(
        version="1",
        verify="auto",
        status="ready",
        is_shared=False,
        started_ms=0,
        pin_budget=0.5,
        open_turns=0,
        waiting_turns=0,
        sums=SumsSeen(2, 0, 0, 1_000, 500, 500, 10),
        first_bytes=None,
        nodes=[node],
        more_nodes=3,
        running=[],
        warnings=[Warned("error", "a node\x07 is down")],
    )


def turn(number: int) -> TurnSeen:
    return TurnSeen(number, "t", "c0ffee00", "pull", "extension", "p:h:1", "d:h:2", 200, "engine", True,
                    100, 75, 50, 5, 0.1, 0.4, 1.0, 0)  # fmt: skip


def test_what_engines_tell_cannot_steer_the_terminal() -> None:
    screen = Screen(PLAIN)
    screen.take(0, [turn(1)], state())
    picture = "\n".join(screen.lines(200, 50))
    assert picture.replace("\n", "").isprintable()
    assert "?[31mrefused" in picture
    assert "and 3 more nodes" in picture


@pytest.mark.parametrize(("width", "height"), [(200, 50), (80, 24), (20, 4), (1, 1)])
def test_a_picture_fits_its_terminal(width: int, height: int) -> None:
    screen = Screen(PLAIN)
    screen.take(0, [turn(number) for number in range(300)], state())
    lines = screen.lines(width, height)
    assert len(lines) <= height
    assert all(len(line) <= width for line in lines)


def test_a_bar_tells_moved_held_and_computed() -> None:
    screen = Screen(PLAIN)
    screen.take(0, [turn(1)], state())
    assert any("#" * 10 + "=" * 5 + "." * 5 + "  75%" in line for line in screen.lines(200, 50))
    assert "500 of 1k" in "\n".join(screen.lines(200, 50))
