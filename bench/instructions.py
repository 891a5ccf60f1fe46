"""How many instructions each core loop takes, counted by callgrind, and whether that has grown.

    python -m bench.instructions [--update] [LOOP...]

A count is the same on an idle machine and on a busy one, so a change that costs 5 % shows. The committed
`bench/instructions.json` holds a baseline per environment (Python, machine, versions of what does the work in
C): in another one counts are told and not judged, but for those of one loop against another's, which hold
everywhere. `--update` writes the baseline of this environment. Exit code 1 where a loop takes more than it
may; without valgrind nothing is counted, which is said, and no failure.
"""

import argparse
import json
import os
import platform
import shutil
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Final

from bench.loops.cases import AT_MOST, LOOPS
from bench.loops.driver import LESS, MORE

BASELINE: Final = Path(__file__).with_name("instructions.json")
TOLERANCE: Final = 0.05
"""Two runs of one state differ by less than 0.5 %."""
TABLE: Final = "bench.loops.cases:LOOPS"
Counts = Mapping[str, int]


class NotCounted(Exception):
    """Valgrind is missing, or what ran under it failed."""


def environment() -> str:
    """What a count depends on besides the code: another one has another baseline."""
    return ", ".join(
        (
            f"{platform.python_implementation()} {platform.python_version()}",
            platform.machine(),
            ssl.OPENSSL_VERSION.partition(" ")[2].partition(" ")[0],
            f"msgspec {version('msgspec')}",
        )
    )


def counted(names: Sequence[str], table: str = TABLE) -> dict[str, int]:
    """Instructions per repetition of each loop. Raises NotCounted."""
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        raise NotCounted("valgrind is not installed")
    with tempfile.TemporaryDirectory(prefix="boomerang-count-") as folder:
        out = Path(folder) / "counts"
        command = [valgrind, "--tool=callgrind", "--dump-before=getppid", f"--callgrind-out-file={out}"]
        done = subprocess.run(
            [*command, sys.executable, "-m", "bench.loops.driver", table, *names],
            capture_output=True,
            text=True,
            check=False,
            cwd=Path(__file__).parent.parent,
            env=dict(os.environ, PYTHONHASHSEED="0", PYTHONDONTWRITEBYTECODE="1"),
        )
        # A dump is written before each mark, and a last one without a number at the end.
        dumps = [Path(f"{out}.{number}") for number in range(1, 3 * len(names) + 1)]
        if done.returncode or not all(dump.exists() for dump in dumps):
            raise NotCounted(f"the loops did not run: {done.stderr[-2000:]}")
        totals = [_total(dump) for dump in dumps]
    return {name: (totals[3 * at + 2] - totals[3 * at + 1]) // (MORE - LESS) for at, name in enumerate(names)}


def _total(dump: Path) -> int:
    line = next(line for line in dump.read_text().splitlines() if line.startswith("totals:"))
    return int(line.split()[1])


def grown(counts: Counts, baseline: Counts, tolerance: float = TOLERANCE) -> list[str]:
    """What takes more than it may, in words; nothing of loops that have no baseline."""
    over = [
        f"{name}: {count:,} instructions, {count / baseline[name] - 1:+.1%} over its baseline"
        for name, count in counts.items()
        if name in baseline and count > baseline[name] * (1 + tolerance)
    ]
    return over + [
        f"{name}: {counts[name] / counts[other]:.2f} times {other}, may be {most:g}"
        for name, other, most in AT_MOST
        if name in counts and other in counts and counts[name] > most * counts[other]
    ]


def main(names: Sequence[str], *, update: bool) -> int:
    """Count, tell, judge; the exit code."""
    where = environment()
    baselines: dict[str, dict[str, int]] = json.loads(BASELINE.read_text()) if BASELINE.exists() else {}
    baseline = baselines.get(where, {})
    try:
        counts = counted(names)
    except NotCounted as error:
        print(f"nothing was counted: {error}", file=sys.stderr)
        return 0 if shutil.which("valgrind") is None else 1
    print("| loop | instructions | of the baseline |\n|---|---|---|")
    for name, count in counts.items():
        share = f"{count / baseline[name]:.1%}" if name in baseline else "-"
        print(f"| {name} | {count:,} | {share} |")
    if update:
        baselines[where] = {**baseline, **counts}
        BASELINE.write_text(json.dumps(baselines, indent=2, sort_keys=True) + "\n")
        baseline = baselines[where]
    if not baseline:
        print(f"\nThere is no baseline for {where}: only loops against each other are judged.")
    over = grown(counts, baseline)
    print("\n" + ("\n".join(over) or "Nothing takes more than it may."))
    return 1 if over else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("loops", nargs="*", metavar="LOOP", help=f"of: {', '.join(LOOPS)}; none: all")
    parser.add_argument("--update", action="store_true", help="write the baseline of this environment")
    given = parser.parse_args()
    unknown = set(given.loops) - set(LOOPS)
    if unknown:
        parser.error(f"there is no loop {sorted(unknown)[0]!r}")
    sys.exit(main(given.loops or list(LOOPS), update=given.update))
