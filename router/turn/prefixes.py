"""What is known of a history's beginning, by its bytes: of a next turn only what is new is read. Pure.

A client sends the same bytes again at each turn, and more behind them. So the raw history is digested in
fixed strides, each chained to the one before and all to the scope, and under each digest lies what reading
the bytes up to there has told: the boundaries that end in that stride, and where the last message ends. Equal
digests mean equal bytes in one scope, and equal bytes are read alike; a stride that differs in one byte is
read again, and so is all that follows it. It is a cache only: what is not known is read.
"""

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import sha256
from sys import getsizeof
from typing import Final, NamedTuple

STRIDE_BYTES: Final = 16_384
"""At most this much, and one message, is read again; a history of 400 KB has 25 of them."""
LIMIT_BYTES: Final = 16_777_216
"""About what all strides may take: enough for 400 MB of histories with messages of 1 KB."""
_STRIDE_COST_BYTES: Final = 600
"""A stride with its digest, its place in the order and its numbers, in CPython 3.11 (``sys.getsizeof``)."""


class Stride(NamedTuple):
    """What is known at the end of one stride. Offsets and depths count from the history's beginning."""

    resume_at: int
    """Where the last message ends that ends in this stride or before; 0: none has."""
    keys: bytes
    """Of the boundaries that end in this stride, one after the other."""
    sizes_bytes: "array[int]"
    own_depth: int
    media_depth: int
    kinds: tuple[str, ...]
    """What is new in this stride of the kinds that make a history's shape."""


class Walk(NamedTuple):
    """A history's digests at each whole stride, and what lies under the first of them without a gap."""

    digests: Sequence[bytes]
    known: Sequence[Stride]


class Prefixes:
    """Strides of histories, the most recently used ones. Not for several threads."""

    def __init__(self, *, stride_bytes: int = STRIDE_BYTES, limit_bytes: int = LIMIT_BYTES) -> None:
        self.stride_bytes = stride_bytes
        self.used_bytes = 0
        self._limit_bytes = limit_bytes
        self._strides: OrderedDict[bytes, Stride] = OrderedDict()

    def walk(self, scope: bytes, history: memoryview) -> Walk:
        """Follow a history as far as it is known. Costs one digest of all its bytes."""
        state = sha256(b"boomerang-prefix" + scope, usedforsecurity=False)
        digests = []
        for end in range(self.stride_bytes, len(history) + 1, self.stride_bytes):
            state.update(history[end - self.stride_bytes : end])
            digests.append(state.copy().digest())
        known = []
        for digest in digests:
            stride = self._strides.get(digest)
            if stride is None:
                break
            known.append(stride)
        # The first stride last: a chain is of no use without its beginning.
        for digest in reversed(digests[: len(known)]):
            self._strides.move_to_end(digest)
        return Walk(digests, known)

    def learn(self, digests: Sequence[bytes], strides: Sequence[Stride]) -> None:
        """Remember strides under their digests, given in the history's order."""
        for digest, stride in zip(reversed(digests), reversed(strides), strict=True):
            replaced = self._strides.pop(digest, None)
            self._strides[digest] = stride
            self.used_bytes += _cost_bytes(stride) - (0 if replaced is None else _cost_bytes(replaced))
        while self.used_bytes > self._limit_bytes:
            self.used_bytes -= _cost_bytes(self._strides.popitem(last=False)[1])

    def __len__(self) -> int:
        return len(self._strides)


def _cost_bytes(stride: Stride) -> int:
    boundaries = len(stride.keys) + stride.sizes_bytes.itemsize * len(stride.sizes_bytes)
    return _STRIDE_COST_BYTES + boundaries + sum(map(getsizeof, stride.kinds))
