"""The engine-mode plugin, as the simulated engines have it: stamp on D, verify and cut on P."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from router.sim.config import EngineConfig
from router.turn.digest import STAMP_FIELD, STAMP_VERSION, Digests, chain, root

STAY_FIELD: Final = "boomerang_stay"
"""In ``vllm_xargs``: a turn without params wants a handle."""


@dataclass(frozen=True, slots=True)
class Verified:
    """Params that are safe to use for a prompt, and how many tokens they were verified for."""

    params: dict[str, Any]
    tokens: int


def stamp(held: array[int], adapter: str) -> dict[str, Any]:
    """The stamp of held tokens. Media stand in it as what they show, so equal placeholders do not agree."""
    return chain(held, start=root(adapter.encode())).to_wire()


def verify(params: Mapping[str, Any], content: array[int], adapter: str, config: EngineConfig) -> Verified:
    """Cut a handle to what its stamp proves of the prompt, in whole blocks, or to nothing.

    A handle cut to nothing still names D's request, so that D is told and frees its blocks.
    """
    claimed = params.get("remote_num_tokens")
    blocks = params.get("remote_block_ids")
    if not isinstance(claimed, int) or not isinstance(blocks, list) or not blocks:
        return Verified(dict(params), 0)
    if STAMP_FIELD not in params and not config.plugin_refuse_unstamped:
        return Verified(dict(params), 0)
    proven = _proven(params.get(STAMP_FIELD), content, adapter)
    if proven >= claimed:
        return Verified(dict(params), claimed)
    size = config.block_size
    sound = len(blocks) == 1 and config.dcp_size == 1 and params.get("dcp_size", 1) == 1
    if not sound or len(blocks[0]) != -(-claimed // size):
        proven = 0
    whole = proven // size
    cut = {"remote_num_tokens": whole * size, "remote_block_ids": [blocks[0][:whole]] if whole else [[]]}
    return Verified({**params, **cut}, whole * size)


def _proven(wire: object, content: array[int], adapter: str) -> int:
    try:
        digests = Digests.from_wire(wire)
    except ValueError:
        return 0
    if digests.root != root(adapter.encode()):
        return 0
    return digests.common(content)


def report(tokens: int) -> dict[str, Any]:
    """What P says of it in its own answer, under ``STAMP_FIELD``."""
    return {"v": STAMP_VERSION, "verified_tokens": tokens}
