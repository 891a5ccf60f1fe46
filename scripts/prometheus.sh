#!/usr/bin/env bash
# Finds Prometheus for the tests of dashboard and alerts, or installs it. Run by `make test`.
set -euo pipefail

found() { command -v prometheus >/dev/null 2>&1 && command -v promtool >/dev/null 2>&1; }
found && exit 0

as_root=()
[ "$(id -u)" = 0 ] || as_root=(sudo -n)
if command -v apt-get >/dev/null 2>&1 && "${as_root[@]}" true >/dev/null 2>&1; then
    echo "Installing prometheus for the tests ..."
    # Tests start their own, on loopback: RUNLEVEL=1 keeps the package from starting a service of the system's.
    "${as_root[@]}" apt-get update -qq || true
    "${as_root[@]}" env RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends prometheus >/dev/null || true
elif command -v brew >/dev/null 2>&1; then
    echo "Installing prometheus for the tests ..."
    brew install --quiet prometheus || true
fi

if ! found; then
    echo "There is no Prometheus, and none could be installed here. Tests of dashboard and alerts are skipped" >&2
    echo "(they fail where CI is set). Install prometheus and promtool." >&2
    [ -z "${CI:-}" ]
fi
