"""``boomerang check`` on the live pair names the one thing that a stock engine lacks, and nothing else."""

import json
import subprocess
import sys

from tests.engine.exchange import Engines
from tests.engine.front import ROOT, environment
from tests.engine.pair import HANDLE_TTL_S, Pair, Setup
from tests.engine.report import Run

LIMIT_S = 300.0


def test_check_tells_what_works(setup: Setup, engine_pair: Pair, engines: Engines, run: Run) -> None:
    assert engines.metric("decode", "vllm:num_requests_running") == 0  # they have met, and rest
    command = [sys.executable, "-m", "router", "check", "--json", "--timeout-s", "120"]
    command += ["--prefill", engine_pair.prefill.url, "--decode", engine_pair.decode.url]
    command += ["--ttl", str(HANDLE_TTL_S)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    findings = json.loads(done.stdout)["findings"]
    errors = {each["check"]: each["seen"] for each in findings if each["verdict"] == "error"}
    seen = {each["check"]: (each["verdict"], each["seen"]) for each in findings}
    rows = [each["verdict"] for each in findings]
    told = ", ".join(f"{rows.count(verdict)} {verdict}" for verdict in dict.fromkeys(rows))
    run.of(setup).notes["boomerang check"] = told + "".join(
        f"; {name}: {why}" for name, why in errors.items()
    )
    handles = seen["stream_handle"][1]
    kinds = {"native": "the engine's own", "plugin": "from the plugin"}
    run.of(setup).stream_handle = next((kind for kind, told in kinds.items() if told in handles), "none")
    assert seen["answer"][0] == "ok"
    # A warning is that P does not tell what it reused: a stock vLLM before 0.32.
    assert seen["reuse"][0] in ("ok", "warning")
    if setup is Setup.STOCK:
        assert list(errors) == ["stream_handle"]
        assert done.returncode == 1
    else:
        assert errors == {}
        assert done.returncode == 0
        assert seen["stream_handle"][0] == "ok"
        assert "plugin" in seen["stream_handle"][1]
        assert "engine" in seen["verification"][1]
