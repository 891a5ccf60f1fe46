"""Chained token digests: what is known of the tokens behind a handle, and its one wire format.

A handle says where KV is; it does not say of which tokens. The digests do: one 64-bit value per stride of
tokens, each chained to the one before, so that equal values at stride ``n`` mean equal tokens from the start
up to the end of stride ``n``. A closing value covers the tokens past the last whole stride.

The wire format (the *stamp*) is what an engine plugin puts into ``kv_transfer_params`` under
``STAMP_FIELD``, and what the simulated engines speak:

    {"v": 1, "kind": "tokens", "stride": 128, "tokens": 3357, "root": "<16 hex>",
     "digests": "<base64 of little-endian u64, one per whole stride>", "tail": "<16 hex>"}

``kind`` is ``tokens`` for the digests of this module, or ``blocks`` where an engine stamps its own block
hashes (``stride`` is then a multiple of its block size, each value the first 8 bytes of a hash, ``root``
names algorithm and seed, and ``tail`` is empty: an engine does not hash a partial block).
``tests/turn/stamp_vectors.json`` holds the vectors that every implementation has to pass.
"""

from __future__ import annotations

import sys
from array import array
from base64 import b64encode
from binascii import a2b_base64, unhexlify
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, Self

STAMP_FIELD: Final = "boomerang"
STAMP_VERSION: Final = 1
STRIDE_TOKENS: Final = 128
DIGEST_BYTES: Final = 8
MAX_STAMP_TOKENS: Final = 16_777_216
_PERSON: Final = b"boomerang-tok-1"


def root(extra: bytes = b"") -> bytes:
    """The value every chain begins with. ``extra`` is what else the KV depends on (LoRA, salt, images)."""
    return blake2b(extra, digest_size=DIGEST_BYTES, person=_PERSON).digest()


def pack(ids: Iterable[int]) -> array[int]:
    """Token ids as unsigned 32-bit integers. Raises OverflowError for an id outside of that range."""
    packed = ids if isinstance(ids, array) and ids.typecode == "I" else array("I", ids)
    if packed.itemsize != 4:  # pragma: no cover - no supported platform has another size
        raise OverflowError("unsigned int is not 32 bits wide here")
    return packed


def _little_endian(ids: array[int]) -> bytes:
    if sys.byteorder == "big":  # pragma: no cover - the digest is defined on little-endian bytes
        ids = array("I", ids)
        ids.byteswap()
    return ids.tobytes()


def link(previous: bytes, tokens_le: bytes | memoryview) -> bytes:
    """One link of the chain: the digest of little-endian u32 tokens after ``previous``."""
    state = blake2b(previous, digest_size=DIGEST_BYTES, person=_PERSON)
    state.update(tokens_le)
    return state.digest()


@dataclass(frozen=True, slots=True)
class Digests:
    """The chained digests of ``tokens`` tokens.

    ``links`` holds ``DIGEST_BYTES`` per whole stride; ``tail`` the chained digest of the rest, empty where
    there is no rest or the stamping side does not cover it.
    """

    tokens: int
    links: bytes
    tail: bytes
    stride: int = STRIDE_TOKENS
    root: bytes = root()

    @property
    def strides(self) -> int:
        return len(self.links) // DIGEST_BYTES

    def common(self, ids: array[int]) -> int:
        """How many leading tokens of ``ids`` are proven to be the held ones.

        Whole strides, or all ``self.tokens`` where the tail agrees too. Never more than ``len(ids)``.
        """
        raw = memoryview(_little_endian(ids))
        width = self.stride * 4
        previous, proven = self.root, 0
        for index in range(min(self.strides, len(ids) // self.stride)):
            previous = link(previous, raw[index * width : (index + 1) * width])
            if previous != self.links[index * DIGEST_BYTES : (index + 1) * DIGEST_BYTES]:
                return proven
            proven += self.stride
        reached = proven == self.strides * self.stride and len(ids) >= self.tokens
        if reached and self.tail and link(previous, raw[proven * 4 : self.tokens * 4]) == self.tail:
            return self.tokens
        return proven

    def agrees(self, other: Self, tokens: int) -> bool:
        """Whether both chains were made of the same first ``tokens`` tokens, rounded up to a stride."""
        if self.stride != other.stride or self.root != other.root:
            return False
        end = -(-tokens // self.stride) * DIGEST_BYTES
        if end <= min(len(self.links), len(other.links)):
            return self.links[:end] == other.links[:end]
        covered = bool(self.tail) or self.tokens == self.strides * self.stride
        return covered and self == other

    def to_wire(self, kind: str = "tokens") -> dict[str, Any]:
        """The stamp, as a JSON-ready object."""
        return {
            "v": STAMP_VERSION,
            "kind": kind,
            "stride": self.stride,
            "tokens": self.tokens,
            "root": self.root.hex(),
            "digests": b64encode(self.links).decode(),
            "tail": self.tail.hex(),
        }

    @classmethod
    def from_wire(cls, stamp: object) -> Self:
        """Read a stamp. Raises ValueError for anything that is not a sound stamp of kind ``tokens``."""
        if not isinstance(stamp, dict) or stamp.get("kind") != "tokens":
            raise ValueError("not a token stamp")
        if type(stamp.get("v")) is not int or stamp["v"] != STAMP_VERSION:
            raise ValueError("not a stamp of a version known here")
        try:
            tokens, stride = stamp["tokens"], stamp["stride"]
            links = a2b_base64(stamp["digests"])
            tail, origin = unhexlify(stamp["tail"]), unhexlify(stamp["root"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"a stamp's field is missing or broken: {error}") from None
        if type(tokens) is not int or type(stride) is not int or stride < 1:
            raise ValueError("a stamp's tokens and stride are positive integers")
        if not 0 <= tokens <= MAX_STAMP_TOKENS or len(links) != tokens // stride * DIGEST_BYTES:
            raise ValueError("a stamp's digests do not cover its tokens")
        if b64encode(links).decode() != stamp["digests"]:  # decoders differ in what they overlook
            raise ValueError("a stamp's digests are not plain base64")
        if len(origin) != DIGEST_BYTES or len(tail) not in (0, DIGEST_BYTES):
            raise ValueError("a stamp's root or tail has a wrong size")
        if tail and tokens % stride == 0:
            raise ValueError("a stamp has a tail and no tokens for it")
        return cls(tokens, links, tail, stride, origin)


def chain(ids: Sequence[int] | array[int], *, start: bytes | None = None) -> Digests:
    """The digests of ``ids`` in strides of ``STRIDE_TOKENS``; linear, about 20 ns a token."""
    packed = pack(ids)
    raw = memoryview(_little_endian(packed))
    width = STRIDE_TOKENS * 4
    first = previous = root() if start is None else start
    links = bytearray()
    whole = len(packed) // STRIDE_TOKENS
    for index in range(whole):
        previous = link(previous, raw[index * width : (index + 1) * width])
        links += previous
    rest = raw[whole * width :]
    return Digests(len(packed), bytes(links), link(previous, rest) if rest else b"", STRIDE_TOKENS, first)
