"""What the router no longer trusts: pairs whose pull failed, models that render otherwise, tainted caches."""

import secrets
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from router.fleet.node import process_of

_Key = TypeVar("_Key", bound=Hashable)
_MAX_ENTRIES = 4096


@dataclass(frozen=True, slots=True)
class Doubted:
    """What one router doubts, for the others of its pool: until when, or which process under which salt."""

    pairs: Mapping[tuple[str, str], float] = field(default_factory=dict)
    models: Mapping[str, float] = field(default_factory=dict)
    tainted: Mapping[str, tuple[str | None, str]] = field(default_factory=dict)


@dataclass(slots=True)
class Doubts:
    """Cool-downs by pair (P, D) and by model. Bounded; times are seconds on the caller's clock."""

    pair_s: float = 30.0
    model_s: float = 3600.0
    _pairs: dict[tuple[str, str], float] = field(default_factory=dict)
    _models: dict[str, float] = field(default_factory=dict)
    _tainted: dict[str, tuple[str | None, str]] = field(default_factory=dict)
    _agreed: set[Hashable] = field(default_factory=set)
    _unconfirmed: dict[str, None] = field(default_factory=dict)

    def cool(self, prefill: str, decode: str, now_s: float) -> None:
        """No handle of ``decode`` goes to ``prefill`` until ``pair_s`` from now."""
        self._pairs.pop((prefill, decode), None)  # it is the newest again, and goes last
        _trim(self._pairs, now_s)
        self._pairs[prefill, decode] = now_s + self.pair_s

    def cooling(self, now_s: float) -> frozenset[tuple[str, str]]:
        if not self._pairs:
            return frozenset()
        return frozenset(pair for pair, until_s in self._pairs.items() if until_s > now_s)

    def cooling_s(self, now_s: float) -> dict[tuple[str, str], float]:
        """The pairs that cool, and for how many seconds more."""
        return {pair: until_s - now_s for pair, until_s in self._pairs.items() if until_s > now_s}

    def mistrusted_s(self, now_s: float) -> dict[str, float]:
        """The models that get no handles, and for how many seconds more."""
        return {model: until_s - now_s for model, until_s in self._models.items() if until_s > now_s}

    @property
    def tainted(self) -> tuple[str, ...]:
        """Origins of engines that are used under a salt of ours only."""
        return tuple(self._tainted)

    def mistrust(self, model: str, now_s: float) -> None:
        """No handle is used for ``model`` until ``model_s`` from now."""
        self._models.pop(model, None)
        _trim(self._models, now_s)
        self._models[model] = now_s + self.model_s

    def mistrusts(self, model: str, now_s: float) -> bool:
        return self._models.get(model, now_s) > now_s

    def agree(self, what: Hashable) -> None:
        """A comparison came out equal: ``what`` names engine process, model and kind of prompt."""
        if len(self._agreed) >= _MAX_ENTRIES:
            self._agreed.clear()  # all are on probation again: the safe direction
        self._agreed.add(what)

    def agreed(self, what: Hashable) -> bool:
        return what in self._agreed

    def unconfirmed(self, origin: str) -> None:
        """A handle went to an engine that is to verify it by itself, and no answer has shown that it did."""
        while len(self._unconfirmed) >= _MAX_ENTRIES and origin not in self._unconfirmed:
            self.taint(next(iter(self._unconfirmed)), None)  # nobody has heard of it since: as if it had not
            del self._unconfirmed[next(iter(self._unconfirmed))]
        self._unconfirmed[origin] = None

    def confirm(self, origin: str, *, verifies: bool) -> bool:
        """An answer of that engine came; False where a handle may have been read without being verified."""
        waited = origin in self._unconfirmed
        self._unconfirmed.pop(origin, None)
        return verifies or not waited

    def taint(self, origin: str, engine_id: str | None) -> None:
        """The engine at ``origin`` may hold wrong KV under right hashes: used under a salt of ours only."""
        self._taint(origin, process_of(engine_id), secrets.token_hex(16))

    def salt(self, origin: str, engine_id: str | None) -> str | None:
        """The salt that keeps requests away from what a tainted engine has cached; None for any other.

        A prefix cache lives as long as its engine's process, and so does this doubt.
        """
        tainted = self._tainted.get(origin) if self._tainted else None
        if tainted is None:
            return None
        process = process_of(engine_id)
        if None not in (tainted[0], process) and tainted[0] != process:
            del self._tainted[origin]
            return None
        return tainted[1]

    def told(self, now_s: float) -> Doubted:
        """What other routers of the pool have to know."""
        return Doubted(
            {pair: until_s for pair, until_s in self._pairs.items() if until_s > now_s},
            {model: until_s for model, until_s in self._models.items() if until_s > now_s},
            dict(self._tainted),
        )

    def hear(self, told: Doubted, now_s: float) -> None:
        """Doubt what another router of the pool doubts, for as long, and under the same salt."""
        _hear(self._pairs, told.pairs, now_s, self.pair_s)
        _hear(self._models, told.models, now_s, self.model_s)
        for origin, (process, salt) in told.tainted.items():
            if origin not in self._tainted:
                self._taint(origin, process, salt)

    def _taint(self, origin: str, process: str | None, salt: str) -> None:
        self._tainted.pop(origin, None)  # it is the newest again, and goes last
        # Nodes come and go under new addresses; an old one's cache has gone with it long since.
        while len(self._tainted) >= _MAX_ENTRIES:
            del self._tainted[next(iter(self._tainted))]
        self._tainted[origin] = process, salt


def _trim(entries: dict[_Key, float], now_s: float) -> None:
    if len(entries) < _MAX_ENTRIES:
        return
    for key in [key for key, until_s in entries.items() if until_s <= now_s]:
        del entries[key]
    while len(entries) >= _MAX_ENTRIES:
        del entries[next(iter(entries))]


def _hear(entries: dict[_Key, float], told: Mapping[_Key, float], now_s: float, longest_s: float) -> None:
    for key, told_s in told.items():
        until_s = min(told_s, now_s + longest_s)
        if until_s > max(entries.get(key, now_s), now_s):
            entries.pop(key, None)
            _trim(entries, now_s)
            entries[key] = until_s
