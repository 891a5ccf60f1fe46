"""A real 1P1D pair for the tests, started and stopped through the project's own scripts."""

import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ENGINE_CPU = Path(__file__).parents[2] / "deploy" / "engine-cpu"
MODEL = "tiny"

# On a busy machine D can be held up for longer than vLLM's 30 s, and P's blocks would be gone by then.
PREFILL_LEASE_S = 120


class EngineUnavailable(Exception):
    """The engines could not be installed or started; the message holds what the scripts said."""


@dataclass(frozen=True, slots=True)
class Pair:
    prefill_url: str
    decode_url: str
    prefill_log: Path
    decode_log: Path
    pgids: tuple[int, ...]
    """The nodes' process groups."""
    supervisor: "subprocess.Popen[str]"


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
    done = subprocess.run(
        ["bash", str(ENGINE_CPU / "install.sh")], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise EngineUnavailable(done.stderr.strip())


def start(logs: Path) -> Pair:
    """Start both nodes on free ports and wait until they answer. Raises EngineUnavailable."""
    ports = free_ports(4)
    names = ("--prefill-port", "--decode-port", "--prefill-side-port", "--decode-side-port")
    command = [sys.executable, str(ENGINE_CPU / "serve.py"), "--stop-on-eof", "--log-dir", str(logs)]
    command += ["--prefill-lease-s", str(PREFILL_LEASE_S)]
    for name, port in zip(names, ports, strict=True):
        command += [name, str(port)]
    # The pipe to its standard input is ours alone: when this process dies, in whatever way, it closes, and
    # the script stops the engines.
    supervisor = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert supervisor.stdout is not None
    line = supervisor.stdout.readline()
    if not line:
        _, said = supervisor.communicate()
        raise EngineUnavailable(said.strip())
    said_pair = json.loads(line)
    prefill, decode = said_pair["prefill"], said_pair["decode"]
    return Pair(
        prefill_url=prefill["url"],
        decode_url=decode["url"],
        prefill_log=Path(prefill["log"]),
        decode_log=Path(decode["log"]),
        pgids=(prefill["pgid"], decode["pgid"]),
        supervisor=supervisor,
    )


def stop(pair: Pair) -> None:
    """Stop both nodes' process groups, also when the script that should do it does not."""
    try:
        pair.supervisor.communicate(timeout=60)  # closes its standard input
    except subprocess.TimeoutExpired:
        pair.supervisor.kill()
        pair.supervisor.communicate()
    for pgid in pair.pgids:
        try:
            os.killpg(pgid, signal.SIGKILL)
        except ProcessLookupError:
            continue
