"""KV as the simulation sees it: what a block was computed from, and who holds which block.

A token's KV depends on every token before it, as they were when it was computed. So a block's *value* is a
digest over the value of the block before it and its own tokens: equal value, equal KV; and KV that was
computed on top of wrong KV is wrong too. What a prompt's blocks ought to be is ``chain`` over its own tokens.
What a prefix cache believes them to be is the key that it files them under. The two part where wrong KV was
pulled (T1), and that is what the engines check at every use.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b

import msgspec

TOKEN_BYTES = 4


class Kv(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The KV of one block: its value, the context it was computed on, and the tokens it was computed of."""

    value: bytes
    before: bytes
    content: bytes
    """Little-endian u32 per token; for media, ids made of what they show instead of the placeholder."""

    @property
    def tokens(self) -> int:
        return len(self.content) // TOKEN_BYTES


Key = tuple[str, bytes]
"""What a prefix cache files a block under: the request's salt, and the value the block ought to have."""


def _digest(*parts: bytes) -> bytes:
    state = blake2b(digest_size=8, person=b"sim-kv")
    for part in parts:
        state.update(part)
    return state.digest()


@lru_cache(maxsize=131_072)
def make(before: bytes, content: bytes) -> Kv:
    """The KV of ``content`` on top of the context ``before``."""
    return Kv(_digest(before, content), before, content)


def origin(adapter: str) -> bytes:
    """The context of the first block: nothing but the LoRA adapter."""
    return _digest(b"origin", adapter.encode())


@lru_cache(maxsize=512)
def chain(content: bytes, block_size: int, start: bytes) -> tuple[Kv, ...]:
    """What the blocks of a prompt ought to be; the last one may be partly filled."""
    width = block_size * TOKEN_BYTES
    before, kvs = start, []
    for offset in range(0, len(content), width):
        kv = make(before, content[offset : offset + width])
        kvs.append(kv)
        before = kv.value
    return tuple(kvs)


def cut(kv: Kv, tokens: int) -> Kv:
    """The first ``tokens`` positions of a block. Positions that were never computed are garbage."""
    if kv.tokens == tokens:
        return kv
    if kv.tokens < tokens:
        return garbage(b"never computed", kv.value)
    return make(kv.before, kv.content[: tokens * TOKEN_BYTES])


def garbage(*cause: bytes) -> Kv:
    """KV that is nobody's."""
    return Kv(_digest(b"garbage", *cause), b"", b"")


def differing(actual: Sequence[Kv], expected: Sequence[Kv]) -> int | None:
    """Index of the first block whose value is not the expected one; None where all agree."""
    for index, (have, want) in enumerate(zip(actual, expected, strict=False)):
        if have is not want and have.value != want.value:
            return index
    return None


def extend(actual: Sequence[Kv], expected: Sequence[Kv], tokens: int, block_size: int) -> list[Kv]:
    """Compute the rest of a prompt on top of what is there: the values of all its blocks.

    ``actual`` holds the blocks of the first ``tokens`` tokens, ``expected`` those of the whole prompt. On
    clean blocks the rest comes out as expected; on wrong ones every later block is wrong.
    """
    present = list(expected[: len(actual)])
    if actual and tokens % block_size:
        present[-1] = cut(present[-1], tokens % block_size)
    first = differing(actual, present)
    if first is None:
        return list(expected)
    context = expected[first - 1].value if first else b""
    for kv in actual[first:]:
        context = _digest(b"mixed", context, kv.value)
    result = list(actual)
    if tokens % block_size and len(actual) <= len(expected):
        result[-1] = make(context, expected[len(actual) - 1].content)
        context = result[-1].value
    for want in expected[len(actual) :]:
        result.append(make(context, want.content))
        context = result[-1].value
    return result


def context_value(actual: Sequence[Kv], expected: Sequence[Kv]) -> tuple[bytes, bool]:
    """What the next token depends on, and whether that is what it ought to be."""
    first = differing(actual, expected)
    if first is None:
        return expected[-1].value, True
    context = b""
    for kv in actual[first:]:
        context = _digest(b"mixed", context, kv.value)
    return context, False


class BlockPool:
    """The KV blocks of one engine: reference counts, prefix cache, least recently used eviction.

    A free block keeps its content until somebody else gets it if the prefix cache knows it; else it counts as
    overwritten at once. Block 0 is never given out, as in vLLM.
    """

    def __init__(self, num_blocks: int, block_size: int, *, caching: bool) -> None:
        self.num_blocks, self.block_size, self.caching = num_blocks, block_size, caching
        self._kv: list[Kv | None] = [None] * num_blocks
        self._uses = [0] * num_blocks
        self._key: list[Key | None] = [None] * num_blocks
        self._cache: dict[Key, int] = {}
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks))
        self._overwrites = 0

    @property
    def free_blocks(self) -> int:
        return len(self._free)

    @property
    def usage(self) -> float:
        """Share of the blocks that somebody holds, 0 to 1."""
        return 1.0 - len(self._free) / max(self.num_blocks - 1, 1)

    def read(self, block: int) -> Kv:
        """What is in a block now; garbage for one that was overwritten or does not exist."""
        kv = self._kv[block] if 0 <= block < self.num_blocks else None
        return (
            kv
            if kv is not None
            else garbage(block.to_bytes(8, "little"), self._overwrites.to_bytes(8, "little"))
        )

    def hits(self, salt: str, expected: Sequence[Kv], limit: int) -> list[int]:
        """The cached blocks that a prompt begins with, at most ``limit``; the caller now holds them."""
        found: list[int] = []
        if self.caching:
            for want in expected[:limit]:
                block = self._cache.get((salt, want.value))
                if block is None:
                    break
                found.append(block)
            for block in found:
                if not self._uses[block]:
                    del self._free[block]
                self._uses[block] += 1
        return found

    def allocate(self, count: int) -> list[int] | None:
        """``count`` blocks with nothing in them, or None where there are not as many free ones."""
        if count > len(self._free):
            return None
        taken: list[int] = []
        for _ in range(count):
            block, _ = self._free.popitem(last=False)
            self._uses[block] = 1
            self._forget(block)
            taken.append(block)
        return taken

    def write(self, block: int, kv: Kv) -> None:
        self._kv[block] = kv

    def file(self, block: int, salt: str, expected: Kv) -> None:
        """Let later prompts find a full block under the value that it ought to have."""
        key = (salt, expected.value)
        if self.caching and self._key[block] is None and key not in self._cache:
            self._cache[key] = block
            self._key[block] = key

    def release(self, blocks: Sequence[int]) -> None:
        """Give blocks up; a prompt's end is evicted before its beginning."""
        for block in reversed(blocks):
            self._uses[block] -= 1
            if self._uses[block]:
                continue
            self._free[block] = None
            if self._key[block] is None:
                self._forget(block)

    def clear(self) -> None:
        """Forget the prefix cache; blocks in use stay where they are."""
        for block in self._cache.values():
            self._key[block] = None
        self._cache.clear()

    def _forget(self, block: int) -> None:
        self._overwrites += 1
        self._kv[block] = None
        key = self._key[block]
        if key is not None:
            del self._cache[key]
            self._key[block] = None
