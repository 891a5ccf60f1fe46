"""Stamps made of the engine's own block hashes.

vLLM hashes every full block of a request, chained, whenever a KV connector is there, and mixes in what else
the KV depends on: pictures, LoRA, embeddings. Taking every eighth costs nothing. But two engines hash alike
only with the same algorithm, the same first value and the same block size, so ``root`` names all three, and
only cryptographic algorithms are used: of others a hash proves little, and eight bytes of it less.
"""

from __future__ import annotations

from binascii import unhexlify
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from boomerang_vllm.digest import DIGEST_BYTES, STRIDE_TOKENS, NotAStamp, Stamp

ALGORITHMS = ("sha256", "sha256_cbor")
LAST_FIELD = "last"
"""In the stamp: the hash of the last full block, which seldom ends a stride."""
REST_FIELD = "rest"
"""In the stamp: a digest of the tokens past the last full block, which the engine does not hash."""
_PERSON = b"boomerang-blk-1"


@dataclass(frozen=True)
class Hashing:
    """How an engine hashes its blocks."""

    algorithm: str
    first: bytes
    """vLLM's ``NONE_HASH``: what every chain begins with."""
    block_tokens: int

    @property
    def root(self) -> bytes:
        text = f"{self.algorithm}\0{self.block_tokens}\0".encode()
        return blake2b(text + self.first, digest_size=DIGEST_BYTES, person=_PERSON).digest()

    @property
    def stride(self) -> int:
        """Tokens between two stamped hashes: every eighth block of 16, each one of 128."""
        return max(1, STRIDE_TOKENS // self.block_tokens) * self.block_tokens


def stamp(hashes: Sequence[bytes], held_tokens: int, hashing: Hashing) -> tuple[Stamp, str]:
    """The stamp of the first ``held_tokens`` tokens, and the hash of the last full block in hex.

    Raises NotAStamp where the hashes cannot be those of so many tokens.
    """
    blocks = held_tokens // hashing.block_tokens
    if len(hashes) < blocks:
        raise NotAStamp(f"{len(hashes)} hashes for {blocks} blocks")
    every = hashing.stride // hashing.block_tokens
    links = b"".join(_short(hashes[index]) for index in range(every - 1, blocks, every))
    last = _short(hashes[blocks - 1]).hex() if blocks % every else ""
    return Stamp("blocks", hashing.stride, held_tokens, hashing.root, links, b""), last


def rest(hashes: Sequence[bytes], hashing: Hashing, origin: bytes, ids: bytes, media: bytes) -> str:
    """The digest, in hex, of little-endian ``ids`` after the blocks of ``hashes``; empty without any.

    ``origin`` is what all of the KV depends on, for there may be no full block that says it.
    """
    if not ids:
        return ""
    state = blake2b(hashes[-1] if hashes else hashing.root, digest_size=DIGEST_BYTES, person=_PERSON)
    for part in (origin, ids, media):
        state.update(part)
    return state.hexdigest()


def proven(
    held: Stamp, wire: Mapping[str, Any], hashes: Sequence[bytes], prompt_tokens: int, hashing: Hashing
) -> int:
    """How many leading tokens of the prompt are the held ones, in whole hash blocks.

    Looks from the end: a hash covers everything before it.
    """
    if held.kind != "blocks" or held.root != hashing.root or held.stride != hashing.stride:
        return 0
    own = min(len(hashes), prompt_tokens // hashing.block_tokens)
    blocks = held.tokens // hashing.block_tokens
    last = _last(wire)
    if last and own >= blocks > 0 and _short(hashes[blocks - 1]) == last:
        return blocks * hashing.block_tokens
    every = hashing.stride // hashing.block_tokens
    low, high = 0, min(held.strides, own // every)
    while low < high:
        middle = (low + high + 1) // 2
        if _short(hashes[middle * every - 1]) == held.link(middle - 1):
            low = middle
        else:
            high = middle - 1
    return low * held.stride


def _short(block_hash: object) -> bytes:
    if not isinstance(block_hash, bytes) or len(block_hash) < DIGEST_BYTES:
        raise NotAStamp("the engine's block hashes are not bytes")
    return block_hash[:DIGEST_BYTES]


def _last(wire: Mapping[str, Any]) -> bytes:
    try:
        value = unhexlify(wire.get(LAST_FIELD, ""))
    except (TypeError, ValueError):
        return b""
    return value if len(value) == DIGEST_BYTES else b""
