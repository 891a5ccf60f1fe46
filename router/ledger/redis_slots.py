"""Where a branch lies in Redis: its slot, its keys, and what all parts of the ledger there share."""

import math
import re
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Final

from router.ledger.calls import Calls, OnCall, OnState
from router.ledger.codec import SCHEMA, NotAValue, decode_handle
from router.ledger.connection import Access
from router.ledger.store import Handle, OnLeft, forgotten

SLOT_TAGS: Final = 64
"""Enough to spread over a cluster; few enough to be asked one by one now and then."""
DEFAULT_TURN_S: Final = 0.05
_BRANCH: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{16})")


class Slots:
    """What the ledger in Redis is made of. Mutable; see ``router.ledger.redis`` for its parameters."""

    def __init__(
        self,
        access: Access,
        *,
        now: Callable[[], float],
        agree: Callable[[float, float], object] | None = None,
        on_state: OnState | None = None,
        on_call: OnCall | None = None,
        prefix: str = "boomerang",
        turn_s: float = DEFAULT_TURN_S,
        max_branches: int = 1_000_000,
        trace_ttl_s: float = 3600.0,
        max_siblings: int = 8,
        on_left: OnLeft = forgotten,
    ) -> None:
        limits = {
            "max_branches": max_branches,
            "trace_ttl_s": trace_ttl_s,
            "max_siblings": max_siblings,
            "turn_s": turn_s,
        }
        for name, limit in limits.items():
            if not limit > 0:
                raise ValueError(f"{name} has to be more than 0, not {limit}")
        if not prefix or set("{}") & set(prefix):
            raise ValueError("a prefix has at least one character, and no brace")
        self._calls = Calls(access, turn_s=turn_s, on_state=on_state, on_call=on_call)
        self._now = now
        self.on_left = on_left
        self._agree = agree
        self._prefix = f"{prefix}:{SCHEMA}:".encode()
        self._branches_per_tag = math.ceil(max_branches / SLOT_TAGS)
        self._trace_ttl_s = trace_ttl_s
        self._trace_ttl_ms = math.ceil(trace_ttl_s * 1000)
        self._max_siblings = max_siblings
        self._expired_handles = self._evicted_branches = self._evicted_handles = 0

    def servers_up(self) -> Mapping[str, bool]:
        """Whether each of the store's servers, by its address, is asked; those asked so far."""
        return self._calls.up()

    def _slot(self, tag: int) -> bytes:
        """What all keys of a slot begin with."""
        return self._prefix + b"{%02x}" % tag

    def _slots(self) -> list[bytes]:
        return [self._slot(tag) for tag in range(SLOT_TAGS)]


def tag_of(root: bytes) -> int:
    """The slot of a conversation's own opening."""
    return blake2b(root, digest_size=1).digest()[0] % SLOT_TAGS


def branch_name(slot: bytes, serial: bytes) -> str:
    """The id of a branch, which says where it lies."""
    return f"{slot[-3:-1].decode()}-{serial.hex()}"


def branch_place(branch: str) -> tuple[int, bytes] | None:
    """Tag and serial of a branch's id; None of what is no id of ours."""
    match = _BRANCH.fullmatch(branch)
    if match is None or int(match[1], 16) >= SLOT_TAGS:
        return None
    return int(match[1], 16), bytes.fromhex(match[2])


def read_handle(raw: bytes | None) -> Handle | None:
    """A handle as the store gave it; None where it is none."""
    if raw is None:
        return None
    try:
        return decode_handle(raw)
    except NotAValue:
        return None
