"""The boundaries of a chat history: which messages there are, and the chained digest after each. Pure."""

import re
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from hashlib import sha256
from itertools import accumulate
from operator import itemgetter
from typing import Any, Final

import msgspec

from router.turn.canonical import canonical, encode, holds_media, media_excess_bytes
from router.turn.plain import NO_TEXT, PlainMessage, read_plain
from router.turn.prefixes import STRIDE_BYTES, Prefixes, Stride, Walk

KEY_BYTES: Final = 16
MAX_VALUES: Final = 100_000
"""JSON values in what is read of one request; a real history has ten or so in a message.

Each costs microseconds and a hundred bytes, while all other turns wait: 64 MB of empty messages are 40 s and
4 GB. Beyond it the turn is cold. What is known of a history's beginning is not read, and does not count.
"""

_STRINGS: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_decode_messages: Final = msgspec.json.Decoder(list[dict[str, Any]]).decode
_GOES_ON: Final = re.compile(rb"[ \t\r\n]*,[ \t\r\n]*(?=\{)")
_BETWEEN: Final = re.compile(rb'\}[ \t\r\n]*,[ \t\r\n]*(?=\{[ \t\r\n]*["}])')
"""Between two messages, or two of what a message is made of; seldom in a text, which a bare quote ends."""
_PLAIN_VALUES: Final = 3
"""What a plain message counts: itself, its role, its text; and each mention of a function in its calls."""
_NO_STRIDE: Final = Stride(0, b"", array("Q"), 0, 0, ())
_MAX_KINDS: Final = 64
"""Of names, roles and types in one history; real ones have twenty or so."""
_MAX_KIND_CHARS: Final = 64
_ANYTHING: Final = "…"
"""Stands for all kinds of a history that has too many of them, or one that is too long: no chat's."""


class TooFine(ValueError):
    """More than ``MAX_VALUES`` values would have to be read."""


def require_coarse(documents: Sequence[bytes]) -> None:
    """Raises TooFine for documents that have more than ``MAX_VALUES`` values in all."""
    if sum(map(len, documents)) <= MAX_VALUES:  # a value has a byte at least
        return
    if len(documents) + sum(map(_marks, documents)) <= MAX_VALUES:
        return
    # Most of them may stand in texts.
    if len(documents) + sum(_marks(_STRINGS.sub(b"", raw)) for raw in documents) > MAX_VALUES:
        raise TooFine


def _marks(document: bytes) -> int:
    """About how many values there are: each but the first of its container has a comma before it."""
    return document.count(b",") + document.count(b"[") + document.count(b"{")


class History:
    """A history as far as it has been read. Depths count from its first message, 1 being after that one."""

    __slots__ = ("_forms", "_kinds", "_last", "keys", "media_depths", "own_depth", "sizes_bytes")

    def __init__(self, scope: bytes, shown_bytes: int, known: Sequence[Stride] = ()) -> None:
        last = known[-1] if known else _NO_STRIDE
        self.keys: list[bytes] = []
        """``KEY_BYTES`` each: the digest of all that stands before a boundary."""
        self.sizes_bytes: list[int] = []
        """Cumulative size of the canonical history up to each boundary, ``shown_bytes`` counted first."""
        for stride in known:
            keys = stride.keys
            self.keys += [keys[at : at + KEY_BYTES] for at in range(0, len(keys), KEY_BYTES)]
            self.sizes_bytes += stride.sizes_bytes
        self.own_depth = last.own_depth
        """Depth of the first user message; 0: none."""
        self.media_depths = [last.media_depth]
        """Depths of messages with media, after the last known one's or a 0."""
        self._last = self.keys[-1] if self.keys else scope, (self.sizes_bytes or [shown_bytes])[-1]
        self._forms: set[tuple[object, ...]] = set()
        self._kinds = {kind: 0 for stride in known for kind in stride.kinds}
        """By the depth that each was first met at; 0: before what is read now."""

    @property
    def shape(self) -> frozenset[str]:
        """What kind of messages there are: names of their members, roles, types of content.

        All histories with very many kinds have one shape: what is kept of a request is bounded.
        """
        return frozenset((_ANYTHING,) if self._has_any_kind() else self._kinds)

    def _has_any_kind(self) -> bool:
        return len(self._kinds) > _MAX_KINDS or _ANYTHING in self._kinds

    def _note_kinds(self, kinds: Iterable[str], depth: int) -> None:
        for kind in kinds:
            if self._has_any_kind():
                return
            self._kinds.setdefault(kind if len(kind) <= _MAX_KIND_CHARS else _ANYTHING, depth)

    def add(self, messages: Iterable[dict[str, Any]]) -> None:
        """Go on by some messages. Raises UnicodeError for what has no canonical form."""
        depth = len(self.keys)
        key, size_bytes = self._last
        for given in messages:
            depth += 1
            message = canonical(given)
            encoded = encode(message)
            key = sha256(key + encoded).digest()[:KEY_BYTES]
            size_bytes += len(encoded)
            content, role = message.get("content"), message.get("role")
            if holds_media(message):
                self.media_depths.append(depth)
                size_bytes -= media_excess_bytes(content)
            if not self.own_depth and role == "user":
                self.own_depth = depth
            # A role that is no text is none: an engine refuses it.
            form = (*message, "", role if isinstance(role, str) else type(role), type(content))
            if form not in self._forms and not self._has_any_kind():
                self._forms.add(form)
                told = role if isinstance(role, str) else type(role).__name__
                self._note_kinds((*message, f"role={told}, {type(content).__name__}"), depth)
            self.keys.append(key)
            self.sizes_bytes.append(size_bytes)
        self._last = key, size_bytes

    def add_plain(self, messages: Sequence[PlainMessage], encoded: Sequence[bytes]) -> None:
        """Go on by messages of texts alone, whose canonical forms are given."""
        depth = len(self.keys)
        key, size_bytes = self._last
        keep = self.keys.append
        for form in encoded:
            key = sha256(key + form).digest()[:KEY_BYTES]
            keep(key)
        sizes_bytes = list(accumulate(map(len, encoded), initial=size_bytes))
        self.sizes_bytes += sizes_bytes[1:]
        self._last = key, sizes_bytes[-1]
        if not self.own_depth:
            users = (at for at, message in enumerate(messages, depth + 1) if message.role == "user")
            self.own_depth = next(users, 0)
        kinds = [
            (
                message.role,
                message.content is NO_TEXT,
                message.tool_calls is None,
                message.tool_call_id is None,
                message.name is None,
                message.reasoning is None,
                message.reasoning_content is None,
                message.refusal is None,
            )
            for message in messages
        ]
        if self._forms.issuperset(kinds) or self._has_any_kind():
            return
        # One pass for all of them: a client may write thousands of roles.
        first_at = dict(zip(reversed(kinds), range(len(kinds) - 1, -1, -1), strict=True))
        for kind in first_at.keys() - self._forms:
            if self._has_any_kind():
                return
            self._forms.add(kind)
            at = first_at[kind]
            told = "NoneType" if messages[at].content is NO_TEXT else "str"
            self._note_kinds((*messages[at].names(), f"role={messages[at].role}, {told}"), depth + at + 1)

    def between(self, start: int, end: int, resume_at: int) -> Stride:
        """A stride in which the messages after depth ``start``, up to ``end``, have ended."""
        return Stride(
            resume_at,
            b"".join(self.keys[start:end]),
            array("Q", self.sizes_bytes[start:end]),
            self.own_depth if self.own_depth <= end else 0,
            max(depth for depth in self.media_depths if depth <= end),
            tuple(kind for kind, depth in self._kinds.items() if start < depth <= end),
        )


def read_history(scope: bytes, raw: msgspec.Raw, shown_bytes: int, prefixes: Prefixes | None) -> History:
    """Read a list of messages, from where it is not known yet.

    Raises TooFine, and what msgspec raises, RecursionError and UnicodeError for what is no list of messages.
    """
    view = memoryview(raw)
    walk = Walk((), ()) if prefixes is None else prefixes.walk(scope, view)
    history = History(scope, shown_bytes, walk.known)
    known_depth = len(history.keys)
    resume_at = walk.known[-1].resume_at if walk.known else 0
    reader = _Reader(history, view, resume_at)
    reader.read(STRIDE_BYTES if prefixes is None else prefixes.stride_bytes)
    if prefixes is not None and len(walk.digests) > len(walk.known):
        _learn(prefixes, walk, history, known_depth, reader.ends)
    return history


class _Reader:
    """Reads messages in pieces of about a stride: what one takes of memory, the next one takes again.

    A piece ends where a message seems to. Where that is inside of a text or of a message, a quote or a
    bracket is open, and the piece is no JSON: so what could be read has ended where a message does.
    """

    def __init__(self, history: History, data: memoryview, resume_at: int) -> None:
        self.ends: list[tuple[int, int]] = []
        """Offset and depth of the end of each piece but the last, in rising order."""
        self._history = history
        self._data = data
        self._at = resume_at
        """Where the next piece begins: with a bracket, with a message, or with what follows a known one."""
        self._values = 0
        self._is_coarse = False
        self._odd_in_a_row = 0
        self._pass_over = 0
        """So many pieces are not tried as plain ones: where some were not, the next one seldom is."""

    def read(self, stride_bytes: int) -> None:
        """Read all. Raises what ``read_history`` does."""
        lead = b""
        if self._at:
            # Behind a message stands a comma or the end: an empty one before that makes a list of the rest.
            goes_on = _GOES_ON.match(self._data, self._at)
            if goes_on is None:
                _decode_messages(b"".join((b"[{}", self._data[self._at :])))
                return
            lead, self._at = b"[", goes_on.end()
        least_bytes = 0
        first = self._at // stride_bytes * stride_bytes
        for window in range(first, len(self._data) - stride_bytes, stride_bytes):
            found = _seeming_end(self._data, max(window, self._at), window + stride_bytes)
            if found is None or found[0] - self._at < least_bytes:
                continue
            end, begin = found
            try:
                self._add(b"".join((lead, self._data[self._at : end], b"]")))
            except msgspec.ValidationError:
                raise
            except msgspec.DecodeError:
                # Not the end of a message. Twice as much at the next try keeps all tries linear.
                least_bytes = 2 * (end - self._at)
                continue
            self.ends.append((end, len(self._history.keys)))
            lead, self._at, least_bytes = b"[", begin, 0
        self._add(b"".join((lead, self._data[self._at :])))

    def _add(self, messages: bytes) -> None:
        if len(messages) > MAX_VALUES:
            require_coarse([messages])  # no stride's end was one of a message: it may be all of a body
        plain = read_plain(messages) if not self._pass_over else None
        if plain is not None:
            self._odd_in_a_row = 0
            self._values += _PLAIN_VALUES * (len(plain[0]) + messages.count(b'"function"'))
            if self._values > MAX_VALUES:
                raise TooFine
            self._history.add_plain(*plain)
            return
        if self._pass_over:
            self._pass_over -= 1
        else:
            self._odd_in_a_row += 1
            self._pass_over = self._odd_in_a_row - 1
        if not self._is_coarse:
            require_coarse([self._data[self._at :].tobytes()])
            self._is_coarse = True
        self._history.add(_decode_messages(messages))


def _seeming_end(data: memoryview, start: int, stop: int) -> tuple[int, int] | None:
    """Where the last message seems to end in a part of a list, and where the one after it begins."""
    part = data[start:stop].tobytes()
    at = part.rfind(b'},{"')
    if at >= 0:
        return start + at + 1, start + at + 2
    last = None
    for found in _BETWEEN.finditer(part):
        last = found
    return None if last is None else (start + last.start() + 1, start + last.end())


def _learn(
    prefixes: Prefixes, walk: Walk, history: History, known_depth: int, ends: Sequence[tuple[int, int]]
) -> None:
    """Remember what has been read at each whole stride; ``ends`` are offsets and depths of messages' ends."""
    resume_at = walk.known[-1].resume_at if walk.known else 0
    depth, strides = known_depth, []
    for number in range(len(walk.known) + 1, len(walk.digests) + 1):
        before = depth
        count = bisect_right(ends, number * prefixes.stride_bytes, key=itemgetter(0))
        if count:
            resume_at, depth = ends[count - 1]
        strides.append(history.between(before, depth, resume_at))
    prefixes.learn(walk.digests[len(walk.known) :], strides)
