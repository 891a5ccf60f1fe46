"""A request's top-level members as raw JSON: read, joined, and freed of what is not a client's to say. Pure.

A member keeps the very bytes of its value, so that what we do not own passes unchanged.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from router.engines.nixl import PARAMS_FIELD

Members = dict[str, msgspec.Raw]

XARGS_FIELD: Final = "vllm_xargs"
"""Arguments that vLLM hands on to plugins and connectors: an object, and a second way in for their fields."""

ENGINE_MEMBERS: Final = frozenset({PARAMS_FIELD, "ec_transfer_params", "request_id"})
"""Members that steer an engine, its connector, or its request table: never a client's to set."""

STAY_FIELD: Final = "boomerang_stay"
"""In ``vllm_xargs``: asks D's plugin for a handle, and so to pin blocks. Never a client's to set."""

PRIVATE_MEMBERS: Final = frozenset({"conversation_id"})

_NEVER_SENT: Final = ENGINE_MEMBERS | PRIVATE_MEMBERS
_DECODE: Final = msgspec.json.Decoder(Members).decode
_DECODE_ANY: Final = msgspec.json.Decoder().decode


class InvalidRequest(ValueError):
    """The body cannot be routed. ``param`` names the member at fault, or is None."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


_SMALL_BYTES: Final = 64
_MAX_XARGS_BYTES: Final = 1_048_576
"""They are read whole, and a few values for a plugin are no megabyte."""


def small(members: Mapping[str, msgspec.Raw], name: str) -> Any:
    """The value of a member that is a number, a word or a flag; None where there is none such.

    Never raises: a value that cannot be read is the engine's to refuse.
    """
    raw = members.get(name)
    if raw is None or len(memoryview(raw)) > _SMALL_BYTES:
        return None
    try:
        return _DECODE_ANY(raw)
    except msgspec.MsgspecError:  # no UTF-8, or a number out of range: neither is seen before it is decoded
        return None


_TRUE_WORDS: Final = frozenset({"1", "true", "t", "on", "yes", "y"})


def flag(members: Mapping[str, msgspec.Raw], name: str) -> bool:
    """Whether a member is true as vLLM reads it: in pydantic's lax way, ``1`` and ``"yes"`` are."""
    value = small(members, name)
    if isinstance(value, str):
        return value.lower() in _TRUE_WORDS
    return isinstance(value, int | float) and value == 1


def decode_members(body: bytes) -> Members:
    """The top-level members of a JSON object. Raises InvalidRequest."""
    try:
        return _DECODE(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the request body is not a JSON object: {error}") from None


def join(members: Mapping[str, msgspec.Raw]) -> bytes:
    """A JSON object of raw values; each value keeps its own bytes, which are copied once."""
    parts: list[bytes] = []
    for name, value in members.items():
        parts += (b"," if parts else b"{", msgspec.json.encode(name), b":", value)
    return b"".join((*parts, b"}")) if parts else b"{}"


def without_steering(members: Members) -> Members:
    """The client's members, less what is ours or the engines'; also inside ``vllm_xargs``.

    Raises InvalidRequest for ``vllm_xargs`` that cannot be read: what steers an engine could hide in them.
    """
    kept = {k: v for k, v in members.items() if k not in _NEVER_SENT}
    xargs = kept.get(XARGS_FIELD)
    if xargs is None:
        return kept
    if len(memoryview(xargs)) > _MAX_XARGS_BYTES:
        raise InvalidRequest(f"vllm_xargs are larger than {_MAX_XARGS_BYTES} bytes", XARGS_FIELD)
    try:
        inner = _DECODE(xargs)
    except msgspec.ValidationError:
        return kept  # null or not an object: the engine's validation answers for it
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidRequest(f"vllm_xargs cannot be read: {error}", XARGS_FIELD) from None
    clean = {k: v for k, v in inner.items() if k not in ENGINE_MEMBERS and k != STAY_FIELD}
    if len(clean) != len(inner):
        kept[XARGS_FIELD] = msgspec.Raw(join(clean))
    return kept
