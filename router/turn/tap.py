"""Lifts the handle out of an engine's answer, and touches nothing else.

The engine's bytes go to the client as they come. On the way the tap reads what the router needs (the handle,
token ids, how the answer ended, usage) and takes out what is not for the client:

* `kv_transfer_params` and `ec_transfer_params`: they name block ids, hosts and ports. Cut out of a streamed
  event, as if the engine had not sent them; set to `null` in a whole body, where vLLM writes `null` when
  there are none.
* token ids that the router asked for and the client did not: set to `null`, which is what vLLM (read in 0.32)
  sends there, streamed or not, to a client that does not ask.

So the client gets what it would get from the engine alone. A member that is `null` already stays.

How events are read. Most events of a stream hold nothing for the router; they are not parsed. The cheap tests
on their bytes are sound for every way to write JSON: a name is there literally, or it is spelled with an
escape, and every escape of an ASCII letter begins with `\\u00`. Only what may hold something is parsed, and
only the bytes of the private members are edited. What comes out depends on the stream alone, not on how it
was split into chunks: an event goes on when it is complete, so that half an event is never glued to what the
router says after it.

Most events differ from the one before in nothing but a text without quotes or escapes. Such a text cannot
change what the rest of its event is, so that an event which is alike needs no other test.
"""

import json
import re
from typing import Final

from router.engines.whole_chunks import MAX_BYTES
from router.turn.private import (
    ESCAPED_ASCII,
    PARAMS_BEGIN,
    PRIVATE_MARK,
    TapSettings,
    find_private,
    in_event,
    may_hold_params,
    may_need_edits,
    nothing_left,
    only_params,
)
from router.turn.reading import Answer, Reading
from router.turn.splice import apply
from router.turn.sse import Event, Framer, ends_event
from router.values import value

__all__ = ["Answer", "Lifted", "Tap", "TapEnd", "TapSettings", "error_event", "lift", "read"]

_MESSAGES = "/v1/messages"
_COMPACT_IDS = re.compile(rb'(token_ids":)\[[0-9,]*+\]')
_DONE = b"[DONE]"
_TEXT_BEGINS = b'"content":"'
TEXT: Final = re.compile(rb'[^"\\\x00-\x1f]*+(?:\\["\\/bfnrt][^"\\\x00-\x1f]*+)*+')
"""Inside of a JSON string, with short escapes at most: it ends neither its string nor its event."""
_MAX_LESSONS = 8
"""Streams whose events are never alike are not to be learned from for ever."""


@value(kw_only=True)
class TapEnd:
    """A stream that is over. It is complete if the engine said so (`[DONE]`) and reported no error.

    `dropped_bytes` of an event that broke off were not given to the client. An incomplete stream needs an
    `error_event`, unless `done` or `answer.error` says that the engine has ended it itself.
    """

    answer: Answer
    done: bool
    dropped_bytes: int

    @property
    def complete(self) -> bool:
        return self.done and self.answer.error is None


@value(kw_only=True)
class Lifted:
    """A whole answer: the bytes for the client, and what the router read in it."""

    body: bytes
    answer: Answer


class Tap:
    """Sits between an engine's streamed answer and the client. `feed` it the chunks, then `finish` it once.

    Holds at most one incomplete event, besides the token ids that it collects.
    """

    __slots__ = (
        "_before_text",
        "_behind_text",
        "_framer",
        "_lessons",
        "_max_event_bytes",
        "_reading",
        "_settings",
        "_withheld",
        "done",
    )

    def __init__(self, settings: TapSettings) -> None:
        self._settings = settings
        self._max_event_bytes = settings.max_event_bytes
        self._framer = Framer(max_event_bytes=settings.max_event_bytes)
        self._reading = Reading(lift_token_ids=settings.lift_token_ids)
        self.done = False
        """Whether the engine has said that the stream is over (`[DONE]`)."""
        self._withheld = False
        self._lessons = 0
        self._before_text: bytes | None = None
        self._behind_text = b""

    @property
    def alike(self) -> tuple[bytes, bytes] | None:
        """What is before and behind the text of events that need not be fed: ``TEXT`` between them is plain.

        Of events as large as a chunk may be that passes by the parser. Holds until the next ``feed``.
        """
        if self._before_text is None or not self._framer.at_rest or self._max_event_bytes < MAX_BYTES:
            return None
        return self._before_text, self._behind_text

    @property
    def saw_content(self) -> bool:
        """Whether an event with generated content (text, reasoning, a tool call) has passed."""
        return self._reading.saw_content

    def feed(self, chunk: bytes) -> bytes:
        """The bytes to forward now; empty while an event is incomplete.

        Raises `EventTooLarge`; the stream is then to be treated as broken off.
        """
        not_plain: bytes | None = None
        if self._framer.at_rest and len(chunk) <= self._max_event_bytes:
            begin = self._before_text
            if begin is not None and chunk.startswith(begin) and chunk.endswith(self._behind_text):
                text_end = len(chunk) - len(self._behind_text)
                if TEXT.fullmatch(chunk, len(begin), text_end) is not None:
                    return chunk
            if ends_event(chunk):
                if self._is_plain(chunk):
                    if self._lessons < _MAX_LESSONS:
                        self._learn(chunk)
                    return chunk
                not_plain = chunk
        events = self._framer.feed(chunk)
        if len(events) == 1:
            return self._forward(events[0], not_plain)
        return b"".join([self._forward(event, not_plain) for event in events])

    def answer(self) -> Answer:
        """What has been read so far."""
        return self._reading.answer()

    def finish(self) -> TapEnd:
        """What was read, once the engine has closed the stream or it broke off."""
        return TapEnd(answer=self._reading.answer(), done=self.done, dropped_bytes=len(self._framer.tail))

    def _is_plain(self, events: bytes) -> bool:
        """Whether these bytes (of whole events) surely hold nothing to read or to take out.

        Nothing in a JSON string can look like one of these names in quotes: inside a string the quotes are
        escaped.
        """
        return (
            self._reading.saw_content
            and not self._settings.lift_token_ids
            and not self._settings.hide_token_ids
            and events.find(PRIVATE_MARK) < 0
            and events.find(ESCAPED_ASCII) < 0
            and events.find(b'"error"') < 0
            and events.find(_DONE) < 0
            and events.count(b'"finish_reason"') == events.count(b'"finish_reason":null')
            and (events.find(b'"usage"') < 0 or events.count(b'"usage"') == events.count(b'"usage":null'))
        )

    def _learn(self, events: bytes) -> None:
        """Take events that are plain for the pattern of those to come."""
        self._lessons += 1
        start = events.find(_TEXT_BEGINS) + len(_TEXT_BEGINS)
        text = TEXT.match(events, start) if start >= len(_TEXT_BEGINS) else None
        if text is not None and events.startswith(b'"', text.end()):
            self._before_text, self._behind_text = events[:start], events[text.end() :]

    def _forward(self, event: Event, not_plain: bytes | None) -> bytes:
        """What the client gets of an event. ``not_plain`` was looked at already, as a whole."""
        if event.start and event.is_remainder:
            return b"" if self._withheld else event.raw
        is_plain = event.raw is not not_plain and self._is_plain(event.raw)
        forwarded = event.raw if is_plain else self._read(event)
        self._withheld = not forwarded
        return forwarded

    def _read(self, event: Event) -> bytes:
        """Reads the event and gives what the client gets of it; empty if that is nothing."""
        raw = event.raw
        spans = event.data_spans()
        if len(spans) == 1:
            start, end = spans[0]
            data = raw[start:end]
        else:
            data = b"\n".join([raw[start:end] for start, end in spans])
        if not data.startswith(b"{"):
            if not data or data.isspace():
                return raw
            if data.startswith(_DONE):
                self.done = True
                return raw
        seen = self._reading.read(data)
        if not may_need_edits(data, self._settings):
            return raw
        if seen.content and not may_hold_params(raw):
            # The usual event of a stream with token ids: every mention of them is a member where they belong.
            hidden, edits = _COMPACT_IDS.subn(rb"\1null", raw)
            if edits == seen.id_lists and raw.count(b"token_ids") == seen.id_members:
                return hidden
        if seen.params is not None and (seen.content or seen.ends) and len(spans) == 1:
            cut = self._cut_of(data, seen.params)
            if cut is not None:
                self._reading.params = seen.params
                return raw[: spans[0][0] + cut[0]] + raw[spans[0][0] + cut[1] :]
        try:
            private = find_private(data, self._settings, blank=False)
            # A reason to end is for the client, and most handles come with one.
            may_go = bool(private.edits) and not (seen.content or seen.ends)
            is_withheld = may_go and nothing_left(data, private.found, self._settings)
        except ValueError:
            # No JSON object, so no client can read it; but it must not show what it may hold.
            return b"" if may_hold_params(data) else raw
        self._reading.params = private.params or self._reading.params
        if is_withheld:
            return b""
        if not private.edits:
            return raw
        return apply(raw, in_event(private.edits, spans))

    def _cut_of(self, data: bytes, params: bytes) -> tuple[int, int] | None:
        """What is to be cut out of a document that holds nothing private but ``params``, written compactly.

        None where that takes a closer look. As ``removal``: a member goes with one comma.
        """
        settings = self._settings
        if settings.expose_params or settings.hide_token_ids:
            return None
        value_start = only_params(data, params)
        if value_start is None:
            return None
        start, end = value_start - len(PARAMS_BEGIN), value_start + len(params)
        if data.startswith(b",", end):
            return start, end + 1
        if data.startswith(b"}", end) and data.startswith(b",", start - 1):
            return start - 1, end
        return None


def lift(body: bytes, settings: TapSettings) -> Lifted:
    """Reads a whole (not streamed) answer and takes out what is not for the client.

    Raises `ValueError` when the body is not a JSON object.
    """
    reading = Reading(lift_token_ids=settings.lift_token_ids)
    seen = reading.read(body)
    if not reading.unreadable and not may_need_edits(body, settings):
        return Lifted(body=body, answer=reading.answer())
    if seen.params is not None and not (settings.expose_params or settings.hide_token_ids):
        start = only_params(body, seen.params)
        if start is not None:
            reading.params = seen.params
            edited = body[:start] + b"null" + body[start + len(seen.params) :]
            return Lifted(body=edited, answer=reading.answer())
    private = find_private(body, settings, blank=True)
    reading.params = private.params
    return Lifted(body=apply(body, private.edits) if private.edits else body, answer=reading.answer())


def read(body: bytes, settings: TapSettings) -> Answer:
    """What `lift` reads, of a whole answer that goes to no client, so that nothing is to be taken out of it.

    Raises `ValueError` when the body is not a JSON object.
    """
    reading = Reading(lift_token_ids=settings.lift_token_ids)
    seen = reading.read(body)
    if reading.unreadable:
        return lift(body, settings).answer
    reading.params = seen.params
    return reading.answer()


def error_event(message: str, kind: str, code: int | str, path: str) -> bytes:
    """The end of a stream of `path` that failed, as vLLM sends it: an error object, then `[DONE]`.

    Send it between whole events only. `kind` is the error's `type`. The OpenAI client raises on the error
    object and never reads on to the `[DONE]`; clients that wait for a `[DONE]` do not hang. Anthropic's
    clients pass over events without a name, and would take the end after them for that of the message.
    """
    if path == _MESSAGES:
        named = {"type": "error", "error": {"type": "api_error", "message": message}}
        return b"event: error\ndata: " + json.dumps(named).encode() + b"\n\n"
    error = {"error": {"message": message, "type": kind, "param": None, "code": code}}
    return b"data: " + json.dumps(error).encode() + b"\n\ndata: [DONE]\n\n"
