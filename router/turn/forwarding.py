"""A stream's bytes from D to the client: each piece goes on within the callback that it came with.

No task is woken for it. The turn's own task sleeps until there is something to wait for: a client that does
not read, a ledger that is to store the turn before the client may know that it is over, or the end.
"""

from collections.abc import Callable

from router.turn.context import Client
from router.turn.record import Record
from router.turn.tap import Tap


class ClientStalls(Exception):
    """The client reads nothing of its answer, and keeps its connection all the same."""


class Forwarding:
    """The sink of one stream. Times on the ledger's clock, in seconds."""

    __slots__ = (
        "_has_begun",
        "_held",
        "_is_let_go",
        "_now",
        "_put",
        "_put_last",
        "_read_at_s",
        "_record",
        "_wire",
        "waited_from_s",
    )

    def __init__(
        self, client: Client, wire: Tap, record: Record, now: Callable[[], float], waited_from_s: float
    ) -> None:
        self._put, self._put_last = client.put, client.put_last
        self._wire, self._record, self._now = wire, record, now
        self._has_begun = False
        self._held = b""
        self._is_let_go = False
        self._read_at_s = waited_from_s
        self.waited_from_s = waited_from_s
        """When the wait for the newest piece began: what it tells was said after that."""

    @property
    def is_held(self) -> bool:
        """Whether the end has come, and is kept back until ``let_go``."""
        return self._wire.done and not self._is_let_go

    def take(self, chunk: bytes, framed: bytes | None) -> bool:
        """Forward a piece; False where something is to be waited for. Raises EventTooLarge.

        ``framed`` as a ``Sink`` is given it.
        """
        self.waited_from_s, self._read_at_s = self._read_at_s, self._now()
        wire = self._wire
        out = wire.feed(chunk)
        if wire.done and not self._is_let_go:
            self._held = out
            return False
        if out is chunk and self._has_begun:
            return self._put(out, framed)
        return self._put_first(out)

    def let_go(self) -> bool:
        """The end may go out; as ``take``."""
        self._is_let_go = True
        held, self._held = self._held, b""
        if self._has_begun:
            return not held or self._put_last(held)
        return self._put_first(held)

    def _put_first(self, out: bytes) -> bool:
        if not out:
            return True
        self._has_begun = True
        self._record.first_byte()
        return self._put(out, None)
