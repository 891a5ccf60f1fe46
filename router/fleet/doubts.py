"""What the router no longer trusts for a while: pairs whose pull failed, models that render otherwise."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TypeVar

_Key = TypeVar("_Key", bound=Hashable)
_MAX_ENTRIES = 4096


@dataclass(slots=True)
class Doubts:
    """Cool-downs by pair (P, D) and by model. Bounded; times are seconds on the caller's clock."""

    pair_s: float = 30.0
    model_s: float = 3600.0
    _pairs: dict[tuple[str, str], float] = field(default_factory=dict)
    _models: dict[str, float] = field(default_factory=dict)

    def cool(self, prefill: str, decode: str, now_s: float) -> None:
        """No handle of ``decode`` goes to ``prefill`` until ``pair_s`` from now."""
        self._pairs.pop((prefill, decode), None)  # it is the newest again, and goes last
        self._trim(self._pairs, now_s)
        self._pairs[prefill, decode] = now_s + self.pair_s

    def cooling(self, now_s: float) -> frozenset[tuple[str, str]]:
        if not self._pairs:
            return frozenset()
        return frozenset(pair for pair, until_s in self._pairs.items() if until_s > now_s)

    def mistrust(self, model: str, now_s: float) -> None:
        """No handle is used for ``model`` until ``model_s`` from now."""
        self._models.pop(model, None)
        self._trim(self._models, now_s)
        self._models[model] = now_s + self.model_s

    def mistrusts(self, model: str, now_s: float) -> bool:
        return self._models.get(model, now_s) > now_s

    @staticmethod
    def _trim(entries: dict[_Key, float], now_s: float) -> None:
        if len(entries) < _MAX_ENTRIES:
            return
        for key in [key for key, until_s in entries.items() if until_s <= now_s]:
            del entries[key]
        while len(entries) >= _MAX_ENTRIES:
            del entries[next(iter(entries))]
