"""``kv_transfer_params`` as vLLM's pulling NIXL connector reads and writes them.

Rules and key names are those of vLLM 0.32.0, ``nixl/pull_scheduler.py``; P's and D's params have the same
keys, but for ``remote_prefill_cached_tokens``, which only P's have.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

_REQUIRED: Final = ("remote_engine_id", "remote_request_id", "remote_host", "remote_port")


@dataclass(frozen=True, slots=True)
class Remote:
    """KV that a peer keeps for this request."""

    engine_id: str
    request_id: str
    address: tuple[str, int]
    groups: tuple[tuple[int, ...], ...]
    num_tokens: int
    expiry_s: float | None
    """On the peer's own clock."""

    @property
    def blocks(self) -> tuple[int, ...]:
        return self.groups[0] if self.groups else ()


def names_remote(params: Mapping[str, Any]) -> bool:
    """Whether params name a peer: truthy block ids, and every key that leads to it (their values unseen)."""
    return bool(params.get("remote_block_ids")) and all(key in params for key in _REQUIRED)


def remote(params: Mapping[str, Any]) -> Remote | None:
    """The peer's KV that params name, or None. Raises ValueError for values of a wrong type."""
    if not names_remote(params):
        return None
    try:
        groups = tuple(tuple(int(block) for block in group) for group in params["remote_block_ids"])
        address = (str(params["remote_host"]), int(params["remote_port"]))
        tokens = int(params.get("remote_num_tokens") or 0)
        expiry = params.get("remote_blocks_expiry_time")
        expiry_s = None if expiry is None else float(expiry)
    except (TypeError, ValueError):
        raise ValueError("kv_transfer_params hold values of a wrong type") from None
    engine_id, request_id = str(params["remote_engine_id"]), str(params["remote_request_id"])
    return Remote(engine_id, request_id, address, groups, tokens, expiry_s)


def finished(
    *,
    as_prefill: bool,
    groups: Sequence[Sequence[int]],
    engine_id: str,
    request_id: str,
    address: tuple[str, int],
    dcp_size: int,
    num_tokens: int,
    expiry_s: float | None,
    expiry_field: bool,
    push_mode: bool,
) -> dict[str, Any]:
    """The params of a finished request. P's lead D to its blocks; D's are the handle."""
    params: dict[str, Any] = {
        "do_remote_prefill": as_prefill,
        "do_remote_decode": not as_prefill,
        "remote_block_ids": [list(group) for group in groups],
        "remote_engine_id": engine_id,
        "remote_request_id": request_id,
        "remote_host": address[0],
        "remote_port": address[1],
        "tp_size": 1,
        "dcp_size": dcp_size,
        "pp_size": 1,
        "remote_num_tokens": num_tokens,
    }
    if expiry_field:
        params["remote_blocks_expiry_time"] = expiry_s
    return params | {"transfer_mode": "push" if push_mode else "pull"}


def clip_groups(blocks: Sequence[int], kv_groups: int, window_blocks: int = 2) -> list[list[int]]:
    """Block ids per KV group: one of full attention, the others as sliding windows keep only their tail."""
    return [list(blocks), *(list(blocks[-window_blocks:]) for _ in range(kv_groups - 1))]
