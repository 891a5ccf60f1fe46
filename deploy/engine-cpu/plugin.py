#!/usr/bin/env python3
"""Install the vLLM plugin of this repository into a directory of its own: plugin.py DIR [--venv VENV]

vLLM's environment stays as it is; engines find the plugin where ``serve.py --plugin DIR`` puts DIR on their
path. Needs no network: the build tools are those of vLLM's own environment (made by install.sh).
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "vllm-plugin"


def install(venv: Path, target: Path) -> None:
    """Build and install with vLLM's own Python. Raises CalledProcessError; pip has said why by then."""
    with tempfile.TemporaryDirectory() as scratch:
        # A build leaves files beside what it builds.
        source = shutil.copytree(
            SOURCE, Path(scratch) / "source", ignore=shutil.ignore_patterns("tests", ".*", "__pycache__")
        )
        command = [str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
        command += ["--no-build-isolation", "--target", str(target), str(source)]
        subprocess.run(command, check=True, stdout=sys.stderr)  # noqa: S603 -- our own command, no shell


def main() -> None:
    home = Path(os.environ.get("BOOMERANG_ENGINE_HOME", str(Path.home() / ".cache" / "boomerang")))
    version = os.environ.get("BOOMERANG_VLLM_VERSION", "0.32.0")
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("target", type=Path, metavar="DIR")
    parser.add_argument("--venv", type=Path, default=home / f"vllm-{version}", help="made by install.sh")
    options = parser.parse_args()
    if not (options.venv / "bin" / "python").exists():
        sys.exit(f"plugin.py: no vLLM in {options.venv}: run install.sh first")
    try:
        install(options.venv, options.target)
    except subprocess.CalledProcessError as error:
        sys.exit(f"plugin.py: pip ended with status {error.returncode}")


if __name__ == "__main__":
    main()
