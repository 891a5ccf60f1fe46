#!/usr/bin/env bash
# Writes the locks anew from pyproject.toml, all pins with hashes: requirements.lock, what the router runs with;
# requirements-image.lock, the same and tracing, for the image; requirements-build.lock, what builds its wheel;
# requirements-dev.lock, the tools around it all; deploy/helm/requirements-test.lock, those of `make test-helm`.
# Usage: scripts/lock.sh [--upgrade]
set -euo pipefail
cd "${0%/*}/.."

[ -x .venv-lock/bin/uv ] || { python3 -m venv .venv-lock && .venv-lock/bin/python -m pip install -qq uv; }
compile() {
    UV_CUSTOM_COMPILE_COMMAND="make lock" .venv-lock/bin/uv pip compile --quiet --no-config --no-annotate \
        --generate-hashes --no-emit-index-url --no-emit-find-links --universal --python-version 3.11 "$@"
}
compile pyproject.toml --output-file requirements.lock "$@"
# The tools around the same runtime: whatever is tested is what is deployed.
compile pyproject.toml --extra dev --extra demo --extra otel --extra plot --extra docs --constraint requirements.lock --output-file requirements-dev.lock "$@"
compile pyproject.toml --extra otel --constraint requirements-dev.lock --output-file requirements-image.lock "$@"
compile requirements-build.in --constraint requirements-dev.lock --output-file requirements-build.lock "$@"
compile deploy/helm/requirements-test.in --output-file deploy/helm/requirements-test.lock "$@"
