"""``kv_transfer_params`` on the wire: what the NIXL pull connector reads and writes. Pure.

Params are opaque: they are copied with all their keys, and only the members named here are ever replaced.
Names and rules were read in vLLM 0.22-0.33's NIXL connector and seen on running 0.32.0 engines.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from router.turn.digest import STAMP_FIELD

PARAMS_FIELD: Final = "kv_transfer_params"

COLD_PARAMS: Final = (
    b'{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,'
    b'"remote_block_ids":null,"remote_host":null,"remote_port":null}'
)
"""What a prefill leg carries when P is to read nothing: compute, and keep the blocks for D."""

_ADDRESS: Final = ("remote_engine_id", "remote_request_id", "remote_host", "remote_port")
"""P ignores a handle silently unless these are there, and ``remote_block_ids`` is not empty."""

_Members = dict[str, msgspec.Raw]
_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode


class NotParams(ValueError):
    """Not a JSON object, or a member has a type that no engine sends."""


@dataclass(frozen=True, slots=True)
class Params:
    """The members of ``kv_transfer_params`` that decisions need. Everything else stays in the raw bytes."""

    do_remote_decode: bool
    do_remote_prefill: bool
    addressed: bool
    """All that P or D needs to find the other side is there."""
    engine_id: str
    tokens: int
    """``remote_num_tokens``."""
    block_counts: tuple[int, ...]
    """Blocks per KV cache group."""
    dcp_size: int
    expires: bool
    """``remote_blocks_expiry_time`` is there: P refuses a late read instead of reading freed blocks."""
    push_mode: bool
    reused_tokens: int | None
    """``remote_prefill_cached_tokens``: prompt tokens that P did not compute."""
    stamped: bool
    verified_tokens: int | None
    """What a verifying P proved of the handle it was given; None where it does not verify."""

    @property
    def is_handle(self) -> bool:
        """Whether these are D's params of a finished turn, good for a prefill leg."""
        return (
            self.do_remote_decode and not self.do_remote_prefill and self.addressed and any(self.block_counts)
        )


def _members(raw: bytes) -> _Members:
    try:
        return msgspec.json.decode(raw, type=_Members)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise NotParams(f"kv_transfer_params are not a JSON object: {error}") from None


def _value(raw: bytes | msgspec.Raw) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise NotParams(f"a member of kv_transfer_params cannot be read: {error}") from None


def _whole(value: object) -> int:
    return value if type(value) is int and value >= 0 else 0


def _block_counts(blocks: object) -> tuple[int, ...]:
    if not isinstance(blocks, list) or not blocks:
        return ()
    if all(isinstance(group, list) for group in blocks):
        return tuple(len(group) for group in blocks)
    if all(type(block) is int for block in blocks):
        return (len(blocks),)  # older connectors send one flat group
    return ()


@functools.lru_cache(maxsize=64)
def read(raw: bytes) -> Params:
    """Read params. Raises NotParams."""
    try:
        wanted = _decode(raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise NotParams(f"kv_transfer_params cannot be read: {error}") from None
    given = wanted.get
    stamp = given(STAMP_FIELD)
    if not isinstance(stamp, Mapping):
        stamp = {}
    reused, verified = given("remote_prefill_cached_tokens"), stamp.get("verified_tokens")
    dcp_size = given("dcp_size")
    return Params(
        do_remote_decode=given("do_remote_decode") is True,
        do_remote_prefill=given("do_remote_prefill") is True,
        addressed=all(given(name) not in (None, "") for name in _ADDRESS),
        engine_id=str(given("remote_engine_id") or ""),
        tokens=_whole(given("remote_num_tokens")),
        block_counts=_block_counts(given("remote_block_ids")),
        # Absent in older connectors, which know no context parallelism; a value that is no number is not 1.
        dcp_size=1 if dcp_size is None else _whole(dcp_size),
        expires=type(given("remote_blocks_expiry_time")) in (int, float),
        push_mode=given("transfer_mode") == "push",
        reused_tokens=reused if type(reused) is int and reused >= 0 else None,
        stamped="digests" in stamp,
        verified_tokens=verified if type(verified) is int and verified >= 0 else None,
    )


def _join(members: Mapping[str, msgspec.Raw | bytes]) -> bytes:
    return (
        b"{" + b",".join(msgspec.json.encode(key) + b":" + bytes(raw) for key, raw in members.items()) + b"}"
    )


def cut(raw: bytes, *, tokens: int, block_size: int) -> bytes:
    """The same handle, shortened to its first ``tokens`` tokens, a multiple of ``block_size``.

    Tokens and blocks are cut together, because P trims a list that is too long from its end and would then
    read the wrong blocks. The caller has checked that the handle can be cut (``turn/handle``).
    Raises ValueError for a number of tokens that is not whole blocks within the handle, and for a handle of
    more than one KV cache group.
    """
    members = _members(raw)
    blocks = _value(members.get("remote_block_ids", b"null"))
    counts, held = _block_counts(blocks), _whole(_value(members.get("remote_num_tokens", b"null")))
    keep = tokens // block_size
    if len(counts) != 1 or tokens % block_size or not 0 < keep <= counts[0] or tokens > held:
        raise ValueError(f"cannot cut a handle to {tokens} tokens in blocks of {block_size}")
    kept = [blocks[0][:keep]] if isinstance(blocks[0], list) else blocks[:keep]
    edited: dict[str, msgspec.Raw | bytes] = dict(members)
    edited["remote_num_tokens"] = str(tokens).encode()
    edited["remote_block_ids"] = msgspec.json.encode(kept)
    return _join(edited)


_LOOPBACK: Final = frozenset({"localhost", "::1", "[::1]", "0.0.0.0"})  # noqa: S104 - compared, never bound


def reachable(raw: bytes, *, origin: str) -> bytes:
    """The same params with a loopback side channel replaced by the host that the engine itself is reached at.

    For engines that were started without ``VLLM_NIXL_SIDE_CHANNEL_HOST``; any other address is left alone.
    Raises NotParams.
    """
    members = _members(raw)
    named = _value(members.get("remote_host", b"null"))
    if not isinstance(named, str) or not (named in _LOOPBACK or named.startswith("127.")):
        return raw
    edited: dict[str, msgspec.Raw | bytes] = dict(members)
    edited["remote_host"] = msgspec.json.encode(urlsplit(origin).hostname or named)
    return _join(edited)


def released(raw: bytes) -> bytes:
    """The same handle with nothing left to read: P pulls nothing, and tells D to free the blocks.

    A bare empty list would be falsy, and D would not be told.
    """
    edited: dict[str, msgspec.Raw | bytes] = dict(_members(raw))
    edited["remote_num_tokens"] = b"0"
    edited["remote_block_ids"] = b"[[]]"
    return _join(edited)
