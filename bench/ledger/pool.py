"""Routers and simulated engines, each a process of its own, and what the engines saw of them."""

import asyncio
import contextlib
import subprocess
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from router.demo.processes import BOOMERANG, free_port, process, wait_ready

ENGINE = ("sim", "--profile", "instant", "--version", "0.33.0", "--num-blocks", "262144", "--no-prefix-cache")
"""Without prefix caches: what is reused was brought back by a handle."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Origins of what runs, and the routers' processes and logs; ``admins``: their admin APIs."""

    prefill: str
    decodes: Sequence[str]
    routers: Sequence[str]
    processes: Sequence[subprocess.Popen[bytes]]
    logs: Sequence[Path]
    admins: Sequence[str] = ()


@contextlib.asynccontextmanager
async def pool(
    stores: Sequence[str],
    *,
    decodes: int = 2,
    options: Sequence[str] = (),
    own_options: Sequence[Sequence[str]] = (),
    administered: bool = False,
) -> AsyncIterator[Pool]:
    """One prefill node, ``decodes`` decode nodes, and a router for each of ``stores``; stopped at the end.

    ``options`` are those of all routers, ``own_options`` those of each besides.
    """
    with tempfile.TemporaryDirectory(prefix="boomerang-bench-") as folder, contextlib.ExitStack() as running:
        waiting: list[tuple[str, subprocess.Popen[bytes], Path, str]] = []

        def start(name: str, arguments: Sequence[str], path: str) -> str:
            port = free_port()
            log = Path(folder) / f"{name}.log"
            one = running.enter_context(process([*BOOMERANG, *arguments, "--port", str(port)], log))
            waiting.append((name, one, log, f"http://127.0.0.1:{port}{path}"))
            return f"http://127.0.0.1:{port}"

        prefill = start("prefill", [*ENGINE, "--role", "prefill"], "/health")
        ends = [start(f"decode-{at}", [*ENGINE, "--role", "decode"], "/health") for at in range(decodes)]
        nodes = ["--prefill", prefill, *(word for end in ends for word in ("--decode", end))]
        ports = [free_port() for _ in stores] if administered else []
        routers = [
            start(
                f"router-{at}",
                [
                    *("serve", *nodes, "--store", store, "--log-level", "warning", *options),
                    *(own_options[at] if own_options else ()),
                    *(("--admin-port", str(ports[at])) if administered else ()),
                ],
                "/ready",
            )
            for at, store in enumerate(stores)
        ]
        for one in waiting:
            await asyncio.to_thread(wait_ready, *one)
        of_routers = waiting[1 + decodes :]
        yield Pool(
            prefill,
            ends,
            routers,
            [one[1] for one in of_routers],
            [one[2] for one in of_routers],
            [f"http://127.0.0.1:{port}" for port in ports],
        )


async def corruptions(session: aiohttp.ClientSession, of: Pool) -> int:
    """How often an engine used KV that was not that of its prompt, or read a handle twice."""
    count = 0
    for origin in (of.prefill, *of.decodes):
        async with session.get(f"{origin}/sim/state") as answer:
            count += len((await answer.json())["corruptions"])
    return count


async def metric(session: aiohttp.ClientSession, router: str, name: str, label: str = "") -> float:
    """The sum of a router's metric over all its labels, or those with ``label``, as in ``role="decode"``."""
    async with session.get(f"{router}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    of_name = [line for line in lines if line.startswith((f"{name} ", f"{name}{{"))]
    return sum(float(line.rpartition(" ")[2]) for line in of_name if label in line)
