"""A stream's bytes from D to the client: each piece goes on within the callback that it came with.

No task is woken for it. The turn's own task sleeps until there is something to wait for: a client that does
not read, a ledger that is to store the turn before the client may know that it is over, or the end.
"""

from collections.abc import Callable
from typing import Final

from router.engines.whole_chunks import HEADS
from router.turn.context import Client
from router.turn.record import Record
from router.turn.tap import TEXT, Tap

_is_text: Final = TEXT.fullmatch
_CHUNK_END: Final = b"\r\n"


class ClientStalls(Exception):
    """The client reads nothing of its answer, and keeps its connection all the same."""


class Forwarding:
    """The sink of one stream. Times on the ledger's clock, in seconds."""

    __slots__ = (
        "_before",
        "_behind",
        "_behind_bytes",
        "_has_begun",
        "_held",
        "_is_let_go",
        "_now",
        "_put",
        "_put_last",
        "_read_at_s",
        "_record",
        "_wire",
        "_writer",
        "waited_from_s",
    )

    def __init__(
        self, client: Client, wire: Tap, record: Record, now: Callable[[], float], waited_from_s: float
    ) -> None:
        self._put, self._put_last = client.put, client.put_last
        self._writer = client.chunk_writer
        self._wire, self._record, self._now = wire, record, now
        self._before: bytes | None = None
        """What is before the text of an event in a chunk that may take the shortcut; None: none may."""
        self._behind, self._behind_bytes = b"", 0
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
        self._before = None
        out = wire.feed(chunk)
        if wire.done and not self._is_let_go:
            self._held = out
            return False
        if out is chunk and self._has_begun:
            self._look_for_shortcut()
            return self._put(out, framed)
        return self._put_first(out)

    def shortcut(self, framed: bytes) -> bool:
        """Forward a chunk that is one more event like those before it; False where it may be another.

        Most events of a stream come this way, and little else happens to them: it is ``take``,
        ``whole_chunks``, ``Tap.feed`` and the client's ``put`` in one.
        """
        before, writer = self._before, self._writer
        if before is None or writer is None or writer.is_gone or writer.flow.write_paused:
            return False
        head = HEADS.get(len(framed))
        if (
            head is None
            or not framed.startswith(head)
            or not framed.startswith(before, len(head))
            or not framed.endswith(self._behind)
            or _is_text(framed, len(head) + len(before), len(framed) - self._behind_bytes) is None
        ):
            return False
        self.waited_from_s, self._read_at_s = self._read_at_s, self._now()
        writer.write(framed)
        return True

    def _look_for_shortcut(self) -> None:
        alike = self._wire.alike
        if alike is not None:
            self._before, self._behind = alike[0], alike[1] + _CHUNK_END
            self._behind_bytes = len(self._behind)

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
