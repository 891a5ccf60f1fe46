"""Server-sent events, framed on bytes.

Splits a byte stream into whole events without decoding it. Follows the grammar of the WHATWG HTML standard,
section "Server-sent events": lines end in LF, CR or CRLF, mixed as they like; a blank line ends an event;
`data` lines join with LF; one space after the colon is not part of the value; lines that begin with a colon
are comments; a byte order mark may open the stream. No other character ends a line (U+2028, U+0085, form feed
… are plain data), which is why nothing here uses `splitlines`.

Every byte of the stream is in exactly one event's `raw`, or in the tail that is not complete yet. So joining
what comes out gives back what went in.

A CR at the end of what has arrived already ends its line, so an event never waits for a byte that may not
come. If an LF follows after all, it belongs to that same line end; it comes out at once, as a *remainder* of
its own.
"""

import re
from typing import NamedTuple

DEFAULT_MAX_EVENT_BYTES = 16 * 1024 * 1024
"""An event is held in memory until it is complete. A first event can carry 100,000s of prompt token ids, at
about seven bytes each; more than this is a broken or hostile upstream."""

_LF, _CR = 0x0A, 0x0D
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_LINE_END = re.compile(rb"\r\n?|\n")
# The first line end must be whole (`?+`): the two bytes of a CRLF are not two line ends.
_BLANK_LINE = re.compile(rb"(?:\r\n?+|\n)(?:\r\n?|\n)")
# Of what was searched before, only a line end at its very end can be half of a match.
_OVERLAP_BYTES = 2


class EventTooLarge(ValueError):
    """One event is larger than the framer's limit."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"a server-sent event is larger than {limit_bytes} bytes")
        self.limit_bytes = limit_bytes


class Event(NamedTuple):
    """One complete event, or the remainder of the line end of the event before it.

    `raw` is every byte of it, its blank line included; its lines begin at `start` (past a byte order mark).
    """

    raw: bytes
    start: int = 0

    @property
    def is_remainder(self) -> bool:
        """Whether this is only the LF of a CRLF whose CR already ended the event before."""
        return self.start == len(self.raw)

    def data_spans(self) -> list[tuple[int, int]]:
        """Start and end in `raw` of the value of each `data` line; joined with LF they are the event's
        data."""
        raw, at = self
        size = len(raw)
        if not at and raw.startswith(b"data: ") and raw.find(b"\n") == size - 2 and raw.find(b"\r") < 0:
            return [(6, size - 2)]  # as engines write nearly all of them: one line of data, and a blank one
        spans: list[tuple[int, int]] = []
        while (line_end := _LINE_END.search(raw, at)) is not None:
            end = line_end.start()
            if raw.startswith(b"data", at, end):
                name_end = at + 4
                if name_end == end:
                    spans.append((end, end))
                elif raw.startswith(b":", name_end):
                    start = name_end + 1
                    spans.append((start + raw.startswith(b" ", start, end), end))
            at = line_end.end()
        return spans

    @property
    def data(self) -> bytes | None:
        """The event's data, or None if it has no `data` line (a comment, a blank line)."""
        spans = self.data_spans()
        return b"\n".join([self.raw[start:end] for start, end in spans]) if spans else None


class Framer:
    """Takes a stream's chunks, split anywhere, and gives its events as they become complete.

    `at_rest` says that everything so far came out, and nothing about the next byte depends on what came
    before. Then a caller may pass a chunk of whole events by the framer (`ends_event`), if it has no need to
    look at them singly.
    """

    __slots__ = ("_after_cr", "_at_start", "_held", "_max_event_bytes", "at_rest")

    def __init__(self, *, max_event_bytes: int = DEFAULT_MAX_EVENT_BYTES) -> None:
        if max_event_bytes < 1:
            raise ValueError("max_event_bytes must be at least 1")
        self._max_event_bytes = max_event_bytes
        self._held = bytearray()
        self._at_start = True
        self._after_cr = False
        self.at_rest = False

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that this chunk completes.

        Raises `EventTooLarge` when an event exceeds the limit, complete or not. The stream is then of no more
        use, and events that were complete in the same chunk are not given out.
        """
        if not chunk:
            return []
        events: list[Event] = []
        at = 0
        if self._after_cr:
            self._after_cr = False
            if chunk[0] == _LF:
                events.append(Event(b"\n", 1))
                at = 1
        if self._held:
            at = self._complete_held(chunk, events)
        size, has_cr, limit = len(chunk), chunk.find(b"\r") >= 0, self._max_event_bytes
        while at < size:
            start = self._lines_start(chunk, at) if self._at_start else at
            if has_cr or (start < size and chunk[start] == _LF):
                end = _event_end(chunk, start, start)
            else:
                # Lines that all end in LF, as nearly all do.
                blank = chunk.find(b"\n\n", start)
                end = None if blank < 0 else blank + 2
            if (size if end is None else end) - at > limit:
                raise EventTooLarge(limit)
            if end is None:
                self._held += chunk[at:]
                break
            events.append(Event(chunk if at == 0 and end == size else chunk[at:end], start - at))
            self._at_start = False
            at = end
        self._after_cr = not self._held and chunk[-1] == _CR
        self.at_rest = not (self._held or self._after_cr or self._at_start)
        return events

    @property
    def tail(self) -> bytes:
        """The bytes of the event that is not complete yet. A stream that ends here broke off inside it."""
        return bytes(self._held)

    def _complete_held(self, chunk: bytes, events: list[Event]) -> int:
        """Completes the held event if it can; gives where in the chunk the next one begins."""
        held = self._held
        before = len(held)
        held += chunk
        start = self._lines_start(held, 0)
        end = _event_end(held, start, max(start, before - _OVERLAP_BYTES))
        self._check_size(len(held) if end is None else end)
        if end is None:
            return len(chunk)
        events.append(Event(bytes(held[:end]), start))
        self._at_start = False
        held.clear()
        return end - before

    def _lines_start(self, buffer: bytes | bytearray, at: int) -> int:
        if self._at_start and buffer.startswith(_BYTE_ORDER_MARK, at):
            return at + len(_BYTE_ORDER_MARK)
        return at

    def _check_size(self, size_bytes: int) -> None:
        if size_bytes > self._max_event_bytes:
            raise EventTooLarge(self._max_event_bytes)


def ends_event(chunk: bytes) -> bool:
    """Whether a chunk that begins between events surely ends between events, with no line end left half-way.

    True for what servers send (`\\n\\n`, `\\r\\n\\r\\n`); False may also mean that it takes a closer look.
    """
    return chunk.endswith((b"\n\n", b"\r\n\r\n"))


def _event_end(buffer: bytes | bytearray, start: int, search_from: int) -> int | None:
    """Where the event whose lines begin at `start` ends, or None if it is not complete."""
    if start == len(buffer):
        return None
    first = buffer[start]
    if first in (_LF, _CR):
        # A blank line with nothing before it: an event without lines.
        return start + 1 + (first == _CR and buffer.startswith(b"\n", start + 1))
    match = _BLANK_LINE.search(buffer, search_from)
    return None if match is None else match.end()
