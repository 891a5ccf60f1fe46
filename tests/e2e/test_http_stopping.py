"""How a router in a process of its own starts and stops: signals, open streams, wrong settings."""

import asyncio
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from router.sim.config import EngineConfig
from router.sim.profiles import Profile
from tests.e2e.http_pool import (
    CHAT,
    PATIENCE_S,
    direct_client,
    error_of,
    events,
    opening,
    router_process,
    sim_servers,
    until,
)

SLOW = EngineConfig(version="0.33.0", profile=Profile(output_ms_per_token=20.0))
LONG: dict[str, Any] = {"min_tokens": 2_000, "max_tokens": 2_000}


async def begun(response: httpx.Response) -> AsyncIterator[bytes]:
    """The rest of a stream that has given its first bytes; whoever lets go of it leaves."""
    pieces = response.aiter_raw()
    await anext(pieces)
    return pieces


async def test_a_stop_lets_streams_finish_and_takes_nothing_new() -> None:
    async with (
        sim_servers([SLOW, SLOW]) as (p, d),
        router_process([p.origin], [d.origin]) as (process, origin),
        direct_client(origin) as http,
    ):
        body = opening(stream=True, min_tokens=40, max_tokens=40)
        async with http.stream("POST", CHAT, json=body) as response:
            pieces = await begun(response)
            process.send_signal(signal.SIGTERM)
            raw = b"".join([piece async for piece in pieces])
            assert events(b"data: 1\n\n" + raw.partition(b"\n\n")[2])[-1] == "[DONE]"
            assert b'"error"' not in raw
        assert await asyncio.wait_for(process.wait(), PATIENCE_S) == 0, "a stop that went well is no failure"
        assert not d.engine.aborts
        with pytest.raises(httpx.TransportError):
            await http.get("/ready")


async def test_a_stop_is_told_on_open_connections_at_once() -> None:
    async with (
        sim_servers([SLOW, SLOW]) as (p, d),
        router_process([p.origin], [d.origin]) as (process, origin),
        direct_client(origin) as http,
        http.stream("POST", CHAT, json=opening(stream=True, **LONG)) as response,
    ):
        pieces = await begun(response)
        process.send_signal(signal.SIGTERM)
        for _ in range(500):
            try:
                answer = await http.get("/ready")
            except httpx.TransportError:
                break  # nobody listens any more: as clear
            if answer.status_code == 503:
                assert answer.json()["status"] == "draining"
                break
            await asyncio.sleep(0.01)
        else:
            raise AssertionError("still ready")
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), PATIENCE_S) == -signal.SIGTERM, (
            "a second signal ends it"
        )
        await until(lambda: bool(d.engine.aborts), "the engine's abort")
        with pytest.raises(httpx.RemoteProtocolError):
            await anext(piece async for piece in pieces if b"[DONE]" in piece)


async def test_a_stream_that_does_not_end_in_time_ends_in_an_error_event() -> None:
    async with (
        sim_servers([SLOW, SLOW]) as (p, d),
        router_process([p.origin], [d.origin], "--drain-s", "1") as (process, origin),
        direct_client(origin) as http,
    ):
        whole = asyncio.create_task(http.post(CHAT, json=opening(**LONG)))
        async with http.stream("POST", CHAT, json=opening(stream=True, **LONG)) as response:
            pieces = await begun(response)
            await until(lambda: len(d.engine.running) == 2, "both")
            process.send_signal(signal.SIGTERM)
            raw = b"".join([piece async for piece in pieces])
        *_, error, done = events(b"data: 1\n\n" + raw.partition(b"\n\n")[2])
        assert "stopping" in error["error"]["message"]
        assert done == "[DONE]"
        assert error_of(await whole)["status"] == 503
        assert await asyncio.wait_for(process.wait(), PATIENCE_S) == 0
        await until(lambda: len(d.engine.aborts) == 2, "the aborts")


async def run(*argv: str) -> tuple[int | None, str]:
    """``boomerang`` with these arguments: its exit status, and what it says on standard error."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "router", *argv),
        stderr=asyncio.subprocess.PIPE,
        env={},
        cwd=Path(__file__).parent.parent.parent,
    )
    _, told = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    return process.returncode, told.decode()


async def test_wrong_settings_are_one_line_that_names_them() -> None:
    pools = ("--prefill", "http://127.0.0.1:1", "--decode", "http://127.0.0.1:2")
    for flags, named in (
        ((), "--prefill"),
        ((*pools, "--verify", "maybe"), "--verify"),
        ((*pools, "--pull-timeout-s", "0"), "--pull-timeout-s"),
        ((*pools, "--store", "disk"), "--store"),
    ):
        status, told = await run("serve", *flags)
        assert status == 2, told
        assert named in told
        assert told.count("\n") == 1, told
        assert "Traceback" not in told


@pytest.mark.parametrize("flag", ["--port", "--admin-port"])
async def test_a_port_that_is_taken_is_told_and_fails(flag: str) -> None:
    pools = ("--prefill", "http://127.0.0.1:1", "--decode", "http://127.0.0.1:2")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        status, told = await run("serve", *pools, "--port", "0", flag, port)
    assert status not in (0, None)
    assert "address already in use" in told.lower()
    assert "Traceback" not in told
