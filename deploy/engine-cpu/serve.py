#!/usr/bin/env python3
"""Serve a real vLLM pair on this machine's CPU: one prefill node, one decode node, KV moving both ways.

    serve.py [--prefill-port 8100] [--decode-port 8200] [--plugin DIR] [--log-dir DIR]
    serve.py --role decode ...

Prints one line of JSON on standard output once its nodes answer /health: their URLs, process groups and log
files. It then stays until it is told to stop (SIGINT, SIGTERM), until a node ends, or, with --stop-on-eof,
until its standard input closes, so that a caller which dies in any way leaves no engine behind. Each node is
a process group of its own and is stopped as a whole. Exit status: 0 stopped when told, 1 a node did not
start, or ended.

Every option has a default in the environment, named beside it. Only the standard library is needed.
"""

import argparse
import http.client
import json
import os
import queue
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

ROLES = ("prefill", "decode")
START_DEADLINE_S = 300.0
POLL_S = 0.5
STOP_GRACE_S = 15.0
TAIL_LINES = 30


@dataclass(frozen=True, slots=True)
class Node:
    """One engine that was started. The process leads its own group, so its process id is the group's id."""

    role: str
    port: int
    log: Path
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def core_of(role: str) -> int:
    """One core per role, so that the nodes do not fight for the same; a single core they have to share."""
    cores = sorted(os.sched_getaffinity(0))
    return cores[0] if role == "prefill" else cores[-1]


class Ended(Exception):
    """The pair is to be stopped. The message says what went wrong; it is empty if somebody asked for it."""


def parse(arguments: list[str]) -> argparse.Namespace:
    env = os.environ.get
    home = Path(env("BOOMERANG_ENGINE_HOME", str(Path.home() / ".cache" / "boomerang")))
    version = env("BOOMERANG_VLLM_VERSION", "0.32.0")
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--venv", type=Path, default=home / f"vllm-{version}", help="made by install.sh")
    add("--model", type=Path, default=home / "tiny-model", help="made by install.sh")
    add("--served-model-name", default="tiny")
    add("--role", choices=("both", *ROLES), default="both", help="one node alone can be replaced")
    add("--plugin", type=Path, help="where plugin.py installed the vLLM plugin; none: stock vLLM")
    add("--log-dir", type=Path, default=Path("engine-logs"))
    add("--prefill-port", type=int, default=int(env("PREFILL_PORT", "8100")), help="PREFILL_PORT")
    add("--decode-port", type=int, default=int(env("DECODE_PORT", "8200")), help="DECODE_PORT")
    add(
        "--prefill-side-port",
        type=int,
        default=int(env("PREFILL_SIDE_PORT", "5600")),
        help="PREFILL_SIDE_PORT",
    )
    add("--decode-side-port", type=int, default=int(env("DECODE_SIDE_PORT", "5601")), help="DECODE_SIDE_PORT")
    add(
        "--bidirectional",
        choices=("true", "false"),
        default=env("BIDIRECTIONAL", "true"),
        help="BIDIRECTIONAL",
    )
    add("--handle-ttl-s", type=int, default=int(env("HANDLE_TTL_S", "480")), help="HANDLE_TTL_S")
    add(
        "--prefill-lease-s",
        type=int,
        default=int(env("PREFILL_LEASE_S", "30")),
        help="PREFILL_LEASE_S; how long P keeps a prompt for D, 30 s being vLLM's own default",
    )
    add(
        "--prefill-prefix-cache",
        choices=("on", "off"),
        default=env("PREFILL_PREFIX_CACHE", "off"),
        help="PREFILL_PREFIX_CACHE; off shows that what P did not compute came from D",
    )
    add("--max-model-len", type=int, default=int(env("MAX_MODEL_LEN", "16384")), help="tokens; MAX_MODEL_LEN")
    add("--kv-gib", type=int, default=int(env("KV_GIB", "2")), help="KV space per node; KV_GIB")
    add("--engine-args", default=env("ENGINE_ARGS", ""), help="more arguments for vllm serve; ENGINE_ARGS")
    add("--stop-on-eof", action="store_true", help="stop when standard input closes")
    return parser.parse_args(arguments)


def start(options: argparse.Namespace, role: str) -> Node:
    """Start the node of a role in a process group of its own."""
    is_prefill = role == "prefill"
    port = options.prefill_port if is_prefill else options.decode_port
    connector = {
        "kv_connector": "NixlConnector",
        "kv_buffer_device": "cpu",
        "kv_role": "kv_both",  # both directions: P sends to D, and D's finished turns go back to P
        "kv_connector_extra_config": {
            "bidirectional_kv_xfer": options.bidirectional == "true",
            "decoder_kv_blocks_ttl": options.handle_ttl_s,
            "kv_lease_duration": options.prefill_lease_s,
            "kv_recompute_threshold": 64,
        },
    }
    command = [
        str(options.venv / "bin" / "vllm"),
        "serve",
        str(options.model),
        *("--served-model-name", options.served_model_name),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--max-model-len", str(options.max_model_len)),
        # float32 leaves the least rounding between a pulled and a computed block.
        *("--enforce-eager", "--dtype", "float32"),
        *("--kv-transfer-config", json.dumps(connector)),
        *(["--no-enable-prefix-caching"] if is_prefill and options.prefill_prefix_cache == "off" else []),
        *shlex.split(options.engine_args),
    ]
    environment = os.environ | {
        "VLLM_CPU_OMP_THREADS_BIND": str(core_of(role)),
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_KVCACHE_SPACE": str(options.kv_gib),
        "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(
            options.prefill_side_port if is_prefill else options.decode_side_port
        ),
        "UCX_TLS": os.environ.get("UCX_TLS", "all"),
        # --enforce-eager does not reach the sampler: its first request with logprobs would compile C++ for
        # half a minute, and would need a compiler at all.
        "TORCH_COMPILE_DISABLE": "1",
        # The model is a local directory, and nothing here is to call home.
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
    }
    # What is installed elsewhere is not to be seen by the engine: nor is a plugin that was not asked for.
    environment.pop("PYTHONPATH", None)
    if options.plugin is not None:
        environment["PYTHONPATH"] = str(options.plugin.resolve())
    log = options.log_dir / f"{role}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(  # noqa: S603 -- our own command, no shell
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    return Node(role, port, log, process)


def tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()[-TAIL_LINES:]
    return "\n".join(f"  | {line}" for line in lines)


def is_healthy(node: Node) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", node.port, timeout=2)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def wait_ready(node: Node, deadline: float, ends: "queue.SimpleQueue[str]") -> None:
    """Return once the node answers, and keeps to its own core.

    Raises Ended if the pair ends before, or at the deadline (monotonic).
    """
    while not is_healthy(node):
        if time.monotonic() > deadline:
            late = f"the {node.role} node did not answer in {START_DEADLINE_S:.0f} s"
            raise Ended(f"{late}; {node.log}:\n{tail(node.log)}")
        try:
            raise Ended(ends.get(timeout=POLL_S))
        except queue.Empty:
            continue
    keep_to_core(node)


def keep_to_core(node: Node) -> None:
    """Move what the node has bound to some core to the node's own.

    vLLM's NIXL connector binds the worker of every node on a CPU to the machine's last core (0.32,
    ``nixl/base_worker.py``). There D, which never rests while it keeps finished turns, starves P.
    """
    everywhere = os.sched_getaffinity(0)
    for stat in Path("/proc").glob("[0-9]*/task/[0-9]*/stat"):
        try:
            group = int(stat.read_text().rpartition(")")[2].split()[2])
            thread = int(stat.parent.name)
            if group == node.process.pid and os.sched_getaffinity(thread) != everywhere:
                os.sched_setaffinity(thread, {core_of(node.role)})
        except (OSError, ValueError, IndexError):
            continue  # it has ended


def stop(nodes: list[Node]) -> None:
    """End every process of the nodes' groups: asked first, then killed. Having ended already is no error."""
    for sent in (signal.SIGTERM, signal.SIGKILL):
        for node in nodes:
            try:
                os.killpg(node.process.pid, sent)
            except ProcessLookupError:
                continue
        deadline = time.monotonic() + STOP_GRACE_S
        for node in nodes:
            try:
                node.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                continue


def taken_port(options: argparse.Namespace, roles: tuple[str, ...]) -> int | None:
    """The first port that somebody else has: their answer to /health would pass for our node's."""
    for port in [getattr(options, f"{role}_{kind}") for role in roles for kind in ("port", "side_port")]:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                return int(port)
    return None


def watch_caller(ends: "queue.SimpleQueue[str]", *, until_eof: bool) -> None:
    """Queue an empty reason when the caller wants a stop. (SimpleQueue, because a signal handler puts.)"""

    def on_signal(_number: int, _frame: object) -> None:
        ends.put("")

    def on_eof() -> None:
        while os.read(0, 4096):
            pass
        ends.put("")

    signal.signal(signal.SIGINT, on_signal)
    signal.signal(signal.SIGTERM, on_signal)
    if until_eof:
        threading.Thread(target=on_eof, daemon=True).start()


def watch_node(node: Node, ends: "queue.SimpleQueue[str]") -> None:
    """Queue a reason when the node ends."""

    def on_end() -> None:
        status = node.process.wait()
        ends.put(f"the {node.role} node ended with status {status}; {node.log}:\n{tail(node.log)}")

    threading.Thread(target=on_end, daemon=True).start()


def main() -> None:
    options = parse(sys.argv[1:])
    if not (options.venv / "bin" / "vllm").exists() or not options.model.exists():
        sys.exit(f"serve.py: no vLLM in {options.venv}, or no model in {options.model}: run install.sh first")
    roles = ROLES if options.role == "both" else (options.role,)
    if (port := taken_port(options, roles)) is not None:
        sys.exit(f"serve.py: port {port} is taken")
    options.log_dir.mkdir(parents=True, exist_ok=True)
    ends: queue.SimpleQueue[str] = queue.SimpleQueue()
    watch_caller(ends, until_eof=options.stop_on_eof)
    nodes: list[Node] = []
    try:
        for role in roles:
            nodes.append(start(options, role))
            watch_node(nodes[-1], ends)
        deadline = time.monotonic() + START_DEADLINE_S
        for node in nodes:
            wait_ready(node, deadline, ends)
        pair = {n.role: {"url": n.url, "pgid": n.process.pid, "log": str(n.log)} for n in nodes}
        sys.stdout.write(json.dumps(pair) + "\n")
        sys.stdout.flush()
        raise Ended(ends.get())
    except Ended as ended:
        reason = str(ended)
    finally:
        stop(nodes)
    if reason:
        sys.exit(f"serve.py: {reason}")


if __name__ == "__main__":
    main()
