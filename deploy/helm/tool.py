#!/usr/bin/env python3
"""Asks Helm, Kubernetes' schemas and Compose, which live in an environment of their own (install.sh).

tool.py lint CHART              what Helm's linter says, as JSON
tool.py render CHART < VALUES   {"manifests": text} or {"refused": why}, as JSON; VALUES is JSON, too
tool.py validate VERSION < YAML what is wrong with the manifests, one line each; nothing where they are right
tool.py compose FILE            Compose's own reading of a file; its exit code
"""

import json
import os
import subprocess
import sys
from pathlib import Path

WITHOUT_SCHEMA = {"ServiceMonitor", "PrometheusRule"}
"""Resources of the Prometheus operator: Kubernetes' own schemas do not know them."""


def lint(chart: str) -> int:
    import helm_python as helm  # noqa: PLC0415 - the others need not have it

    print(json.dumps(helm.lint(chart)))
    return 0


def render(chart: str) -> int:
    import helm_python as helm  # noqa: PLC0415

    try:
        with helm.Chart.load(chart) as loaded:
            files = loaded.render(values=json.load(sys.stdin), name="pool", namespace="serving")
    except (helm.HelmValuesError, helm.HelmRenderError) as error:
        print(json.dumps({"refused": str(error)}))
        return 0
    texts = [text for path, text in sorted(files.items()) if path.endswith(".yaml")]
    print(json.dumps({"manifests": "\n---\n".join(texts)}))
    return 0


def validate(version: str) -> int:
    import kubernetes_validate  # noqa: PLC0415
    import yaml  # noqa: PLC0415

    for manifest in yaml.safe_load_all(sys.stdin):
        if not manifest or manifest["kind"] in WITHOUT_SCHEMA:
            continue
        try:
            kubernetes_validate.validate(manifest, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            where = "/".join(str(part) for part in error.path)
            print(f"{manifest['kind']} {manifest['metadata'].get('name')}: {where}: {error.message}")
    return 0


def compose(file: str) -> int:
    import compose as package  # noqa: PLC0415

    program = Path(package.__file__).parent / "docker-compose"
    # No engine is asked: the file alone is read.
    environment = {**os.environ, "DOCKER_HOST": "unix:///nonexistent"}
    done = subprocess.run(
        [program, "--file", file, "config", "--format", "json"], env=environment, check=False
    )
    return done.returncode


if __name__ == "__main__":
    sys.exit(
        {"lint": lint, "render": render, "validate": validate, "compose": compose}[sys.argv[1]](sys.argv[2])
    )
