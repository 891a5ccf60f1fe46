"""Ledgers in Redis for tests that have a server of their own."""

import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

from router.ledger.address import parse_address
from router.ledger.connection import Access
from router.ledger.redis import RedisLedger

PATIENCE_S = 10.0
"""Tests share their processor: only those that are about time-outs have short ones."""


@contextlib.asynccontextmanager
async def redis_ledger(
    url: str,
    *,
    now: Callable[[], float] = time.time,
    prefix: str | None = None,
    turn_s: float = PATIENCE_S,
    answer_s: float = PATIENCE_S,
    access: dict[str, Any] | None = None,
    **options: Any,
) -> AsyncIterator[RedisLedger]:
    """A ledger with a prefix of its own, closed at the end."""
    reached = Access(parse_address(url), **{"connect_s": PATIENCE_S, "answer_s": answer_s, **(access or {})})
    ledger = RedisLedger(reached, now=now, prefix=prefix or f"t{uuid.uuid4().hex}", turn_s=turn_s, **options)
    try:
        yield ledger
    finally:
        await ledger.close()
