#!/usr/bin/env bash
# Finds a Redis or Valkey server for the tests, or installs one. Run by `make test`.
set -euo pipefail

if [ -n "${BOOMERANG_REDIS_SERVER:-}" ] || command -v redis-server valkey-server >/dev/null 2>&1; then
    exit 0
fi

as_root=()
[ "$(id -u)" = 0 ] || as_root=(sudo -n)
if command -v apt-get >/dev/null 2>&1 && "${as_root[@]}" true >/dev/null 2>&1; then
    echo "Installing redis-server for the tests ..."
    # Tests start their own, on loopback: RUNLEVEL=1 keeps the package from starting a service of the system's.
    "${as_root[@]}" apt-get update -qq || true
    "${as_root[@]}" env RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends redis-server >/dev/null || true
elif command -v brew >/dev/null 2>&1; then
    echo "Installing redis for the tests ..."
    brew install --quiet redis || true
fi

if ! command -v redis-server >/dev/null 2>&1; then
    echo "There is no Redis server, and none could be installed here. Tests of the shared ledger are skipped" >&2
    echo "(they fail where CI is set). Install redis-server or valkey-server, or name one in" >&2
    echo "BOOMERANG_REDIS_SERVER." >&2
    [ -z "${CI:-}" ]
fi
