"""Where a request goes, and its head as it goes over the wire. Pure."""

import functools
import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from router.engines.headers import are_headers, is_header, is_token
from router.engines.upstream import Call, Unsendable
from router.origin import parse_origin

_OF_THIS_HOP: Final = frozenset(
    {"connection", "content-length", "expect", "host", "keep-alive", "transfer-encoding"}
)
"""Ours to set. A second length would end a request where the engine thinks that another begins."""
_WITHOUT_BODY: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
"""Methods whose request has no content unless it says so; any other one tells the length also of nothing."""
_TARGET: Final = re.compile(r"/[\x21\x22\x24-\x7e]*")
"""Printable ASCII without blanks, and without a fragment, which does not belong on the wire."""


@dataclass(frozen=True, slots=True)
class Destination:
    """An engine's origin, taken apart."""

    origin: str
    host: str
    """A name or an address, without brackets; an IPv6 address may end in a zone."""
    port: int
    is_tls: bool
    authority: str
    """The ``host`` header: brackets around IPv6, no zone (RFC 6874, 1), no port that the scheme implies."""


@functools.lru_cache(maxsize=4096)
def destination(origin: str) -> Destination:
    """Raises Unsendable where ``origin`` is none."""
    try:
        parts = urlsplit(parse_origin(origin))
    except ValueError as error:
        raise Unsendable(f"not an origin: {error}") from None
    host, is_tls = parts.hostname or "", parts.scheme == "https"
    implied = 443 if is_tls else 80
    bare = host.partition("%")[0]
    authority = f"[{bare}]" if ":" in bare else bare
    if parts.port not in (None, implied):
        authority = f"{authority}:{parts.port}"
    return Destination(origin, host, parts.port or implied, is_tls, authority)


def sendable_headers(call: Call) -> list[tuple[str, str]]:
    """The headers that go on the wire, but for those of this hop.

    ``accept-encoding: identity`` is asked for unless the caller names an encoding. Raises Unsendable on what
    would not be a request line or a header, or would be more than one.
    """
    if not _TARGET.fullmatch(call.path) or not is_token(call.method):
        raise Unsendable(f"not a request line: {call.method!r} {call.path!r}")
    headers = []
    encoding_named = False
    if not are_headers(call.headers):
        first = next(name for name, value in call.headers if not is_header(name, value))
        raise Unsendable(f"not a header: {first!r}")
    for name, value in call.headers:
        lower = name.lower()
        if lower in _OF_THIS_HOP:
            continue
        encoding_named = encoding_named or lower == "accept-encoding"
        headers.append((name, value))
    if not encoding_named:
        headers.append(("accept-encoding", "identity"))
    return headers


def request_head(to: Destination, call: Call) -> bytes:
    """The request line and the headers, with the empty line. Raises Unsendable.

    Header text is bytes read as ISO-8859-1 and goes out as those bytes; text that cannot have been read so is
    written as UTF-8.
    """
    headers = sendable_headers(call)
    lines = [f"{call.method} {call.path} HTTP/1.1\r\nhost: {to.authority}\r\n"]
    lines += [f"{name}: {value}\r\n" for name, value in headers]
    if call.body or call.method not in _WITHOUT_BODY:
        lines.append(f"content-length: {len(call.body)}\r\n")
    lines.append("\r\n")
    try:
        return "".join(lines).encode("latin-1")
    except UnicodeEncodeError:
        return b"".join(map(_line, lines))


def _line(line: str) -> bytes:
    try:
        return line.encode("latin-1")
    except UnicodeEncodeError:
        pass
    try:
        return line.encode()
    except UnicodeEncodeError:
        raise Unsendable(f"not a header: {line.partition(':')[0]!r}") from None
