"""What a node is: read off the connector's scheduler object when it is first needed.

Not at start-up: vLLM draws the first value of its block hashes after it has made the scheduler.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from boomerang_vllm import cut
from boomerang_vllm.blocks import ALGORITHMS, Hashing
from boomerang_vllm.guard import NotAsExpected

_HELD_AS = "_boomerang_node"


@dataclass(frozen=True)
class Node:
    side: cut.Side
    can_read: bool
    """Whether this node, as a prefill node, ever begins a read from a decode node."""
    pins: bool
    """Whether it keeps the blocks of finished turns, as a decode node."""
    keeps_states: bool
    ttl_s: float
    hashing: Hashing | None


def of(scheduler: Any) -> Node:
    """The node of a NIXL pull scheduler. Raises NotAsExpected."""
    known = scheduler.__dict__.get(_HELD_AS)
    if not isinstance(known, Node):
        known = _read(scheduler)
        scheduler.__dict__[_HELD_AS] = known
    return known


def _read(scheduler: Any) -> Node:
    try:
        groups = len(scheduler.kv_cache_config.kv_cache_groups)
        block = scheduler.block_size
        dcp = getattr(scheduler.vllm_config.parallel_config, "decode_context_parallel_size", 1)
        is_bidirectional = bool(scheduler.is_bidirectional_kv_xfer_enabled)
        ttl_s = float(scheduler.decoder_kv_blocks_ttl)
        # With a host buffer the connector saves P's blocks and forgets the read that it has counted on.
        can_read = is_bidirectional and not scheduler.use_host_buffer
    except (AttributeError, TypeError, ValueError) as error:
        raise NotAsExpected(f"the connector's scheduler: {error}") from error
    if type(block) is not int or block < 1:
        raise NotAsExpected(f"block_size is {block!r}")
    return Node(
        side=cut.Side(block, groups, dcp),
        can_read=can_read,
        pins=is_bidirectional,
        keeps_states=bool(getattr(scheduler, "_has_mamba", True)),
        ttl_s=ttl_s,
        hashing=_hashing(scheduler, block),
    )


def _hashing(scheduler: Any, block: int) -> Hashing | None:
    """How the engine hashes, or None where its hashes are of no use to another engine."""
    cache = scheduler.vllm_config.cache_config
    algorithm = getattr(cache, "prefix_caching_hash_algo", None)
    try:
        module = importlib.import_module("vllm.v1.core.kv_cache_utils")
    except ImportError:
        return None
    first = getattr(module, "NONE_HASH", None)
    if algorithm not in ALGORITHMS or not isinstance(first, bytes):
        return None
    size = getattr(scheduler.kv_cache_config, "hash_block_size", None)
    size = size or getattr(cache, "hash_block_size", None) or block
    # A cut is to whole blocks, so a hash has to end where a block ends.
    if type(size) is not int or size < 1 or block % size:
        return None
    return Hashing(algorithm, first, size)
