"""What a long history costs of a turn's way to its first leg: each step, at each size.

    python -m bench.lineage

*read* finds the body's top-level members; *lineage* is that of a history of which nothing is known, *next
turn* that of one that has grown by an answer and a question; *legs* makes the bodies of both legs.
Milliseconds, the least of `--repeat` runs, on one core. Exit code 1 where a next turn costs more than it may.
"""

import argparse
import sys
import time
from typing import Final

from bench.loops import cases
from router.turn.legs import decode_body, prefill_body
from router.turn.request import Endpoint, read_request

SIZES: Final = (8_000, 100_000, 400_000, 1_000_000, 4_000_000)
AT_MOST_MS: Final = {400_000: 2.0, 4_000_000: 15.0}
"""Of all that a next turn's history costs."""

MALLOC_KEEPS_BYTES: Final = 30_000_000
"""A little less than what the GNU C library's malloc would keep at most."""


def least_ms(loop: cases.Loop, repeat: int) -> float:
    """The least time of one run, in milliseconds."""
    times = []
    for _ in range(repeat):
        began_s = time.perf_counter()
        loop()
        times.append(time.perf_counter() - began_s)
    return 1e3 * min(times)


def settle_malloc() -> None:
    """Have malloc keep what is freed, as it does in a process that has served a large request before.

    Up to the size of the largest block that it has given back to the system it asks for no fresh pages again
    (mallopt(3), M_MMAP_THRESHOLD). Else each run of a loop waits for these: 0.5 ms a MB on a virtual machine.
    """
    bytes(MALLOC_KEEPS_BYTES)


def costs_ms(size_bytes: int, repeat: int) -> tuple[float, float, float, float]:
    """Reading, lineage at first sight, lineage of a next turn, both legs' bodies."""
    request = read_request(Endpoint.CHAT, "/v1/chat/completions", (), cases.body(size_bytes), turn_id="t")

    def legs() -> None:
        # One after the other, as a turn sends them.
        prefill_body(request, b"{}", want_token_ids=False)
        decode_body(request, b"{}", want_token_ids=False)

    loops = (
        cases.read(size_bytes),
        cases.lineage_at_first_sight(size_bytes),
        cases.lineage_of_next_turn(size_bytes),
        legs,
    )
    read_ms, first_ms, next_ms, legs_ms = (least_ms(loop, repeat) for loop in loops)
    return read_ms, first_ms, next_ms, legs_ms


def main(repeat: int) -> int:
    """Measure, print, judge; the exit code."""
    settle_malloc()
    print("| history | messages | read | lineage | next turn | legs | a next turn, in all |")
    print("|---|---|---|---|---|---|---|")
    too_much = False
    for size_bytes in SIZES:
        read_ms, first_ms, next_ms, legs_ms = costs_ms(size_bytes, repeat)
        total_ms = read_ms + next_ms + legs_ms
        print(
            f"| {size_bytes / 1e3:,.0f} KB | {size_bytes // cases.MESSAGE_BYTES:,} | {read_ms:.2f} "
            f"| {first_ms:.2f} | {next_ms:.2f} | {legs_ms:.2f} | {total_ms:.2f} |",
            flush=True,
        )
        too_much = too_much or total_ms > AT_MOST_MS.get(size_bytes, total_ms)
    return 1 if too_much else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--repeat", type=int, default=20)
    sys.exit(main(parser.parse_args().repeat))
