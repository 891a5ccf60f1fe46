"""Notes that routers leave for each other in Redis: one each, in one hash, which a router reads as a whole.

A router that is gone leaves its note behind for as long as a branch is remembered: what it has learned is
still true. There are never many: of more than ``MAX_NOTES`` the oldest go.
"""

import os
import struct
from collections.abc import Sequence
from typing import Any, Final

from router.ledger.redis_slots import Slots
from router.ledger.store import Note

MAX_NOTES: Final = 64
MAX_NOTE_BYTES: Final = 1_048_576
"""Of one note; a larger one is none of ours."""
_AT: Final = struct.Struct(">d")


class RedisBoard(Slots):
    """See ``router.ledger.store.Board``."""

    _name: bytes = b""

    async def exchange(self, mine: bytes) -> Sequence[Note]:
        self._name = self._name or os.urandom(8)
        key, now_s = self._slot(0) + b"N", self._now()
        *_, told = await self._calls.pipeline(
            key,
            [
                ("HSET", key, self._name, _AT.pack(now_s) + mine),
                ("PEXPIRE", key, self._trace_ttl_ms),
                ("HGETALL", key),
            ],
        )
        notes = sorted(_notes(told, now_s), key=lambda one: one[1].age_s)
        fresh = [one for one in notes[:MAX_NOTES] if one[1].age_s < self._trace_ttl_s]
        old = [name for name, _ in notes if name not in {name for name, _ in fresh}]
        if old:
            await self._calls.pipeline(key, [("HDEL", key, *old)])
        return [note for name, note in fresh if name != self._name and len(note.value) <= MAX_NOTE_BYTES]


def _notes(told: Any, now_s: float) -> list[tuple[bytes, Note]]:
    pairs = told.items() if isinstance(told, dict) else zip(told[0::2], told[1::2], strict=True)
    notes = []
    for name, raw in pairs:
        is_ours = len(raw) >= _AT.size
        at_s = _AT.unpack_from(raw)[0] if is_ours else float("-inf")
        # Clocks of two routers differ by a little.
        notes.append((name, Note(raw[_AT.size :], max(now_s - at_s, 0.0))))
    return notes
