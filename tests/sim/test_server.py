import argparse
import asyncio
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from router.sim.config import EngineConfig
from router.sim.profiles import PROFILES
from router.sim.server import SimServer, add_arguments, configured
from tests.sim.pool import CHAT, COLD, Pool, system, user


async def soon(condition: Callable[[], bool]) -> None:
    """Wait until something is so, at most ten seconds."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


async def add(http: httpx.AsyncClient, **fault: Any) -> None:
    (await http.post("/sim/faults", json=[fault])).raise_for_status()


async def test_two_servers_hand_kv_over_through_their_ports() -> None:
    config = EngineConfig(role="prefill", prefix_cache=False)
    async with SimServer(config) as p, SimServer() as d, httpx.AsyncClient() as http:

        async def ask(server: SimServer, body: dict[str, Any]) -> dict[str, Any]:
            answer = await http.post(server.origin + CHAT, json=body)
            assert answer.status_code == 200, answer.text
            found: dict[str, Any] = answer.json()
            return found

        messages, handle = [system(), user()], None
        for _ in range(3):
            held = handle["remote_num_tokens"] if handle else 0
            body = {"messages": messages, "max_tokens": 1, "kv_transfer_params": handle or COLD}
            params = (await ask(p, body))["kv_transfer_params"]
            assert params["remote_port"] == p.port
            assert params["remote_prefill_cached_tokens"] == held
            answer = await ask(d, {"messages": messages, "kv_transfer_params": params})
            handle = answer["kv_transfer_params"]
            said = answer["choices"][0]["message"]["content"]
            messages = [*messages, {"role": "assistant", "content": said}, user()]
        await soon(lambda: not p.engine.pins.by_request)
        await soon(lambda: len(d.engine.pins.by_request) == 1)
        d.engine.restart()
        body = {"messages": messages, "max_tokens": 1, "kv_transfer_params": handle}
        assert (await http.post(p.origin + CHAT, json=body)).status_code == 500
    assert p.engine.corruptions == d.engine.corruptions == []


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_client_that_leaves_aborts_its_request(streamed: bool) -> None:
    async with SimServer(EngineConfig()) as server:
        engine = server.engine
        async with httpx.AsyncClient(base_url=server.origin) as http:
            if streamed:
                await add(http, delay_chunk_s=0.02)
                body = {"messages": [user()], "stream": True}
                async with http.stream("POST", CHAT, json=body) as answer:
                    async for _ in answer.aiter_bytes():
                        break
            else:
                await add(http, hang=True)
                with pytest.raises(httpx.ReadTimeout):
                    await http.post(CHAT, json={"messages": [user()]}, timeout=0.2)
            await soon(lambda: not any(engine.open_requests.values()))
            assert [record.path for record in engine.aborts] == ([CHAT] if streamed else [])
            assert engine.pool.usage == 0
            state = (await http.get("/sim/state")).json()
            assert state["open_requests"] == {}
            assert len(state["aborts"]) == len(engine.aborts)


async def raw_answer(server: SimServer, body: dict[str, Any]) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    data = json.dumps(body).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    writer.write(f"{head}content-length: {len(data)}\r\nconnection: close\r\n\r\n".encode() + data)
    try:
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def test_scripted_cuts_break_the_connection() -> None:
    async with SimServer() as server, httpx.AsyncClient(base_url=server.origin) as http:
        await add(http, cut_after_chunks=2, cut_mid_event=True)
        raw = await raw_answer(server, {"messages": [user()], "stream": True})
        assert raw.count(b"data: {") == 3
        assert b"[DONE]" not in raw
        assert not raw.endswith(b"0\r\n\r\n"), "it does not look complete"
        await add(http, cut_after_chunks=0)
        assert await raw_answer(server, {"messages": [user()]}) == b""
        await add(http, restart=True)
        before = server.engine.engine_id
        assert await raw_answer(server, {"messages": [user()]}) == b""
        assert server.engine.engine_id != before
        assert (await http.post(CHAT, json={"messages": [user()]})).status_code == 200


async def test_a_restart_breaks_what_is_open() -> None:
    async with SimServer() as server, httpx.AsyncClient(base_url=server.origin) as http:
        await add(http, delay_s=60.0)
        hanging = asyncio.ensure_future(http.post(CHAT, json={"messages": [user()]}))
        await soon(lambda: any(server.engine.open_requests.values()))
        assert (await http.post("/sim/restart")).json() == {"ok": True}
        with pytest.raises(httpx.RemoteProtocolError):
            await hanging


async def test_requests_are_there_to_look_at() -> None:
    async with SimServer() as server, httpx.AsyncClient(base_url=server.origin) as http:
        await http.post(CHAT, json={"messages": [user()]}, headers={"x-request-id": "mine"})
        (seen,) = (await http.get("/sim/requests")).json()
        assert (seen["path"], seen["headers"]["x-request-id"]) == (CHAT, "mine")
        assert seen["body"] == {"messages": [user()]}
        await http.post("/sim/reset")
        assert (await http.get("/sim/requests")).json() == []
        assert (await http.get("/sim/nope")).status_code == 404
        assert (await http.post("/sim/faults", json=[{"no_such_fault": 1}])).status_code == 400


async def test_pins_can_be_expired_from_outside() -> None:
    async with SimServer() as server, httpx.AsyncClient(base_url=server.origin) as http:
        await http.post(CHAT, json={"messages": [user()], "kv_transfer_params": COLD})
        (pin,) = (await http.get("/sim/state")).json()["pins"].values()
        assert (pin["side"], pin["reads"]) == ("prefill", 0)
        await http.post("/sim/expire")
        assert (await http.get("/sim/state")).json()["pins"] == {}


async def test_metrics_are_what_a_router_reads() -> None:
    config = EngineConfig(block_size=32, num_blocks=100)
    async with SimServer(config) as server, httpx.AsyncClient(base_url=server.origin) as http:
        await http.post(CHAT, json={"messages": [user("long " * 100)], "kv_transfer_params": COLD})
        text = (await http.get("/metrics")).text
    samples = {s.name: s for family in text_string_to_metric_families(text) for s in family.samples}
    info = samples["vllm:cache_config_info"].labels
    assert (info["block_size"], info["num_gpu_blocks"]) == ("32", "100")
    assert samples["vllm:kv_cache_usage_perc"].value > 0
    assert samples["vllm:num_requests_running"].value == 0
    assert samples["vllm:num_requests_waiting"].value == 0
    assert samples["vllm:nixl_num_kv_expired_reqs_total"].value == 0
    assert samples["process_start_time_seconds"].value > 1_600_000_000


def test_the_command_line_describes_an_engine() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    config = configured(
        parser.parse_args(["--role", "decode", "--port", "1", "--plugin", "--keep-reasoning"])
    )
    assert (config.role, config.plugin, config.template.strip_reasoning) == ("decode", True, False)
    assert config.profile.prefill_ms > 0


def test_single_times_of_the_profile_can_be_told() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    options = ["--time", "delivery_ms=0", "--time", "prefill_ms=95.5", "--time-scale", "2"]
    profile = configured(parser.parse_args(["--port", "1", *options])).profile
    usual = PROFILES["qwen3-32b"].scaled(2)
    assert profile == replace(usual, delivery_ms=0.0, prefill_ms=191.0)


@pytest.mark.parametrize("told", ["delivery_ms", "delivery_ms=-1", "prefill_ms=inf", "concurrency=3"])
def test_a_time_that_is_none_is_refused(told: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["--port", "1", "--time", told])
    assert "is not NAME=MS" in capsys.readouterr().err


async def test_a_process_of_its_own_gives_the_same_answer() -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "router", "sim", "--role", "decode", "--port", "0", "--profile", "instant"),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(30):
            line = (await process.stdout.readline()).decode()
        origin = line.split()[-1]
        async with httpx.AsyncClient() as http, SimServer() as own:
            body = {"messages": [system(), user()], "kv_transfer_params": COLD, "max_tokens": 1}
            first = (await http.post(own.origin + CHAT, json=body)).json()["kv_transfer_params"]
            body = {"messages": [system(), user()], "kv_transfer_params": first}
            there = (await http.post(origin + CHAT, json=body)).json()
            assert there["choices"][0]["message"] == (await Pool().direct([system(), user()]))
            assert there["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
            assert (await http.get(f"{origin}/sim/state")).json()["corruptions"] == []
    finally:
        process.terminate()
        await process.wait()
