"""What a simulated engine remembers for tests: corruptions, aborts, requests. Frozen values."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Corruption(StrEnum):
    """A use of KV that is not the prompt's own."""

    FOREIGN_KV = "foreign_kv"
    """Pulled blocks are not the KV of the prompt's tokens."""
    EXPIRED_READ = "expired_read"
    """KV was read that nobody kept any more."""
    REPLAYED = "replayed"
    """KV was read a second time."""
    BAD_TRIM = "bad_trim"
    """The end-trim of the block list read the wrong blocks, or would have taken the engine down (T2)."""
    TAINTED_CACHE = "tainted_cache"
    """The engine's own prefix cache held wrong KV under the prompt's hashes (T1)."""


@dataclass(frozen=True, slots=True)
class CorruptionRecord:
    kind: Corruption
    request_id: str
    detail: str


@dataclass(frozen=True, slots=True)
class AbortRecord:
    """A request that its client left. ``phase`` is ``waiting``, ``prefill`` or ``decode``."""

    request_id: str
    path: str
    phase: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Received:
    path: str
    headers: dict[str, str]
    body: Any
    at_s: float
