#!/usr/bin/env bash
# Finds the programs that tests run beside the router, or installs them: a Redis server, Prometheus, a browser, Valgrind.
# Run by `make test`. Where one cannot be had its tests are skipped; with CI set, that is a failure.
set -euo pipefail

any() { command -v "$@" >/dev/null 2>&1; }

as_root=()
[ "$(id -u)" = 0 ] || as_root=(sudo -n)
looked=""
install() { # what it is for, its Debian package, its Homebrew formula
    echo "Installing $2 for the tests of $1 ..."
    if command -v apt-get >/dev/null 2>&1 && "${as_root[@]}" true >/dev/null 2>&1; then
        [ -n "$looked" ] || "${as_root[@]}" apt-get update -qq || true
        looked=yes
        # Tests start their own, on loopback: RUNLEVEL=1 keeps the package from starting a service of the system's.
        "${as_root[@]}" env RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive \
            apt-get install -y -qq --no-install-recommends "$2" >/dev/null || true
    elif command -v brew >/dev/null 2>&1; then
        brew install --quiet "$3" || true
    fi
}
missing=0
need() { # what it is for, its Debian package, its Homebrew formula, what names one, then the names of its program
    local for=$1 package=$2 formula=$3 variable=$4
    shift 4
    if [ -n "$variable" ] && [ -n "${!variable:-}" ]; then return; fi
    any "$@" && return
    install "$for" "$package" "$formula"
    any "$@" && return
    echo "There is no $package, and it could not be installed here: tests of $for are skipped (they fail where CI" >&2
    echo "is set). Install it${variable:+, or name its program in $variable}." >&2
    missing=1
}

need "the shared ledger" redis-server redis BOOMERANG_REDIS_SERVER redis-server valkey-server
need "dashboard and alerts" prometheus prometheus "" promtool
need "the live page" chromium chromium BOOMERANG_CHROMIUM chromium chromium-browser google-chrome
need "the guard of speed" valgrind valgrind "" valgrind

[ "$missing" = 0 ] || [ -z "${CI:-}" ]
