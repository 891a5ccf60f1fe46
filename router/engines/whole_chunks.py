"""Chunks of a chunked body that arrive alone and whole, told from their bytes without a parser. Pure.

An engine writes each event as one chunk, and what a socket gives is mostly just that. Such bytes can go on as
they are. Only the plain way to write a chunk is known here (RFC 9112, 7.1: lower case, no leading zero, no
extension); for anything else there is the parser.
"""

from typing import Final

_END: Final = b"\r\n"
MAX_BYTES: Final = 65_536
"""Larger ones are left to the parser."""
_NONE: Final = b"\x00 no chunk"


def _head(total_bytes: int) -> bytes:
    """The one line that begins a chunk of so many bytes in all; of a size that there is none for, no line."""
    for digits in range(1, 5):
        size_bytes = total_bytes - digits - 2 * len(_END)
        if size_bytes > 0 and len(b"%x" % size_bytes) == digits:
            return b"%x\r\n" % size_bytes
    return _NONE


HEADS: Final[dict[int, bytes]] = {}
"""By the chunk's size in all; filled by ``body_of`` as sizes are met."""


def body_of(data: bytes) -> bytes | None:
    """The body of the one chunk that ``data`` is, if it is that and nothing besides; the last chunk is none.

    Only where a chunk may begin.
    """
    total_bytes = len(data)
    head = HEADS.get(total_bytes)
    if head is None:
        if total_bytes > MAX_BYTES:
            return None
        head = HEADS[total_bytes] = _head(total_bytes)
    if data.startswith(head) and data.endswith(_END):
        return data[len(head) : -2]
    return None
