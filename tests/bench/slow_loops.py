"""For the test of the guard: one loop twice, and again after somebody has made it slower."""

from collections.abc import Callable

from router.turn.digest import chain

IDS = range(2_048)


def as_it_was() -> object:
    return chain(IDS)


def slower() -> object:
    return chain(IDS), sorted(IDS, reverse=True)


LOOPS: dict[str, Callable[[], Callable[[], object]]] = {
    "before": lambda: as_it_was,
    "again": lambda: as_it_was,
    "slower": lambda: slower,
}
