"""Which nodes an operator wants no new turns on. Pure.

The wish outlives the node's entry in the fleet: a node that a source lists no more, and then again, is still
drained. Several routers may hold the same wishes; of two about one node the later counts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

MAX_WISHES: Final = 4_096
"""Of more than that the oldest is forgotten."""
LIFTED_KEPT_S: Final = 604_800.0
"""How long it is remembered that a drain was lifted, a week: another router may still hold the older wish, or
have left it behind."""


@dataclass(frozen=True, slots=True)
class DrainWish:
    """What an operator wanted of a node last. ``why`` is None where the drain was lifted."""

    at_s: float
    why: str | None


@dataclass(slots=True)
class Drains:
    """Wishes by node key. Times are seconds on a clock that all routers of a shared ledger have in common."""

    _wishes: dict[str, DrainWish] = field(default_factory=dict)

    def why(self, key: str) -> str | None:
        """Why an operator wants a node drained; None where nobody does."""
        wish = self._wishes.get(key)
        return wish.why if wish is not None else None

    def drain(self, key: str, why: str, now_s: float) -> None:
        self._put(key, DrainWish(now_s, why))

    def lift(self, key: str, now_s: float) -> None:
        """Take a drain back; nothing where there was none."""
        if key in self._wishes:
            self._put(key, DrainWish(now_s, None))

    def told(self, now_s: float) -> Mapping[str, DrainWish]:
        """What others have to know."""
        for key, wish in tuple(self._wishes.items()):
            if wish.why is None and wish.at_s + LIFTED_KEPT_S <= now_s:
                del self._wishes[key]
        return dict(self._wishes)

    def hear(self, told: Mapping[str, DrainWish]) -> tuple[str, ...]:
        """Take over what another router was told later than this one; the keys of the nodes concerned."""
        news = [
            key for key, wish in told.items() if key not in self._wishes or self._wishes[key].at_s < wish.at_s
        ]
        for key in news:
            self._put(key, told[key])
        return tuple(news)

    def _put(self, key: str, wish: DrainWish) -> None:
        self._wishes.pop(key, None)  # it is the newest again, and goes last
        self._wishes[key] = wish
        while len(self._wishes) > MAX_WISHES:
            del self._wishes[next(iter(self._wishes))]
