"""A real 1P1D pair for the tests, started and stopped through the project's own scripts, node by node."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

ENGINE_CPU = Path(__file__).parents[2] / "deploy" / "engine-cpu"
MODEL = "tiny"

# On a busy machine D can be held up for longer than vLLM's 30 s, and P's blocks would be gone by then.
PREFILL_LEASE_S = 120

# Short, so that a test can outlive a handle; longer than any two turns of one conversation are apart.
HANDLE_TTL_S = 90

# The plugin's settings come from the environment too, and the tests are about its defaults.
_PLUGIN_SETTINGS = tuple(f"BOOMERANG_VLLM_{name}" for name in ("PARTS", "UNSTAMPED", "DIGESTS", "EXPIRED"))


class Setup(StrEnum):
    """What the engines are."""

    STOCK = "stock"
    PLUGIN = "plugin"
    """With boomerang-vllm on both."""


class EngineUnavailable(Exception):
    """The engines could not be installed or started; the message holds what the scripts said."""


def free_ports(count: int) -> list[int]:
    """Ports that are free now; held open together, so that they differ."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()


def install() -> None:
    """Install vLLM and the model, or find them installed. Raises EngineUnavailable."""
    _run("bash", str(ENGINE_CPU / "install.sh"))


def install_plugin(target: Path) -> None:
    """Install the plugin into a directory of its own. Raises EngineUnavailable."""
    _run(sys.executable, str(ENGINE_CPU / "plugin.py"), str(target))


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise EngineUnavailable(done.stderr.strip())


@dataclass(slots=True)
class EngineNode:
    """One engine, which can be killed and started again on the same ports."""

    role: str
    port: int
    side_port: int
    arguments: tuple[str, ...]
    """Of ``serve.py``."""
    logs: Path
    starts: int = 0
    _pgid: int | None = None
    """The engine's own process group, of which nobody else is a member."""
    _supervisor: "subprocess.Popen[str] | None" = field(default=None, repr=False)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        """The log of the process that was started last."""
        return self.logs / f"{self.role}-{self.starts}" / f"{self.role}.log"

    def launch(self, *more: str) -> None:
        """Begin to start it; ``more`` are arguments of this start alone."""
        self.starts += 1
        command = [sys.executable, str(ENGINE_CPU / "serve.py"), "--stop-on-eof", "--role", self.role]
        command += [f"--{self.role}-port", str(self.port), f"--{self.role}-side-port", str(self.side_port)]
        command += [*self.arguments, *more, "--log-dir", str(self.log.parent)]
        environment = {name: value for name, value in os.environ.items() if name not in _PLUGIN_SETTINGS}
        # The pipe to its standard input is ours alone: when this process dies, in whatever way, it closes,
        # and the script stops the engine.
        self._supervisor = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )

    def wait_started(self) -> None:
        """Wait until it answers. Raises EngineUnavailable."""
        assert self._supervisor is not None
        assert self._supervisor.stdout is not None
        line = self._supervisor.stdout.readline()
        if not line:
            _, said = self._supervisor.communicate()
            raise EngineUnavailable(said.strip())
        self._pgid = int(json.loads(line)[self.role]["pgid"])

    def freeze(self) -> None:
        """Let it take connections and answer nothing; only ``kill`` ends this."""
        self._signal(signal.SIGSTOP)

    def kill(self) -> None:
        """End all of its processes at once, as a machine that fails does."""
        self._signal(signal.SIGKILL)
        self.stop()

    def stop(self) -> None:
        """Stop it, also when the script that should do it does not."""
        if self._supervisor is not None:
            try:
                self._supervisor.communicate(timeout=60)  # closes its standard input
            except subprocess.TimeoutExpired:
                self._supervisor.kill()
                self._supervisor.communicate()
        self._signal(signal.SIGKILL)
        self._supervisor = self._pgid = None

    def _signal(self, number: signal.Signals) -> None:
        if self._pgid is not None:
            try:
                os.killpg(self._pgid, number)
            except ProcessLookupError:
                self._pgid = None


@dataclass(frozen=True, slots=True)
class Pair:
    setup: Setup
    prefill: EngineNode
    decode: EngineNode

    @property
    def logs(self) -> list[Path]:
        """The logs of the processes that were started last."""
        return [self.prefill.log, self.decode.log]


def prefix_cache(setup: Setup, *, restarted: bool = False) -> str:
    """P's own prefix cache, ``on`` or ``off``: with each setup both, one before and one after a restart of P.

    Off shows that what P did not compute came from D; on is what pools have.
    """
    return "on" if (setup is Setup.PLUGIN) is not restarted else "off"


@contextmanager
def serve(setup: Setup, logs: Path) -> Iterator[Pair]:
    """Both nodes on free ports; stopped in whatever way this ends. Raises EngineUnavailable."""
    ports = free_ports(4)
    arguments = ["--prefill-lease-s", str(PREFILL_LEASE_S), "--handle-ttl-s", str(HANDLE_TTL_S)]
    arguments += ["--kv-gib", "1", "--engine-args=--enable-prompt-tokens-details"]
    if setup is Setup.PLUGIN:
        install_plugin(logs / "plugin")
        arguments += ["--plugin", str(logs / "plugin")]
    prefill, decode = (
        EngineNode(role, ports[at], ports[at + 2], tuple(arguments), logs)
        for at, role in enumerate(("prefill", "decode"))
    )
    try:
        prefill.launch("--prefill-prefix-cache", prefix_cache(setup))
        decode.launch()
        prefill.wait_started()
        decode.wait_started()
        yield Pair(setup, prefill, decode)
    finally:
        for node in (prefill, decode):
            node.stop()
