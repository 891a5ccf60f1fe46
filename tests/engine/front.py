"""The router as its own process, as an operator starts it, and what it says of itself."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.engine.exchange import sample
from tests.engine.pair import HANDLE_TTL_S, PREFILL_LEASE_S, free_ports

ROOT = Path(__file__).parents[2]
START_DEADLINE_S = 60.0
SERVING_DEADLINE_S = 120.0

# A busy machine can hold a leg up for tens of seconds, and a pull that is given up would be a cold turn here.
PULL_TIMEOUT_S = 120.0
CONNECT_TIMEOUT_S = 30.0


def wait_until(condition: Callable[[], bool], what: str, *, limit_s: float) -> float:
    """Poll until it holds, and return for how long, in seconds; fails the test at the limit."""
    started_s = time.monotonic()
    while not condition():
        waited_s = time.monotonic() - started_s
        assert waited_s < limit_s, f"not within {limit_s:g} s: {what}"
        time.sleep(0.2)
    return time.monotonic() - started_s


@dataclass(frozen=True, slots=True)
class Front:
    """A router that runs."""

    url: str
    log: Path

    def health(self) -> dict[str, Any]:
        answer: dict[str, Any] = httpx.get(f"{self.url}/health", timeout=10).json()
        return answer

    def is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/ready", timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    def wait_serving(self) -> None:
        """Wait until both nodes are in use and handles may pass between them."""

        def is_serving() -> bool:
            return self.is_ready() and all(pair["verify"] != "off" for pair in self.health()["pairs"])

        wait_until(is_serving, "the router uses both nodes", limit_s=SERVING_DEADLINE_S)

    def metric(self, name: str) -> float:
        """The sum of a metric's samples."""
        return sample(self.metrics(), name)

    def metrics(self) -> str:
        return httpx.get(f"{self.url}/metrics", timeout=10).text

    def is_idle(self) -> bool:
        """Whether no turn and no leg is open, as its gauges tell."""
        return self.metric("boomerang_open_turns") == 0 == self.metric("boomerang_open_legs")


# Estimates would have it that prompts as short as these are as well computed again. With these each turn has
# both legs, and its handle goes to P.
BOTH_LEGS = ("--policy", "sticky", "--stay-max-tokens", "0")


@contextmanager
def serve(
    prefill_url: str, decode_url: str, log: Path, *, policy: tuple[str, ...] = BOTH_LEGS
) -> Iterator[Front]:
    """A router that verifies in its default way, in front of one pair."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "router", "serve", "--prefill", prefill_url, "--decode", decode_url]
    command += ["--host", "127.0.0.1", "--port", str(port), "--store", "memory"]
    command += ["--pull-timeout-s", str(PULL_TIMEOUT_S), "--connect-timeout-s", str(CONNECT_TIMEOUT_S)]
    command += ["--prefill-lease-s", str(PREFILL_LEASE_S), "--decode-ttl-s", str(HANDLE_TTL_S)]
    command += policy
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=out, stderr=subprocess.STDOUT)
    try:
        front = Front(f"http://127.0.0.1:{port}", log)
        deadline_s = time.monotonic() + START_DEADLINE_S
        while not front.is_ready():
            if process.poll() is not None or time.monotonic() > deadline_s:
                pytest.fail(f"the router is not ready; its log:\n{log.read_text(errors='replace')[-4000:]}")
            time.sleep(0.2)
        yield front
    finally:
        process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def environment() -> dict[str, str]:
    """Without settings of ours: here only the command line counts."""
    return {name: value for name, value in os.environ.items() if not name.startswith("BOOMERANG_")}
