#!/usr/bin/env python3
"""Run the short form of the real-engine tests on several vLLM versions, and write the compatibility table.

    matrix.py [--versions 0.27.0 0.29.0 0.32.0] [--out docs/compatibility.md]

Run it with the Python that has the project's development requirements. Each version is installed by
install.sh (some gigabytes each) and tested by itself, one after the other. A version that does not install or
start is a row that says so. Exit status 0: the table is written, whatever it says.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
INSTALL = Path(__file__).resolve().parent / "install.sh"
MODULES = ("exchange", "check", "turns", "conversations", "wrong_handle")
SETUPS = (("stock", "no"), ("plugin", "yes"))
COLUMNS = (
    "vLLM",
    "plugin",
    "starts",
    "parts on",
    "streaming handle",
    "verified by",
    "turns that can reuse, and do",
    "wrong answers",
    "a wrong handle below the router",
    "tests failed",
)


@dataclass(frozen=True)
class Result:
    """What one version did."""

    version: str
    trouble: str = ""
    """Why there are no facts; empty where there are."""
    facts: dict[str, Any] = field(default_factory=dict)
    """As ``tests/engine/report.py`` writes them."""


def try_version(version: str) -> Result:
    """Install and test one version."""
    environment = os.environ | {"BOOMERANG_VLLM_VERSION": version}
    installed = subprocess.run(  # noqa: S603 -- our own script
        ["bash", str(INSTALL)],  # noqa: S607
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if installed.returncode != 0:
        return Result(version, _last_line(installed.stderr) or "does not install")
    with tempfile.TemporaryDirectory() as scratch:
        facts = Path(scratch) / "facts.json"
        modules = [str(ROOT / "tests" / "engine" / f"test_{name}.py") for name in MODULES]
        tested = subprocess.run(  # noqa: S603 -- our own tests
            [sys.executable, "-m", "pytest", "-q", *modules],
            cwd=ROOT,
            env=environment | {"BOOMERANG_REPORT_FACTS": str(facts), "BOOMERANG_CONVERSATIONS": "2"},
            capture_output=True,
            text=True,
            check=False,
        )
        sys.stderr.write(tested.stdout[-6000:])
        if not facts.exists():
            return Result(version, _last_line(tested.stdout) or "the tests did not run")
        return Result(version, facts=json.loads(facts.read_text()))


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1].replace("|", "/")[:200] if lines else ""


def rows(result: Result) -> list[tuple[str, ...]]:
    """One row for the stock engine, one with the plugin."""
    if result.trouble:
        return [(result.version, "", f"no: {result.trouble}", *([""] * (len(COLUMNS) - 3)))]
    made = []
    for setup, plugin in SETUPS:
        section = result.facts["setups"].get(setup, {})
        failed = [name for name in result.facts["failed"] if f"[{setup}" in name]
        if not section.get("turns"):
            made.append((result.version, plugin, "no", *([""] * (len(COLUMNS) - 4)), str(len(failed))))
            continue
        wrong = [text for name, text in section["notes"].items() if "a wrong handle" in name]
        made.append(
            (
                result.version,
                plugin,
                "yes",
                section["parts"] or "none",
                section["stream_handle"] or "not known",
                section["verify"] or "not known",
                f"{section['reused_turns']} of {section['later_turns']}",
                str(section["wrong_answers"]),
                wrong[0] if wrong else "not known",
                str(len(failed)),
            )
        )
    return made


def page(results: list[Result]) -> str:
    table = [COLUMNS, *(row for result in results for row in rows(result))]
    lines = ["| " + " | ".join(cell.replace("|", "/") for cell in row) + " |" for row in table]
    lines.insert(1, "|" + "---|" * len(COLUMNS))
    failed = [
        f"* {result.version}: `{name.rpartition('/')[2]}`"
        for result in results
        for name in result.facts.get("failed", ())
    ]
    parts = [HEAD, "\n".join(lines), LEGEND]
    if failed:
        parts.append("## Tests that failed\n\n" + "\n".join(failed))
    return "\n\n".join(parts) + "\n"


HEAD = """\
# Which vLLM versions work

Written by `make engine-matrix`: for each version one prefill and one decode node on a CPU, with NIXL, a tiny
random model, and the short form of the real-engine tests (`tests/engine`), once on the stock engines and once
with the plugin on both. Without the plugin only three turns are streamed, to show what streams lack."""

LEGEND = """\
* *parts on*: of the plugin, as the engines log it.
* *streaming handle*: how a streamed answer carries the handle of its turn: `native`, by the `plugin`, or
  `none` (then such a turn is not reused).
* *turns that can reuse, and do*: turns whose conversation has a handle that holds a part of their prompt.
* *wrong answers*: of all turns; each answer, and P's first token, is compared with a reference that is
  computed afterwards under a fresh cache salt.
* *a wrong handle below the router*: a proxy between router and P puts another conversation's handle into a
  prefill leg. Without the plugin nobody can notice, which shows that the comparison sees wrong KV.

Version 0.33, whose streams carry the handle by themselves, is not on the list: there is no build of it for
the CPU. Its streams are tested with simulated engines (`tests/e2e`)."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--versions", nargs="+", default=["0.27.0", "0.29.0", "0.32.0"], metavar="VERSION")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "compatibility.md")
    options = parser.parse_args()
    results = []
    for version in options.versions:
        sys.stderr.write(f"== vLLM {version}\n")
        results.append(try_version(version))
        # After each, so that a run that is broken off leaves what it has.
        options.out.write_text(page(results))
    sys.stderr.write(f"written: {options.out}\n")


if __name__ == "__main__":
    main()
