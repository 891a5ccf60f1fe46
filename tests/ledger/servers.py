"""Real Redis servers on loopback, for tests and measurements: single ones, and a cluster of three."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

START_TIMEOUT_S: Final = 30.0
CLUSTER_NODES: Final = 3
CRLF: Final = "\r\n"
MISSING: Final = (
    "there is no redis-server on PATH: install it (Debian, Ubuntu: apt-get install redis-server;"
    " macOS: brew install redis), or name one in BOOMERANG_REDIS_SERVER (valkey-server will do)"
)


def needed() -> None:
    """Skip a test where there is no server to be had; fail it where all tests have to run (``CI``)."""
    if binary() is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(MISSING)


def binary() -> str | None:
    """The server's program, where there is one."""
    named = os.environ.get("BOOMERANG_REDIS_SERVER")
    return named or shutil.which("redis-server") or shutil.which("valkey-server")


def free_port(*, below: int = 65_536) -> int:
    """A loopback port that was free a moment ago."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        if port < below:
            return port


@dataclass(slots=True)
class Server:
    """One server. ``start`` after ``kill`` begins empty, on the same port."""

    folder: Path
    options: Sequence[str] = ()
    port: int = 0
    config: Path | None = None
    """A file of a sentinel, which it also writes to."""
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Raises AssertionError where it does not get ready."""
        program = binary()
        assert program is not None, MISSING
        self.port = self.port or free_port()
        self.folder.mkdir(parents=True, exist_ok=True)
        command = [
            program,
            *([str(self.config)] if self.config else []),
            *("--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)),
            *("--logfile", str(self.folder / "log")),
            *(("--sentinel",) if self.config else ("--save", "", "--appendonly", "no")),
            *self.options,
        ]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end_s = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            log = self.folder / "log"
            tail = log.read_text(errors="replace")[-1000:] if log.exists() else ""
            assert self._process.poll() is None, f"redis-server ended at once: {tail}"
            assert time.monotonic() < end_s, f"redis-server does not answer: {tail}"
            time.sleep(0.02)

    def kill(self) -> None:
        """As a crash: nothing is written, connections break."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """It keeps its connections, takes new ones, and answers nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def say(self, *words: str) -> str:
        """Send one command; its answer. Raises AssertionError where that is an error."""
        with (
            socket.create_connection(("127.0.0.1", self.port), timeout=10) as line,
            line.makefile("rb") as reader,
        ):
            line.sendall(
                f"*{len(words)}\r\n{''.join(f'${len(word)}{CRLF}{word}{CRLF}' for word in words)}".encode()
            )
            first = reader.readline().decode()
            assert not first.startswith("-"), first
            return reader.read(int(first[1:])).decode() if first.startswith("$") else first[1:].strip()

    def _answers(self) -> bool:
        with socket.socket() as probe:
            probe.settimeout(1.0)
            if probe.connect_ex(("127.0.0.1", self.port)):
                return False
            probe.sendall(b"PING\r\n")
            with contextlib.suppress(OSError):
                # With a password it says that it wants one: it is there.
                return probe.recv(64).startswith((b"+PONG", b"-NOAUTH"))
        return False


@contextlib.contextmanager
def server(*options: str) -> Iterator[Server]:
    """An empty server, stopped at the end."""
    with tempfile.TemporaryDirectory(prefix="boomerang-redis-") as folder:
        one = Server(Path(folder), options)
        one.start()
        try:
            yield one
        finally:
            one.kill()


@contextlib.contextmanager
def cluster() -> Iterator[list[Server]]:
    """Three empty servers that share the slots, without replicas; stopped at the end."""
    with tempfile.TemporaryDirectory(prefix="boomerang-cluster-") as folder, contextlib.ExitStack() as stack:
        nodes: list[Server] = []
        for index in range(CLUSTER_NODES):
            # The bus of a cluster listens 10,000 ports further on.
            options = ["--cluster-enabled", "yes", "--cluster-node-timeout", "2000"]
            options += ["--cluster-require-full-coverage", "no"]
            node = Server(Path(folder) / str(index), options, free_port(below=55_000))
            node.start()
            stack.callback(node.kill)
            nodes.append(node)
        _join(nodes)
        yield nodes


def cluster_url(nodes: Sequence[Server]) -> str:
    return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in nodes)


def _join(nodes: Sequence[Server]) -> None:
    share = -(-16384 // len(nodes))
    for index, node in enumerate(nodes):
        slots = range(index * share, min((index + 1) * share, 16384))
        node.say("CLUSTER", "ADDSLOTS", *map(str, slots))
        node.say("CLUSTER", "SET-CONFIG-EPOCH", str(index + 1))
    for node in nodes[1:]:
        nodes[0].say("CLUSTER", "MEET", "127.0.0.1", str(node.port))
    end_s = time.monotonic() + START_TIMEOUT_S
    while not all(_whole(node, len(nodes)) for node in nodes):
        assert time.monotonic() < end_s, "the cluster does not come together"
        time.sleep(0.05)


def _whole(node: Server, nodes: int) -> bool:
    info = node.say("CLUSTER", "INFO").split()
    return "cluster_state:ok" in info and f"cluster_known_nodes:{nodes}" in info
