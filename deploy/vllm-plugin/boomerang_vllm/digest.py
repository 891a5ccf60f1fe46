"""Chained token digests, and what a stamp looks like on the wire.

The same format as the router's ``router/turn/digest.py``, which is where it is defined; this is an
implementation of its own, since the plugin has no dependencies, held to the same test vectors
(``tests/stamp_vectors.json``).

    {"v": 1, "kind": "tokens", "stride": 128, "tokens": 3357, "root": "<16 hex>",
     "digests": "<base64 of little-endian u64, one per whole stride>", "tail": "<16 hex>"}

A link is the digest of the link before and the stride's tokens as little-endian u32. Equal links therefore
mean equal tokens from the start on. Where media are in a stride, what they are follows its tokens: their
placeholder tokens are equal for any two pictures.
"""

from __future__ import annotations

import sys
from array import array
from base64 import b64encode
from binascii import a2b_base64, unhexlify
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

STAMP_FIELD = "boomerang"
STAMP_VERSION = 1
STRIDE_TOKENS = 128
DIGEST_BYTES = 8
MAX_STAMP_TOKENS = 16_777_216
_PERSON = b"boomerang-tok-1"
_TOKEN_BYTES = 4
_AT_ONCE_TOKENS = 8192


class NotAStamp(ValueError):
    """Not a sound stamp."""


def root(extra: bytes = b"") -> bytes:
    """Where a chain begins. ``extra`` is what else all of the KV depends on."""
    return blake2b(extra, digest_size=DIGEST_BYTES, person=_PERSON).digest()


def little_endian(ids: Sequence[int]) -> bytes:
    """Token ids as little-endian u32. Raises OverflowError or TypeError for what is not such an id."""
    packed = array("I", ids)
    if packed.itemsize != _TOKEN_BYTES:  # pragma: no cover - no supported platform has another size
        raise OverflowError("unsigned int is not 32 bits wide here")
    if sys.byteorder == "big":  # pragma: no cover - the digest is defined on little-endian bytes
        packed.byteswap()
    return packed.tobytes()


def _link(previous: bytes, tokens: memoryview, media: bytes) -> bytes:
    state = blake2b(previous, digest_size=DIGEST_BYTES, person=_PERSON)
    state.update(tokens)
    if media:
        state.update(media)
    return state.digest()


@dataclass(frozen=True)
class Stamp:
    """What D says of the tokens behind a handle. ``links`` holds DIGEST_BYTES per whole stride."""

    kind: str
    stride: int
    tokens: int
    root: bytes
    links: bytes
    tail: bytes

    @property
    def strides(self) -> int:
        return len(self.links) // DIGEST_BYTES

    def link(self, index: int) -> bytes:
        return self.links[index * DIGEST_BYTES : (index + 1) * DIGEST_BYTES]

    def to_wire(self) -> dict[str, Any]:
        return {
            "v": STAMP_VERSION,
            "kind": self.kind,
            "stride": self.stride,
            "tokens": self.tokens,
            "root": self.root.hex(),
            "digests": b64encode(self.links).decode(),
            "tail": self.tail.hex(),
        }


def from_wire(stamp: object) -> Stamp:
    """Read a stamp of either kind. Raises NotAStamp."""
    if not isinstance(stamp, dict):
        raise NotAStamp("not an object")
    kind, tokens, stride = stamp.get("kind"), stamp.get("tokens"), stamp.get("stride")
    if type(stamp.get("v")) is not int or stamp["v"] != STAMP_VERSION:
        raise NotAStamp("not of a version known here")
    if kind not in ("tokens", "blocks"):
        raise NotAStamp("not of a kind known here")
    if type(tokens) is not int or type(stride) is not int or stride < 1:
        raise NotAStamp("tokens and stride are positive integers")
    try:
        links = a2b_base64(stamp["digests"])
        tail, origin = unhexlify(stamp["tail"]), unhexlify(stamp["root"])
    except (KeyError, TypeError, ValueError) as error:
        raise NotAStamp(f"a field is missing or broken: {error}") from None
    if not 0 <= tokens <= MAX_STAMP_TOKENS or len(links) != tokens // stride * DIGEST_BYTES:
        raise NotAStamp("the digests do not cover the tokens")
    if b64encode(links).decode() != stamp["digests"]:  # decoders differ in what they overlook
        raise NotAStamp("the digests are not plain base64")
    if len(origin) != DIGEST_BYTES or len(tail) not in (0, DIGEST_BYTES):
        raise NotAStamp("root or tail has a wrong size")
    if tail and (tokens % stride == 0 or kind == "blocks"):
        raise NotAStamp("there is a tail and nothing for it")
    return Stamp(str(kind), stride, tokens, origin, links, tail)


def _strides(ids: Sequence[int], count: int, stride: int) -> Iterator[memoryview]:
    """The first ``count`` ids, stride by stride, the last one short where it has to be.

    Converted a few thousand at a time: memory for all of a long conversation would be new to the process at
    every call, which takes longer than the digests.
    """
    width, step = stride * _TOKEN_BYTES, max(1, _AT_ONCE_TOKENS // stride) * stride
    for start in range(0, count, step):
        raw = memoryview(little_endian(ids[start : min(start + step, count)]))
        for at in range(0, len(raw), width):
            yield raw[at : at + width]


def chain(ids: Sequence[int], count: int, origin: bytes, media: Mapping[int, bytes]) -> Stamp:
    """The stamp of the first ``count`` ids; ``media`` says per stride what is shown in it.

    Linear, about 20 ns a token.
    """
    whole = count // STRIDE_TOKENS
    links, previous, tail = bytearray(), origin, b""
    for index, tokens in enumerate(_strides(ids, count, STRIDE_TOKENS)):
        previous = _link(previous, tokens, media.get(index, b""))
        if index < whole:
            links += previous
        else:
            tail = previous
    return Stamp("tokens", STRIDE_TOKENS, count, origin, bytes(links), tail)


def proven(stamp: Stamp, ids: Sequence[int], count: int, origin: bytes, media: Mapping[int, bytes]) -> int:
    """How many of the first ``count`` ids are the held ones: whole strides, or all that is held.

    Stops at the first difference. Never more than ``count``.
    """
    if stamp.kind != "tokens" or stamp.root != origin:
        return 0
    reach = min(count, stamp.tokens)
    previous, found = origin, 0
    for index, tokens in enumerate(_strides(ids, reach, stamp.stride)):
        previous = _link(previous, tokens, media.get(index, b""))
        if index < stamp.strides:
            if len(tokens) < stamp.stride * _TOKEN_BYTES or previous != stamp.link(index):
                return found
            found += stamp.stride
        elif reach == stamp.tokens and previous == stamp.tail:
            return stamp.tokens
    return found
