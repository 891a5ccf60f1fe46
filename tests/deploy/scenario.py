"""A router over simulated engines, and all that its metrics tell of: most of it several times."""

import asyncio
import contextlib
import json
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from router.demo.processes import BOOMERANG, free_port, process, wait_ready
from tests.ledger.servers import Server

ROUNDS: Final = 3
ROUND_EVERY_S: Final = 3.0
"""Longer than between two scrapes, so that each round is seen as an increase over the one before."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Where its parts listen. The store and the spare decode node are there to be taken away."""

    router: str
    prefill: str
    decode: str
    store: Server
    spare: subprocess.Popen[bytes]


@contextlib.contextmanager
def pool(folder: Path) -> Iterator[Pool]:
    """One prefill node, two decode nodes, one router with a shared store; processes of their own."""
    broken = folder / "nodes.yaml"
    broken.write_text("prefill: [")
    store = Server(folder / "redis")
    store.start()
    p, d, spare, router = (free_port() for _ in range(4))
    # Fast engines, yet slow enough for reading KV to be worth it.
    engine = [
        *(*BOOMERANG, "sim", "--profile=qwen3-32b", "--time-scale=0.3", "--version=0.33.0"),
        *("--reasoning", "--num-blocks=2048", "--no-prefix-cache"),
    ]
    decode = [f"--decode=http://127.0.0.1:{port}" for port in (d, spare)]
    serve = [
        *(*BOOMERANG, "serve", f"--port={router}", f"--prefill=http://127.0.0.1:{p}", *decode),
        *(f"--store={store.url}", f"--nodes-file={broken}", "--max-turns=3", "--stay-max-tokens=0"),
        *("--probe-interval-s=0.3", "--probe-timeout-s=1", "--breaker-failures=50", "--log-level=error"),
    ]
    commands = {
        p: ([*engine, "--role=prefill", f"--port={p}"], "/health"),
        d: ([*engine, "--role=decode", f"--port={d}"], "/health"),
        spare: ([*engine, "--role=decode", f"--port={spare}"], "/health"),
        router: (serve, "/ready"),
    }
    with ExitStack() as stack:
        stack.callback(store.kill)
        started = {}
        for port, (command, path) in commands.items():
            log = folder / f"{port}.log"
            started[port] = stack.enter_context(process(command, log))
            wait_ready(str(port), started[port], log, f"http://127.0.0.1:{port}{path}")
        origin = "http://127.0.0.1:{}".format
        yield Pool(origin(router), origin(p), origin(d), store, started[spare])


async def play(pool: Pool) -> None:
    """All rounds, and then the store goes."""
    async with httpx.AsyncClient(timeout=60) as client:
        for number in range(ROUNDS):
            await _round(pool, client, number)
            await asyncio.sleep(ROUND_EVERY_S)
        # A prefill leg that fails with a handle runs again, cold, and the pair rests for half a minute.
        messages = [_user("The last one. " * 60)]
        messages += [await _turn(pool, client, messages), _user("And then? " * 30)]
        await _fault(pool.prefill, client, {"with_handle": True, "status": 500})
        await _turn(pool, client, messages)
        await asyncio.sleep(ROUND_EVERY_S)
        pool.spare.kill()
        pool.store.kill()
        for number in range(4):
            await _turn(pool, client, [_user(f"Without a store, {number}.")])
        await asyncio.sleep(ROUND_EVERY_S)


async def _round(pool: Pool, client: httpx.AsyncClient, number: int) -> None:
    # A conversation that grows, and loses its reasoning on the way: read from D, and cut.
    messages = [_user(f"Round {number}. " + "Tell me of the sea. " * 60)]
    for _ in range(3):
        messages += [await _turn(pool, client, messages), _user("And then? " * 30)]
    # Its history edited, far back.
    await _turn(pool, client, [_user(f"Round {number}. " + "Of the hills. " * 60), *messages[1:]])
    # More turns at once than the router lets run: some wait.
    await _fault(pool.prefill, client, {"path": "/v1/chat", "delay_s": 0.3, "times": 6})
    crowd = [[_user(f"{number}, {one}: " + "Hello. " * 50)] for one in range(6)]
    await asyncio.gather(*(_turn(pool, client, asked) for asked in crowd))
    # An endpoint that is not split; nonsense; a client that leaves.
    await client.post(
        f"{pool.router}/v1/completions", json={"model": "sim-qwen3", "prompt": "So", "n": 2, "max_tokens": 4}
    )
    refused = await client.post(f"{pool.router}/v1/chat/completions", content=b"{nonsense")
    assert refused.status_code == 400
    await _fault(pool.prefill, client, {"path": "/v1/chat", "hang": True})
    with contextlib.suppress(httpx.TimeoutException):
        await client.post(f"{pool.router}/v1/chat/completions", json=_body([_user("Bye.")]), timeout=0.5)
    await client.request("DELETE", f"{pool.prefill}/sim/faults")


async def _turn(pool: Pool, client: httpx.AsyncClient, messages: list[dict[str, Any]]) -> dict[str, Any]:
    """A streamed turn; the assistant's message, without its reasoning, as most clients send it back."""
    said = ""
    async with client.stream(
        "POST", f"{pool.router}/v1/chat/completions", json={**_body(messages), "stream": True}
    ) as answer:
        assert answer.status_code == 200, await answer.aread()
        async for delta in _deltas(answer):
            said += delta.get("content") or ""
    return {"role": "assistant", "content": said}


async def _deltas(answer: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in answer.aiter_lines():
        data = line.removeprefix("data: ")
        if data not in (line, "[DONE]"):
            for choice in json.loads(data).get("choices", []):
                yield choice["delta"]


async def _fault(origin: str, client: httpx.AsyncClient, fault: dict[str, Any]) -> None:
    answer = await client.post(f"{origin}/sim/faults", json=[fault])
    assert answer.status_code == 200, answer.text


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _body(messages: list[dict[str, Any]]) -> dict[str, Any]:
    return {"model": "sim-qwen3", "messages": messages, "max_tokens": 64}
