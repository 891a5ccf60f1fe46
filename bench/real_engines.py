"""A real vLLM pair on the CPU for a benchmark, with a model whose prefill costs something."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from router.demo.processes import NotStarted, free_port

ENGINE_CPU = Path(__file__).parents[1] / "deploy" / "engine-cpu"
HOME = Path(os.environ.get("BOOMERANG_ENGINE_HOME", Path.home() / ".cache" / "boomerang"))
VERSION = os.environ.get("BOOMERANG_VLLM_VERSION", "0.32.0")
VENV = HOME / f"vllm-{VERSION}"
MODEL = "tiny"
HANDLE_TTL_S = 120
PREFILL_LEASE_S = 120


@dataclass(frozen=True, slots=True)
class Pair:
    """Where the two engines listen."""

    prefill: str
    decode: str


def model(layers: int, hidden: int) -> Path:
    """Write a random model of that size, or find it written. Raises NotStarted."""
    directory = HOME / f"tiny-model-{layers}x{hidden}"
    if not (directory / "model.safetensors").exists():
        # Written beside its place and moved, so that a model which is there is a whole one.
        unfinished = directory.with_suffix(".unfinished")
        size = ["--layers", str(layers), "--hidden", str(hidden)]
        _run(str(VENV / "bin" / "python"), str(ENGINE_CPU / "make_tiny_model.py"), str(unfinished), *size)
        unfinished.rename(directory)
    return directory


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotStarted(done.stderr.strip()[-2000:])


@contextlib.contextmanager
def pair(directory: Path, folder: Path, max_model_tokens: int) -> Iterator[Pair]:
    """Start both engines with the plugin, and stop them at the end. Raises NotStarted.

    Neither has a prefix cache: P's, as in the published measurements, so that what it does not compute came
    from D; D's, so that all it decodes from is the KV that P had.
    """
    _run(sys.executable, str(ENGINE_CPU / "plugin.py"), str(folder / "plugin"))
    ports = {
        f"--{role}-{kind}": free_port() for role in ("prefill", "decode") for kind in ("port", "side-port")
    }
    command = [sys.executable, str(ENGINE_CPU / "serve.py"), "--stop-on-eof", "--model", str(directory)]
    command += ["--plugin", str(folder / "plugin"), "--log-dir", str(folder)]
    command += [text for name, port in ports.items() for text in (name, str(port))]
    command += ["--handle-ttl-s", str(HANDLE_TTL_S), "--prefill-lease-s", str(PREFILL_LEASE_S)]
    command += ["--max-model-len", str(max_model_tokens), "--served-model-name", MODEL]
    command += ["--engine-args=--no-enable-prefix-caching"]
    pipe = subprocess.PIPE
    # Its standard input is ours alone: when this process ends, in whatever way, the engines stop.
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as started:
        try:
            line = started.stdout.readline() if started.stdout else ""
            if not line:
                raise NotStarted(started.communicate()[1].strip()[-2000:])
            told = json.loads(line)
            yield Pair(told["prefill"]["url"], told["decode"]["url"])
        finally:
            if started.stdin:
                started.stdin.close()
            started.wait(timeout=60)
