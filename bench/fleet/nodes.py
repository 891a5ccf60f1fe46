"""Simulated engines and a router, each a process of its own that can be killed and started again."""

import asyncio
import contextlib
import json
import signal
import subprocess
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp

from router.demo.processes import BOOMERANG, NotStarted, free_port

START_TIMEOUT_S = 90.0


@dataclass(slots=True)
class Program:
    """One ``boomerang`` process on a port that stays the same over restarts."""

    name: str
    arguments: Sequence[str]
    log: Path
    ready_path: str
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [*BOOMERANG, *self.arguments, "--port", str(self.port)]
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)

    async def ready(self, session: aiohttp.ClientSession) -> None:
        """Until it answers 200. Raises NotStarted."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + START_TIMEOUT_S
        while self.process is not None and self.process.poll() is None and loop.time() < end_s:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                async with session.get(self.origin + self.ready_path) as answer:
                    if answer.status == 200:
                        return
            await asyncio.sleep(0.1)
        tail = self.log.read_text(errors="replace")[-2000:].strip()
        raise NotStarted(f"{self.name} did not start:\n{tail}")

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal; after SIGKILL the process is gone when this returns."""
        if self.process is not None:
            self.process.send_signal(number)
            if number is signal.SIGKILL:
                self.process.wait()

    def stop(self) -> None:
        if self.process is None:
            return
        self.process.send_signal(signal.SIGCONT)  # a stopped one would not hear the next
        self.process.terminate()
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@dataclass(frozen=True, slots=True)
class Fleet:
    """A router in front of prefill and decode nodes."""

    router: Program
    prefill: Sequence[Program]
    decode: Sequence[Program]
    session: aiohttp.ClientSession
    admin_origin: str | None

    @property
    def nodes(self) -> tuple[Program, ...]:
        return (*self.prefill, *self.decode)

    async def corruptions(self, but: Sequence[Program] = ()) -> int:
        """How often engines that still run have used KV that was not their prompt's."""
        found = 0
        for node in self.nodes:
            if node in but:
                continue
            async with self.session.get(f"{node.origin}/sim/state") as answer:
                found += len((await answer.json())["corruptions"])
        return found

    def logged(self) -> list[dict[str, Any]]:
        """The router's own account, line by line."""
        lines = self.router.log.read_text(errors="replace").splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def turns_logged(self) -> list[dict[str, Any]]:
        """The router's own account of every turn that got a first byte."""
        return [found for found in self.logged() if "first_byte_s" in found]


@dataclass(frozen=True, slots=True)
class Shape:
    """How large a fleet is, and how slow its engines are beside the published ones."""

    prefill: int = 4
    decode: int = 4
    time_scale: float = 4.0
    num_blocks: int = 16_384
    engine_args: tuple[str, ...] = ()


@contextlib.asynccontextmanager
async def fleet(shape: Shape, folder: Path, router_args: Sequence[str]) -> AsyncIterator[Fleet]:
    """Start everything, wait until it is ready, and stop it at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    engine = ["sim", "--profile", "qwen3-32b", "--time-scale", str(shape.time_scale), "--plugin"]
    engine += ["--num-blocks", str(shape.num_blocks), "--tool-rate", "0.8", *shape.engine_args]

    def node(role: str, number: int) -> Program:
        name = f"{role}-{number}"
        return Program(name, [*engine, "--role", role], folder / f"{name}.log", "/health")

    prefill = [node("prefill", number) for number in range(shape.prefill)]
    decode = [node("decode", number) for number in range(shape.decode)]
    pools = [flag for one in prefill for flag in ("--prefill", one.origin)]
    pools += [flag for one in decode for flag in ("--decode", one.origin)]
    router = Program(
        "router", ["serve", *pools, "--log-format", "json", *router_args], folder / "router.log", "/ready"
    )
    admin = dict(pairwise(router_args)).get("--admin-port")
    programs = (*prefill, *decode, router)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session:
        try:
            for program in programs:
                program.start()
            for program in programs:
                await program.ready(session)
            yield Fleet(router, prefill, decode, session, f"http://127.0.0.1:{admin}" if admin else None)
        finally:
            for program in reversed(programs):
                program.stop()
