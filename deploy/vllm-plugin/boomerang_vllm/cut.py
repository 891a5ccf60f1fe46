"""What may be read of a handle: all of it, its beginning, or nothing. Pure.

P takes as many blocks as it misses from the *end* of the remote list. A handle that holds more than is proven
must therefore be shortened, tokens and blocks together, to whole blocks; that is sound only with one KV cache
group, no decode context parallelism, equal block sizes, and a list that agrees with the count. Elsewhere a
handle goes whole, with a prompt longer than what is held and everything proven, or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_ADDRESS = ("remote_engine_id", "remote_request_id", "remote_host", "remote_port")


class Malformed(ValueError):
    """Not what a decode node returns; the engine might stumble over it."""


@dataclass(frozen=True)
class Claim:
    """What a handle says that it holds."""

    tokens: int
    groups: tuple[tuple[int, ...], ...]
    """Block ids per KV cache group, in the order of the tokens."""
    dcp_size: int

    @property
    def is_empty(self) -> bool:
        return self.tokens == 0 or not any(self.groups)


@dataclass(frozen=True)
class Side:
    """How a prefill node lays out KV."""

    block_tokens: int
    groups: int
    dcp_size: int


def is_handle(params: Mapping[str, Any] | None) -> bool:
    """Whether vLLM would read with these params as a prefill node."""
    return bool(
        params
        and params.get("do_remote_decode")
        and params.get("remote_block_ids")
        and all(name in params for name in _ADDRESS)
    )


def claim(params: Mapping[str, Any]) -> Claim:
    """Read a handle. Raises Malformed."""
    tokens, blocks = params.get("remote_num_tokens"), params.get("remote_block_ids")
    dcp = params.get("dcp_size", 1)
    if tokens is None:
        tokens = 0
    if type(tokens) is not int or tokens < 0:
        raise Malformed("remote_num_tokens is not a count")
    if not isinstance(blocks, (list, tuple)) or not all(isinstance(group, (list, tuple)) for group in blocks):
        raise Malformed("remote_block_ids is not a list of lists")
    # Written for speed: a long conversation has thousands of blocks.
    if any(group and (set(map(type, group)) != {int} or min(group) < 0) for group in blocks):
        raise Malformed("a block id is not a number")
    if type(dcp) is not int:
        raise Malformed("dcp_size is not a number")
    return Claim(tokens, tuple(tuple(group) for group in blocks), dcp)


def nothing(held: Claim | None) -> dict[str, Any]:
    """The members that leave nothing to read. P still tells D, which frees its blocks.

    The outer list stays: vLLM tells D nothing where ``remote_block_ids`` is empty.
    """
    groups = len(held.groups) if held is not None else 1
    return {"remote_num_tokens": 0, "remote_block_ids": [[] for _ in range(max(groups, 1))]}


def shorten(
    held: Claim, side: Side, *, proven_tokens: int, prompt_tokens: int, remote_block_tokens: int | None
) -> int:
    """How many of the held tokens may be read: ``held.tokens`` for all, or whole blocks, or 0.

    At least one token of the prompt is left for P to compute, which is what the answer comes from.
    """
    is_plain = len(held.groups) == 1 == side.groups and held.dcp_size == 1 == side.dcp_size
    is_alike = remote_block_tokens == side.block_tokens
    block = side.block_tokens
    if is_plain and is_alike and len(held.groups[0]) != -(-held.tokens // block):
        return 0
    if proven_tokens >= held.tokens and prompt_tokens > held.tokens:
        return held.tokens
    if not is_plain or not is_alike:
        return 0
    return max(0, min(proven_tokens, prompt_tokens - 1, held.tokens)) // block * block


def members(held: Claim, side: Side, tokens: int) -> dict[str, Any]:
    """The members with which a handle is read for its first ``tokens`` tokens, as ``shorten`` found them."""
    if tokens == held.tokens:
        return {}
    if tokens == 0:
        return nothing(held)
    return {
        "remote_num_tokens": tokens,
        "remote_block_ids": [list(held.groups[0][: tokens // side.block_tokens])],
    }


def trim(held: Claim, real_tokens: int, block_tokens: int, *, keeps_states: bool) -> dict[str, Any]:
    """On D: the members that bring a handle down to its real tokens.

    D counts positions that were computed ahead of the last real token (async scheduling, speculation).
    ``keeps_states``: the model keeps running states (Mamba), which belong to one position and to no other.
    """
    if real_tokens >= held.tokens or real_tokens < 1 or keeps_states:
        return {}
    keep, have = -(-real_tokens // block_tokens), -(-held.tokens // block_tokens)
    if keep == have:
        return {"remote_num_tokens": real_tokens}
    if len(held.groups) != 1 or held.dcp_size != 1 or len(held.groups[0]) != have:
        return {}
    return {"remote_num_tokens": real_tokens, "remote_block_ids": [list(held.groups[0][:keep])]}
