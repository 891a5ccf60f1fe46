"""One HTTP/1.x answer, parsed from bytes as they come: what httptools leaves open is decided here. Pure.

What that is:

* **Where an answer ends.** httptools does not know the request's method (an answer to HEAD has no body,
  whatever its length says), has no end of input (a body without a length lasts until the connection ends),
  and goes on with the next answer by itself. A parser here serves one answer and takes nothing after it.
* **What is no HTTP.** Versions other than 1.0 and 1.1, statuses below 100, and codings of the transfer other
  than ``chunked``, which nobody here would undo, are faults; so are the heads and trailers that never end.
* **Interim answers** (1xx, RFC 9110, 15.2) are passed over. 101 is a fault: nobody asks for an upgrade.

A fault's text never quotes the engine's bytes, which may be of an answer.
"""

from typing import Final

import httptools

from router.engines.headers import is_token

_MAX_HEADERS: Final = 128
_MAX_FIELD_BYTES: Final = 16_384
"""Of a header's name and value."""
_MAX_UNPRODUCTIVE_BYTES: Final = 65_536
"""In a row that are no body: a head, chunk extensions, trailers. Nobody talks for ever of nothing."""
_VERSIONS: Final = ("1.1", "1.0")
_HEAD_END: Final = b"\r\n\r\n"


class _Stop(Exception):
    """Ends the parsing from within a callback."""


class AnswerParser:
    """Takes an answer's bytes with ``feed``, and their end with ``feed_end``.

    ``headers`` keep their order; names are lower case, and values ISO-8859-1, which maps each byte to itself,
    as ASGI does; they may hold control characters. ``pieces`` is the body that nobody has taken yet,
    ``size_bytes`` its size.
    """

    __slots__ = (
        "_header_count",
        "_is_interim",
        "_lasts_to_end",
        "_number_of_codings",
        "_parser",
        "_to_head",
        "_unproductive_bytes",
        "fault",
        "has_head",
        "headers",
        "is_between_chunks",
        "is_complete",
        "may_reuse",
        "pieces",
        "size_bytes",
        "status",
    )

    def __init__(self, *, to_head: bool = False) -> None:
        """``to_head``: the answer is to a HEAD request."""
        self.status = 0
        self.headers: list[tuple[str, str]] = []
        self.pieces: list[bytes] = []
        self.size_bytes = 0
        self.has_head = False
        self.is_complete = False
        self.is_between_chunks = False
        """Whether a chunk of the body may begin with the next byte."""
        self.may_reuse = False
        """Whether the connection may serve another request; settled when the answer is complete."""
        self.fault: str | None = None
        """What was wrong; nothing is taken any more. The body before it stands."""
        self._to_head = to_head
        self._is_interim = False
        self._lasts_to_end = True
        self._number_of_codings = 0
        self._header_count = 0
        self._unproductive_bytes = 0
        # It holds methods of this object: dropped at the end, so that no cycle keeps a body in memory.
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        # A control character in one header's value is no reason to lose the answer (RFC 9110, 5.5 leaves it
        # to the recipient): whoever passes headers on leaves it out. It lets blanks behind names in, too.
        self._parser.set_dangerous_leniencies(lenient_headers=True)

    def feed(self, data: bytes) -> None:
        """Take what came. Does nothing after the end or a fault."""
        parser = self._parser
        if parser is None:
            return
        self._unproductive_bytes += len(data)
        self.is_between_chunks = False
        try:
            parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if self.is_complete:
                self.may_reuse = False  # what came after the end was no answer either
            elif self.fault is None:
                self.fault = f"not HTTP: {error}"
        # Of what begins behind a chunk only its whole line ends like this, and that is told besides.
        self.is_between_chunks = self.is_between_chunks and not self.is_complete and data.endswith(b"\r\n")
        if self.is_complete:
            if self._to_head and not data.endswith(_HEAD_END[-len(data) :]):
                self.may_reuse = False
            self._parser = None
        elif self.fault is None and self._unproductive_bytes > _MAX_UNPRODUCTIVE_BYTES:
            self.fault = f"more than {_MAX_UNPRODUCTIVE_BYTES} bytes of head or trailers"
        if self.fault is not None:
            self._parser = None
            self.is_between_chunks = False

    def feed_end(self) -> None:
        """The engine has ended the connection in good order: the end of a body that has no other."""
        if self._parser is None:
            return
        self._parser = None
        if self.has_head and self._lasts_to_end:
            self.is_complete = True
        else:
            self.fault = "the connection ended before the answer did"

    def drop(self) -> None:
        """Take nothing any more."""
        self._parser = None
        self.is_between_chunks = False

    def take(self) -> bytes:
        """The body that nobody has taken yet."""
        pieces = self.pieces
        piece = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self.size_bytes = 0
        return piece

    # What httptools calls.

    def on_message_begin(self) -> None:
        if self.is_complete:
            self.may_reuse = False  # something follows that nobody asked for
            raise _Stop

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_count += 1
        if self._header_count > _MAX_HEADERS or len(name) + len(value) > _MAX_FIELD_BYTES:
            self._stop("too many headers, or one too large")
        key = name.decode("latin-1").lower()
        if not is_token(key):
            self._stop("a header's name that is none")
        if self.has_head:
            return  # a trailer: nobody asked for those (RFC 9110, 6.5.1)
        if key == "content-length":
            self._lasts_to_end = False
        elif key == "transfer-encoding":
            self._number_of_codings += 1
            if value.lower() != b"chunked" or self._number_of_codings > 1:
                self._stop("a transfer coding that is not understood")
            self._lasts_to_end = False
        self.headers.append((key, value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        parser = self._parser
        if parser is None or self.is_complete:
            raise _Stop
        status = parser.get_status_code()
        if parser.get_http_version() not in _VERSIONS or status < 100:
            self._stop("another version than HTTP/1.1 or 1.0, or no status")
        if status == 101:
            self._stop("answered 101, which nobody had asked for")
        self._header_count = 0
        if status < 200:
            self._is_interim = True
            return
        self.status = status
        self.has_head = True
        if status in (204, 304):
            self._lasts_to_end = False
        self.may_reuse = parser.should_keep_alive()
        if self._to_head:
            self.is_complete = True

    def on_body(self, body: bytes) -> None:
        if self.is_complete:
            self.may_reuse = False
            raise _Stop
        if self._is_interim:
            self._stop("an interim answer with a body")
        self._unproductive_bytes = 0
        self.pieces.append(body)
        self.size_bytes += len(body)

    def on_chunk_header(self) -> None:
        self.is_between_chunks = False

    def on_chunk_complete(self) -> None:
        self.is_between_chunks = True

    def on_message_complete(self) -> None:
        if self._is_interim:
            self._is_interim = False
            self._lasts_to_end = True
            self._number_of_codings = 0
            self._unproductive_bytes = 0
            self.headers.clear()
            return
        if self.is_complete and self._number_of_codings:
            self.may_reuse = False  # the answer to HEAD had a body all the same, if an empty one
        self.is_complete = True

    def _stop(self, fault: str) -> None:
        self.fault = fault
        raise _Stop
