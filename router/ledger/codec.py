"""What the shared store keeps, as compact bytes. Pure.

A handle's parameters are mostly the decimal digits of block ids: they are compressed, as JSON and without a
look inside. Digests stay raw. Measured for a handle of 1,500 blocks and 24,000 tokens:
``tests/ledger/test_codec.py``.
"""

import zlib
from typing import Any, Final

import msgspec

from router.ledger.store import Finish, Handle, Trace
from router.turn.digest import DIGEST_BYTES, Digests

SCHEMA: Final = 1
"""Stands in the prefix of every key, so that routers of two versions never read each other's values."""
_COMPRESSED_FROM_BYTES: Final = 256
_MAX_PARAMS_BYTES: Final = 16_777_216
"""Of parameters once uncompressed: a value of the store never grows without bound here."""

_STRATEGIES: Final = (zlib.Z_HUFFMAN_ONLY, zlib.Z_DEFAULT_STRATEGY)
"""Ids of a busy pool are random: their digits make a good code, and no repetitions. Those of a fresh one run
on. Both at the fastest level take less time than one at a higher level, and the shorter is kept."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


class NotAValue(ValueError):
    """Bytes of the store that this version did not write."""


def encode_trace(trace: Trace) -> bytes:
    return _encode(
        (
            trace.prefill,
            trace.decode,
            trace.prompt_tokens,
            trace.prompt_bytes,
            trace.reused_tokens,
            trace.computed_at_s,
            str(trace.finish),
            trace.plan,
            trace.reason,
        )
    )


def decode_trace(raw: bytes) -> Trace:
    """Raises NotAValue."""
    match _read(raw):
        case [
            str(prefill),
            str(decode),
            int(prompt_tokens),
            int(prompt_bytes),
            int(reused_tokens),
            float(computed_at_s),
            str(finish),
            str(plan),
            str(reason),
        ]:
            return Trace(
                prefill,
                decode,
                prompt_tokens,
                prompt_bytes,
                reused_tokens,
                computed_at_s,
                Finish.of(finish),
                plan,
                reason,
            )
    raise NotAValue("not a trace")


def encode_shared(branch: str, turns: int, trace: Trace) -> bytes:
    """What a beginning that many conversations share leads to: the newest one's branch and trace."""
    return _encode((branch, turns, encode_trace(trace)))


def decode_shared(raw: bytes) -> tuple[str, int, Trace]:
    """Branch, its turns then, and its trace. Raises NotAValue."""
    match _read(raw):
        case [str(branch), int(turns), bytes(trace)]:
            return branch, turns, decode_trace(trace)
    raise NotAValue("not a shared beginning")


def encode_handle(handle: Handle) -> bytes:
    params, compressed = handle.params, False
    if len(params) >= _COMPRESSED_FROM_BYTES:
        packed = min(_compressed(params, strategy) for strategy in _STRATEGIES)[1]
        if len(packed) < len(params):
            params, compressed = packed, True
    held = handle.held
    return _encode(
        (
            compressed,
            params,
            handle.decode,
            handle.engine_id,
            handle.tokens,
            handle.prompt_tokens,
            handle.deadline_s,
            handle.started_at_s,
            handle.stamped,
            None if held is None else (held.tokens, held.links, held.tail, held.stride, held.root),
            handle.media_depth,
        )
    )


def decode_handle(raw: bytes) -> Handle:
    """Raises NotAValue."""
    match _read(raw):
        case [
            bool(compressed),
            bytes(params),
            str(decode),
            str(engine_id),
            int(tokens),
            int(prompt_tokens),
            float(deadline_s),
            float() | None as started_at_s,
            bool(stamped),
            held,
            int(media_depth),
        ]:
            return Handle(
                params=_uncompressed(params) if compressed else params,
                decode=decode,
                engine_id=engine_id,
                tokens=tokens,
                prompt_tokens=prompt_tokens,
                deadline_s=deadline_s,
                started_at_s=started_at_s,
                stamped=stamped,
                held=_held(held),
                media_depth=media_depth,
            )
    raise NotAValue("not a handle")


def _held(value: object) -> Digests | None:
    match value:
        case None:
            return None
        case [int(tokens), bytes(links), bytes(tail), int(stride), bytes(root)] if (
            stride > 0 and len(links) == tokens // stride * DIGEST_BYTES
        ):
            return Digests(tokens, links, tail, stride, root)
    raise NotAValue("not the digests of held tokens")


def _read(raw: bytes) -> Any:
    try:
        return _decode(raw)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise NotAValue("not msgpack") from error


def _compressed(raw: bytes, strategy: int) -> tuple[int, bytes]:
    packer = zlib.compressobj(1, zlib.DEFLATED, -15, 9, strategy)
    packed = packer.compress(raw) + packer.flush()
    return len(packed), packed


def _uncompressed(raw: bytes) -> bytes:
    unpack = zlib.decompressobj(-15)
    try:
        params = unpack.decompress(raw, _MAX_PARAMS_BYTES)
    except zlib.error as error:
        raise NotAValue("parameters cannot be uncompressed") from error
    if not unpack.eof:
        raise NotAValue("parameters are too large, or end early")
    return params
