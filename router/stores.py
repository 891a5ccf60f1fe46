"""The ledger that the settings name, and the clock that goes with it."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from router.ledger.memory import MemoryLedger
from router.ledger.store import Board, Ledger, PinLedger
from router.setting_values import MEMORY
from router.settings import Settings
from router.telemetry.facts import Facts, StoreChanged

if TYPE_CHECKING:
    from router.ledger.calls import OnCall


@dataclass(frozen=True, slots=True)
class Store:
    """``now`` is the ledger's clock, in seconds: all times of a turn are taken by it."""

    ledger: Ledger
    now: Callable[[], float]
    pins: PinLedger | None
    """The ledger again, where it can tell what waits in it, and release."""
    servers_up: Callable[[], Mapping[str, bool]] = dict
    """Whether each server of a shared store, by its address, is asked."""
    board: Board | None = None
    """The ledger again, where several routers share it."""


def store_of(settings: Settings, facts: Facts, on_call: "OnCall | None" = None) -> Store:
    """Nothing is connected yet. ``on_call`` is told of each call of a shared store, and how long it took."""
    if settings.store == MEMORY:
        memory = MemoryLedger(
            max_branches=settings.max_branches,
            max_bytes=settings.max_ledger_bytes,
            trace_ttl_s=settings.trace_ttl_s,
            now=time.monotonic,
        )
        return Store(memory, time.monotonic, memory)
    return _shared(settings, facts, on_call)


def _shared(settings: Settings, facts: Facts, on_call: "OnCall | None") -> Store:
    # A client of Redis is a tenth of a second of start-up, and 10 MB.
    from router.ledger.address import parse_address
    from router.ledger.clock import SharedClock
    from router.ledger.connection import Access
    from router.ledger.redis import RedisLedger

    clock = SharedClock()
    ledger = RedisLedger(
        Access(
            parse_address(settings.store),
            connect_s=settings.store_connect_timeout_s,
            answer_s=max(1.0, settings.store_timeout_s),
            password_file=settings.store_password_file,
            ca_file=settings.store_ca_file,
        ),
        now=clock,
        agree=clock.agree,
        on_state=lambda server, up, reason: facts.publish(StoreChanged(server, up, reason)),
        on_call=on_call,
        prefix=settings.store_prefix,
        turn_s=settings.store_timeout_s,
        max_branches=settings.max_branches,
        trace_ttl_s=settings.trace_ttl_s,
    )
    return Store(ledger, clock, ledger, ledger.servers_up, ledger)
