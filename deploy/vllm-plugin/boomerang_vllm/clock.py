"""Whether D still holds what a handle names. Pure, but for ``here``.

D's own deadline, ``remote_blocks_expiry_time``, is on the clock that Linux counts from the machine's boot: of
use where D and P share a machine, which its boot id tells. Elsewhere the stamp's wall clock time decides;
it may be wrong by as much as the two clocks differ, which costs a cold turn or leaves the refusal to vLLM.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

BOOT_FIELD = "boot"
EXPIRES_FIELD = "expires_unix_s"
TTL_FIELD = "ttl_s"
MARGIN_S = 7.0
"""vLLM refuses a read in the last 5 s; 2 s more for what is between the check and the read."""


@dataclass(frozen=True)
class Clock:
    """One moment, as a machine knows it."""

    boot: str
    """Names the machine's boot; empty where it has no such name."""
    monotonic_s: float
    unix_s: float


def _boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            # Only equality matters, and a machine's id is nobody's business.
            return blake2b(file.read().strip(), digest_size=8, person=b"boomerang-boot").hexdigest()
    except OSError:
        return ""


_BOOT = _boot()


def here() -> Clock:
    # perf_counter is what vLLM stamps the deadline with.
    return Clock(_BOOT, time.perf_counter(), time.time())


def stamped(ttl_s: float, now: Clock) -> dict[str, Any]:
    """The members of a stamp that say how long D keeps the blocks, from now on."""
    return {TTL_FIELD: ttl_s, EXPIRES_FIELD: round(now.unix_s + ttl_s, 3), BOOT_FIELD: now.boot}


def is_over(params: Mapping[str, Any], stamp: Mapping[str, Any], now: Clock) -> bool:
    """Whether a read that begins now would come too late."""
    deadline, boot = params.get("remote_blocks_expiry_time"), stamp.get(BOOT_FIELD)
    if isinstance(deadline, (int, float)) and boot and boot == now.boot:
        return now.monotonic_s + MARGIN_S >= deadline
    expires = stamp.get(EXPIRES_FIELD)
    return isinstance(expires, (int, float)) and now.unix_s + MARGIN_S >= expires
