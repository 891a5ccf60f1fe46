"""Four real nodes on this machine's CPU: P and D with the plugin, a P without it for the controls, and one
with it that cannot read from D.

Started by the pair script's own functions (``deploy/engine-cpu/serve.py``). The plugin is installed into a
directory of its own (``deploy/engine-cpu/plugin.py``), so that vLLM's environment stays as it was.
"""

import importlib.util
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

ENGINE_CPU = Path(__file__).parents[3] / "engine-cpu"
HANDLE_TTL_S = 90
"""Short, so that a test can outlive a handle; long enough for a turn on a busy machine."""
PREFILL_LEASE_S = 120
PREFIX_CACHE = os.environ.get("BOOMERANG_TEST_PREFIX_CACHE", "off")
"""P's own: off shows that what P did not compute came from D."""


@dataclass(frozen=True, slots=True)
class Nodes:
    prefill: str
    decode: str
    stock_prefill: str
    """Without the plugin."""
    deaf_prefill: str
    """With the plugin, and without ``bidirectional_kv_xfer``."""
    logs: Path


def _script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"engine_cpu_{name}", ENGINE_CPU / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _clear_settings() -> None:
    """The plugin's own settings come from the environment too, and the tests are about its defaults."""
    for name in [name for name in os.environ if name.startswith("BOOMERANG_VLLM_")]:
        del os.environ[name]


def _hold(logs: Path, prefix_cache: str) -> None:
    """Start the four nodes, say where they are, and stop them when standard input closes, at any time."""

    def interrupt_at_eof() -> None:
        sys.stdin.read()
        os.kill(os.getpid(), signal.SIGINT)

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    threading.Thread(target=interrupt_at_eof, daemon=True).start()
    serve = _script("serve")
    plugin = logs / "plugin"
    arguments = ["--handle-ttl-s", str(HANDLE_TTL_S), "--prefill-lease-s", str(PREFILL_LEASE_S)]
    arguments += ["--prefill-prefix-cache", prefix_cache, "--kv-gib", "1"]
    ports = iter(_free_ports(8))

    def options(name: str, *more: str) -> Namespace:
        (logs / name).mkdir(parents=True)
        parsed: Namespace = serve.parse([*arguments, *more, "--log-dir", str(logs / name)])
        for each in ("prefill_port", "prefill_side_port"):
            setattr(parsed, each, next(ports))
        return parsed

    with_plugin = ("--plugin", str(plugin))
    pair, stock = options("pair", *with_plugin), options("stock")
    deaf = options("deaf", "--bidirectional", "false", *with_plugin)
    pair.decode_port, pair.decode_side_port = next(ports), next(ports)
    _script("plugin").install(pair.venv, plugin)
    _clear_settings()
    started = []
    try:
        started += [serve.start(pair, "prefill"), serve.start(pair, "decode")]
        started += [serve.start(deaf, "prefill"), serve.start(stock, "prefill")]
        for node in started:
            serve.wait_ready(node, time.monotonic() + serve.START_DEADLINE_S, queue.SimpleQueue())
        names = ("prefill", "decode", "deaf_prefill", "stock_prefill")
        urls = {name: node.url for name, node in zip(names, started, strict=True)}
        sys.stdout.write(json.dumps(urls) + "\n")
        sys.stdout.flush()
        threading.Event().wait()
    except KeyboardInterrupt:
        pass
    finally:
        serve.stop(started)


@contextmanager
def serve_nodes(logs: Path, *, prefix_cache: str = "off") -> Iterator[Nodes]:
    """The four nodes, held by a process of their own: in whatever way this one ends, they are stopped."""
    command = [sys.executable, __file__, str(logs), prefix_cache]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        line = holder.stdout.readline()
        assert line, f"the nodes did not start, see {logs}"
        try:
            yield Nodes(**json.loads(line), logs=logs)
        finally:
            holder.stdin.close()
            holder.wait(120)


if __name__ == "__main__":
    _hold(Path(sys.argv[1]), sys.argv[2])
