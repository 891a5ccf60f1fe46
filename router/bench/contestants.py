"""Who is measured: routers, each in front of the same engines, and no router at all."""

import argparse
import contextlib
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from router.demo.processes import NotStarted, free_port, process, wait_ready

DIRECT: Final = "direct"
"""No router: one leg, straight to the decode node."""
OWN: Final = "boomerang"
ROUTER_VERIFIED: Final = "boomerang, router-verified"
SHARED: Final = "boomerang, shared ledger"
WORKERS: Final = "workers"
PLAIN: Final = "plain httpx proxy"
RUST: Final = "vllm-router"
SHORT: Final = {
    "direct": DIRECT,
    "own": OWN,
    "router-verified": ROUTER_VERIFIED,
    "shared": SHARED,
    "workers": WORKERS,
    "plain": PLAIN,
    "vllm-router": RUST,
}
"""What ``--only`` takes."""


@dataclass(frozen=True, slots=True)
class Contestant:
    """What stands between client and engines. ``pid`` is None where nothing does."""

    name: str
    origin: str
    pid: int | None


@dataclass(frozen=True, slots=True)
class _Stage:
    """Where processes are started, each ended with the stack."""

    stack: contextlib.ExitStack
    folder: Path
    found: list[Contestant] = field(default_factory=list)

    def start(self, name: str, command: Sequence[str], url: str | None) -> int:
        """The id of a process that answers ``url``, if it has one. Raises NotStarted."""
        log = self.folder / f"{name.replace(' ', '-')}.log"
        started = self.stack.enter_context(process(command, log))
        if url is not None:
            wait_ready(name, started, log, url)
        return started.pid

    def engines(self, args: argparse.Namespace, *, kind: str) -> list[str]:
        """Options that name a prefill and a decode node of their own."""
        options: list[str] = []
        for role in ("prefill", "decode"):
            port = free_port()
            command = [
                *(sys.executable, "-m", "router.bench.engine", "--port", str(port), "--kind", kind),
                *("--events", str(args.events), "--every-s", str(args.every_ms / 1e3)),
            ]
            self.start(f"{kind} engine {role}", command, f"http://127.0.0.1:{port}/health")
            options += [f"--{role}", f"http://127.0.0.1:{port}"]
        return options

    def own(self, name: str, nodes: Sequence[str], *options: str) -> None:
        port = free_port()
        command = [
            *(sys.executable, "-m", "router", "serve", *nodes, "--port", str(port)),
            *("--log-level", "warning"),
            *("--stay-max-tokens", "0"),  # both legs in every turn, as the others
            *options,
        ]
        self.add(name, port, command, "/ready")

    def add(self, name: str, port: int, command: Sequence[str], path: str) -> None:
        origin = f"http://127.0.0.1:{port}"
        self.found.append(Contestant(name, origin, self.start(name, command, origin + path)))


@contextlib.contextmanager
def contestants(args: argparse.Namespace, folder: Path) -> Iterator[list[Contestant]]:
    """All that ``args`` ask for, each with its own processes. Raises NotStarted."""
    only = {SHORT[short] for short in args.only} if args.only else None
    with contextlib.ExitStack() as stack:
        stage = _Stage(stack, folder)
        nodes = stage.engines(args, kind="plugin")
        stage.found.append(Contestant(DIRECT, nodes[-1], None))
        stage.own(OWN, nodes)
        if args.router_verified or (only and ROUTER_VERIFIED in only):
            stage.own(ROUTER_VERIFIED, stage.engines(args, kind="stock"), "--verify", "router")
        if args.workers > 1:
            store = args.store or _redis(stage)
            stage.own(SHARED, nodes, "--store", store)
            workers = str(args.workers)
            stage.own(f"boomerang, {workers} {WORKERS}", nodes, "--store", store, "--workers", workers)
        port = str(free_port())
        stage.add(
            PLAIN, int(port), [sys.executable, "-m", "router.bench.plain", *nodes, "--port", port], "/health"
        )
        if args.vllm_router is not None:
            port = str(free_port())
            command = [
                *(str(args.vllm_router), "--vllm-pd-disaggregation", *nodes),
                *("--host", "127.0.0.1", "--port", port, "--log-level", "warning"),
                *("--prometheus-port", str(free_port())),
            ]
            stage.add(RUST, int(port), command, "/health")
        yield [one for one in stage.found if only is None or _kind(one.name) in only]


def _kind(name: str) -> str:
    """A contestant's name, without how many workers it has."""
    return WORKERS if name.endswith(WORKERS) else name


def _redis(stage: _Stage) -> str:
    """A Redis of our own that keeps nothing on disk; its URL. Raises NotStarted."""
    command = shutil.which("redis-server")
    if command is None:
        raise NotStarted("there is no redis-server here: name a shared ledger with --store")
    port = str(free_port())
    stage.start("redis", [command, "--port", port, "--save", "", "--bind", "127.0.0.1"], None)
    return f"redis://127.0.0.1:{port}"
