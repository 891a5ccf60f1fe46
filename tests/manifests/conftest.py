"""Tests of manifests against Helm's own engine, Kubernetes' schemas and Compose: `make test-helm`."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Tool:
    """``deploy/helm/tool.py``, in the environment of its own."""

    python: Path

    def run(self, *arguments: str | Path, given: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.python, ROOT / "deploy/helm/tool.py", *arguments],
            input=given,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def ask(self, *arguments: str | Path, given: str = "") -> Any:
        """What it answers, out of its JSON."""
        done = self.run(*arguments, given=given)
        assert done.returncode == 0, done.stderr[-2000:]
        return json.loads(done.stdout)

    def faults(self, version: str, manifests: str) -> str:
        """What is wrong with manifests for a version of Kubernetes; empty where nothing is."""
        done = self.run("validate", version, given=manifests)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout


@pytest.fixture(scope="session")
def tool() -> Tool:
    """Installed at its first use, outside the clone."""
    done = subprocess.run(
        ["bash", ROOT / "deploy/helm/install.sh"], capture_output=True, text=True, timeout=580, check=False
    )
    assert done.returncode == 0, done.stderr
    return Tool(Path(done.stdout.strip()) / "bin/python")
