"""What runs under callgrind: each loop a few times, then some more times, with a mark between.

`os.getppid` is the mark: no loop calls it, and callgrind writes down and sets back its counts whenever it is
entered (`--dump-before=getppid`). Of a loop there are two counts, of `LESS` and of `MORE` repetitions; their
difference holds neither the start of Python nor what entering and leaving costs.
"""

import gc
import importlib
import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:  # what the loops need, they import
    from bench.loops.cases import Loop

LESS: Final = 2
MORE: Final = 6


def repeat(loop: "Loop", times: int) -> None:
    """Run a loop so many times."""
    for _ in range(times):
        loop()


def main(where: str, names: list[str]) -> None:
    """Run loops of ``where`` (``module:NAME`` of a table), each between its own marks."""
    module, _, table = where.partition(":")
    loops: Mapping[str, Callable[[], Loop]] = getattr(importlib.import_module(module), table)
    for name in names:
        loop = loops[name]()
        repeat(loop, LESS)  # what is made at first use is no part of it
        gc.collect()
        gc.disable()  # when a collection falls due is chance
        os.getppid()
        repeat(loop, LESS)
        os.getppid()
        repeat(loop, MORE)
        os.getppid()
        gc.enable()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
