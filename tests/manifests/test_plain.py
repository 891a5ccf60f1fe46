"""The plain manifests and the Compose file, against the schemas of those who read them."""

import json
from pathlib import Path

import pytest

from tests.manifests.conftest import ROOT, Tool

FOLDER = ROOT / "deploy/kubernetes"
FILES = sorted(
    file
    for file in FOLDER.rglob("*.yaml")
    if file.name not in ("kustomization.yaml", "boomerang.yaml", "servicemonitor.yaml")
)


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(FOLDER)))
def test_kubernetes_takes_it(file: Path, tool: Tool) -> None:
    for version in ("1.30", "1.33", "1.37"):
        assert tool.faults(version, file.read_text()) == ""


def test_compose_takes_it(tool: Tool, tmp_path: Path) -> None:
    file = ROOT / "deploy/compose/compose.yaml"
    done = tool.run("compose", file)
    assert (done.returncode, done.stderr) == (0, "")
    services = json.loads(done.stdout)["services"]
    assert len(services) == 6
    assert services["prefill"]["command"] == services["decode"]["command"]
    wrong = tmp_path / "compose.yaml"
    wrong.write_text(file.read_text().replace("healthcheck:", "healthchecks:"))
    assert tool.run("compose", wrong).returncode != 0
