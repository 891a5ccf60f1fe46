"""The demo's pool: two simulated engines and two routers, each a process of its own, as in a deployment."""

import contextlib
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

START_TIMEOUT_S = 60.0
BOOMERANG = (sys.executable, "-m", "router")
"""The command, as it runs in this very environment."""


class NotStarted(Exception):
    """A process of the demo ended early, or did not get ready. Its text holds the end of its log."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Where the demo's processes listen."""

    prefills: tuple[str, ...]
    decodes: tuple[str, ...]
    router_off: str
    router_on: str
    page: str
    """The live page of ``router_on``."""
    processes: Mapping[str, subprocess.Popen[bytes]]
    """By origin."""


def free_port() -> int:
    """A loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def port_or_free(wanted: int) -> int:
    """``wanted`` where it is free, else another one; 0 is any."""
    if wanted == 0:
        return free_port()
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError:
            return free_port()
    return wanted


@contextlib.contextmanager
def pool(*, port: int, plugin: bool, prefills: int = 1, decodes: int = 1) -> Iterator[Pool]:
    """Start a pool and two routers, one that reuses and one that does not; stop them at the end.

    P runs without a prefix cache, as in the published measurements: what is reused came back from D.
    """
    prefill_ports = [free_port() for _ in range(prefills)]
    decode_ports = [free_port() for _ in range(decodes)]
    off, on = free_port(), port_or_free(port)
    page = port_or_free(on + 1 if on < 65_535 else 0)
    engine = ["sim", "--profile", "qwen3-32b", "--version", "0.33.0", *(["--plugin"] if plugin else [])]
    origin = "http://127.0.0.1:{}".format
    nodes = [
        *(word for at in prefill_ports for word in ("--prefill", origin(at))),
        *(word for at in decode_ports for word in ("--decode", origin(at))),
    ]
    router = ["serve", *nodes, "--log-level", "warning"]
    prefill = [*engine, "--role=prefill", "--no-prefix-cache", "--port"]
    decode = [*engine, "--role=decode", "--port"]
    commands: list[tuple[str, list[str], int, str]] = [
        *(("prefill engine", [*prefill, str(at)], at, "/health") for at in prefill_ports),
        *(("decode engine", [*decode, str(at)], at, "/health") for at in decode_ports),
        ("router, transfer off", [*router, "--port", str(off), "--verify", "off"], off, "/ready"),
        ("router", [*router, "--port", str(on), "--admin-port", str(page)], on, "/ready"),
    ]
    with tempfile.TemporaryDirectory(prefix="boomerang-demo-") as folder, contextlib.ExitStack() as started:
        running, processes = [], dict[str, subprocess.Popen[bytes]]()
        for name, arguments, at, path in commands:
            log = Path(folder) / f"{at}.log"
            one = started.enter_context(process([*BOOMERANG, *arguments], log))
            running.append((name, one, log, at, path))
            processes[origin(at)] = one
        for name, one, log, at, path in running:
            wait_ready(name, one, log, f"{origin(at)}{path}")
        yield Pool(
            tuple(map(origin, prefill_ports)),
            tuple(map(origin, decode_ports)),
            origin(off),
            origin(on),
            f"{origin(page)}/page",
            processes,
        )


@contextlib.contextmanager
def process(command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run ``command``, its output in ``log``; stopped at the end."""
    with log.open("ab") as output:
        started = subprocess.Popen(  # noqa: S603 - our own commands, with arguments made here
            command, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        yield started
    finally:
        started.terminate()
        try:
            started.wait(timeout=5)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()


def wait_ready(name: str, started: subprocess.Popen[bytes], log: Path, url: str) -> None:
    """Until ``url`` answers 200. Raises NotStarted."""
    end_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < end_s:
        if started.poll() is not None:
            break
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(url, timeout=2.0).status_code == 200:
                return
        time.sleep(0.05)
    tail = log.read_text(errors="replace")[-2000:].strip()
    raise NotStarted(f"the {name} did not start:\n{tail}")
