"""Blocks that an engine keeps after a request has finished, until a peer has read them."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, Literal

from router.sim.fabric import Kept

_REMEMBERED: Final = 100_000


@dataclass(slots=True)
class Pin:
    request_id: str
    blocks: list[int]
    tokens: int
    deadline_s: float | None
    """None: nothing ever frees it (T6)."""
    side: Literal["prefill", "decode"]
    reads: int = 0
    held: bool = False
    """A peer's heartbeats keep the lease alive."""


class Pins:
    """The pins of one engine, and what became of those that are gone."""

    def __init__(self) -> None:
        self.by_request: dict[str, Pin] = {}
        self._deadlines: list[tuple[float, str]] = []
        self._gone: OrderedDict[str, Kept] = OrderedDict()

    @property
    def tokens(self) -> int:
        return sum(pin.tokens for pin in self.by_request.values())

    def add(self, pin: Pin) -> None:
        self.by_request[pin.request_id] = pin
        if pin.deadline_s is not None:
            heapq.heappush(self._deadlines, (pin.deadline_s, pin.request_id))

    def state(self, request_id: str) -> Kept:
        pin = self.by_request.get(request_id)
        if pin is not None:
            return "used" if pin.reads else "kept"
        return self._gone.get(request_id, "unknown")

    def free(self, request_id: str) -> Pin | None:
        """A peer has read it. None where there is no such pin, or nothing can free it."""
        pin = self.by_request.get(request_id)
        if pin is None or pin.deadline_s is None:
            return None
        return self._drop(request_id, "used")

    def expired(self, now: float) -> list[Pin]:
        """Drop and return the pins whose time is over."""
        over: list[Pin] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            _, request_id = heapq.heappop(self._deadlines)
            pin = self.by_request.get(request_id)
            if pin is not None and not pin.held:
                over.append(self._drop(request_id, "expired"))
        return over

    def next_deadline(self) -> float | None:
        while self._deadlines and self._deadlines[0][1] not in self.by_request:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def _drop(self, request_id: str, state: Kept) -> Pin:
        self._gone[request_id] = state
        if len(self._gone) > _REMEMBERED:
            self._gone.popitem(last=False)
        return self.by_request.pop(request_id)
