#!/usr/bin/env bash
# Makes .venv from requirements-dev.lock and installs this clone into it, editable. Run by `make setup`.
set -euo pipefail
cd "${0%/*}/.."

find_python() {
    local name found=""
    for name in ${PYTHON:-python3.13 python3.12 python3.11 python3 python3.14}; do
        # A name may exist and still not run (version managers leave such stand-ins), so it has to prove itself.
        if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            # Debian and Ubuntu keep what makes virtual environments in a package of its own.
            "$name" -c 'import ensurepip, venv' >/dev/null 2>&1 && echo "$name" && return
            found=$name
        fi
    done
    if [ -n "$found" ]; then
        echo "$found cannot make virtual environments: on Debian and Ubuntu, install python3-venv." >&2
    else
        echo "boomerang needs Python 3.11 or newer, and found none as ${PYTHON:-python3 on PATH}." >&2
        echo "Install one, or name it: make setup PYTHON=/path/to/python3.12" >&2
    fi
    return 1
}

python=$(find_python)
echo "Setting up .venv with $("$python" --version) (a minute or two, once) ..."
# From scratch, so that a package that left the lock leaves the environment too.
"$python" -m venv --clear .venv
.venv/bin/python -m pip install -qq --disable-pip-version-check --require-hashes -r requirements-dev.lock
.venv/bin/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e .
touch .venv/.installed
echo "Ready: .venv/bin/boomerang"
