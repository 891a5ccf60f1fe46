"""The demo's pool: two simulated engines and two routers, each a process of its own, as in a deployment."""

import contextlib
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
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

    prefill: str
    decode: str
    router_off: str
    router_on: str


def free_port() -> int:
    """A loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def port_or_free(wanted: int) -> int:
    """``wanted`` where it is free, else another one."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError:
            return free_port()
    return wanted


@contextlib.contextmanager
def pool(*, port: int, plugin: bool) -> Iterator[Pool]:
    """Start 1P1D and two routers, one that reuses and one that does not; stop them at the end.

    P runs without a prefix cache, as in the published measurements: what is reused came back from D.
    """
    prefill, decode, off = free_port(), free_port(), free_port()
    on = port_or_free(port)
    engine = ["sim", "--profile", "qwen3-32b", "--version", "0.33.0", *(["--plugin"] if plugin else [])]
    nodes = ["--prefill", f"http://127.0.0.1:{prefill}", "--decode", f"http://127.0.0.1:{decode}"]
    router = ["serve", *nodes, "--log-level", "warning"]
    commands = {
        "prefill engine": (
            [*engine, "--role=prefill", "--port", str(prefill), "--no-prefix-cache"],
            prefill,
            "/health",
        ),
        "decode engine": ([*engine, "--role=decode", "--port", str(decode)], decode, "/health"),
        "router, transfer off": ([*router, "--port", str(off), "--verify", "off"], off, "/ready"),
        "router": ([*router, "--port", str(on)], on, "/ready"),
    }
    with tempfile.TemporaryDirectory(prefix="boomerang-demo-") as folder, contextlib.ExitStack() as started:
        running = []
        for name, (arguments, at, path) in commands.items():
            log = Path(folder) / f"{at}.log"
            running.append(
                (name, started.enter_context(process([*BOOMERANG, *arguments], log)), log, at, path)
            )
        for name, one, log, at, path in running:
            wait_ready(name, one, log, f"http://127.0.0.1:{at}{path}")
        origin = "http://127.0.0.1:{}".format
        yield Pool(origin(prefill), origin(decode), origin(off), origin(on))


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
