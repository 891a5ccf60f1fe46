"""How long the router takes until it serves, and what it holds while nobody asks.

    python -m bench.startup [--rounds 5]

Each round is a new process of `boomerang serve` in front of two engines that answer every probe at once.
*serves* is the time from starting the process to the first answer of `/live`, *ready* to the first 200 of
`/ready`: by then both engines have been probed. Memory is read `--idle-s` seconds after that. Exit code 1
where a median is over its limit.
"""

import argparse
import contextlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from router.bench.cost import rss_mb
from router.bench.figures import spread
from router.demo.processes import BOOMERANG, free_port, process, wait_ready

READY_WITHIN_S: Final = 1.0
IDLE_MB: Final = 80.0
_POLL_S: Final = 0.002
_GIVE_UP_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Start:
    """One start. Times in seconds since the process was started, memory in MiB."""

    serves_s: float
    ready_s: float
    idle_mb: float


def _status(port: int, path: str) -> int:
    """The status of an answer; 0 where nobody listens yet."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)) as asking:
        asking.sendall(f"GET {path} HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n\r\n".encode())
        return int(asking.recv(64)[9:12] or 0)
    return 0


def _until(port: int, path: str, router: "subprocess.Popen[bytes]") -> None:
    end_s = time.monotonic() + _GIVE_UP_S
    while _status(port, path) != 200:
        if router.poll() is not None or time.monotonic() > end_s:
            raise SystemExit("the router did not start")
        time.sleep(_POLL_S)


def start(engines: tuple[int, int], idle_s: float, log: Path) -> Start:
    """Start a router once, and measure."""
    port = free_port()
    nodes = [
        f"--{role}=http://127.0.0.1:{at}" for role, at in zip(("prefill", "decode"), engines, strict=True)
    ]
    began_s = time.perf_counter()
    with process([*BOOMERANG, "serve", *nodes, f"--port={port}", "--log-level=warning"], log) as router:
        _until(port, "/live", router)
        serves_s = time.perf_counter() - began_s
        _until(port, "/ready", router)
        ready_s = time.perf_counter() - began_s
        time.sleep(idle_s)
        return Start(serves_s, ready_s, rss_mb(router.pid))


def main(rounds: int, idle_s: float) -> int:
    """Measure, print, judge; the exit code."""
    engines = free_port(), free_port()
    with tempfile.TemporaryDirectory(prefix="boomerang-bench-") as folder, contextlib.ExitStack() as running:
        for port in engines:
            log = Path(folder) / f"{port}.log"
            said = [f"--port={port}", "--events=2", "--every-s=1"]
            engine = running.enter_context(process([sys.executable, "-m", "router.bench.engine", *said], log))
            wait_ready("engine", engine, log, f"http://127.0.0.1:{port}/health")
        start(engines, 0.0, Path(folder) / "router.log")  # compiles what is not compiled yet
        starts = [start(engines, idle_s, Path(folder) / "router.log") for _ in range(rounds)]
    for name, values in (
        ("serves after, s", [one.serves_s for one in starts]),
        ("ready after, s", [one.ready_s for one in starts]),
        (f"idle for {idle_s:g} s, MiB", [one.idle_mb for one in starts]),
    ):
        print(f"{name}: {spread(values)}")
    ready_s = statistics.median([one.ready_s for one in starts])
    idle_mb = statistics.median([one.idle_mb for one in starts])
    return 0 if ready_s <= READY_WITHIN_S and idle_mb <= IDLE_MB else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--idle-s", type=float, default=5.0)
    given = parser.parse_args()
    sys.exit(main(given.rounds, given.idle_s))
