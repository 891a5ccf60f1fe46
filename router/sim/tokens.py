"""A deterministic, reversible tokenizer that needs no vocabulary: a token id holds the bytes of its piece.

    0 .. 1023            special tokens, by name in ``SPECIALS``
    1 << 29 | n << 24 |  one to three raw bytes
    1 << 30 | n << 28 |  one to four ASCII characters, seven bits each

The canonical split (``encode``) makes the longest pieces of its pattern. ``retokenise`` makes shorter ones of
the same text, as a model does whose answer is not what its tokenizer would have made of the text.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Sequence
from functools import lru_cache
from random import Random
from typing import Final

SPECIALS: Final = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|audio_pad|>",
    "<|video_pad|>",
)
_SPECIAL_ID: Final = {name: index for index, name in enumerate(SPECIALS)}
IM_START: Final = _SPECIAL_ID["<|im_start|>"]
IM_END: Final = _SPECIAL_ID["<|im_end|>"]
MEDIA_PADS: Final = frozenset(
    _SPECIAL_ID[name] for name in ("<|image_pad|>", "<|audio_pad|>", "<|video_pad|>")
)

_SPECIAL_PATTERN: Final = re.compile("(" + "|".join(re.escape(name) for name in SPECIALS) + ")")
_PIECE_PATTERN: Final = re.compile(
    r" [A-Za-z0-9]{1,3}|[A-Za-z0-9]{1,4}|[ \t]{1,4}|[\r\n]{1,4}|[!-/:-@\[-`{-~]{1,4}|[\x00-\x7f]|[^\x00-\x7f]"
)
_ASCII: Final = 1 << 30
_RAW: Final = 1 << 29


def _piece_id(raw: bytes) -> int:
    if raw.isascii():
        packed = 0
        for byte in raw:
            packed = packed << 7 | byte
        return _ASCII | (len(raw) - 1) << 28 | packed
    return _RAW | len(raw) << 24 | int.from_bytes(raw, "big")


@lru_cache(maxsize=65_536)
def _piece_ids(piece: str) -> tuple[int, ...]:
    raw = piece.encode("utf-8", "surrogatepass")
    if len(raw) <= 3 or raw.isascii():
        return (_piece_id(raw),)
    return (_piece_id(raw[:3]), _piece_id(raw[3:]))


@lru_cache(maxsize=8_192)
def _segment_ids(text: str) -> array[int]:
    ids: array[int] = array("I")
    for piece in _PIECE_PATTERN.findall(text):
        ids.extend(_piece_ids(piece))
    return ids


def encode(text: str) -> array[int]:
    """The canonical token ids of a text; the names of special tokens in it become those tokens."""
    ids: array[int] = array("I")
    for index, segment in enumerate(_SPECIAL_PATTERN.split(text)):
        if index % 2:
            ids.append(_SPECIAL_ID[segment])
        elif segment:
            ids.extend(_segment_ids(segment))
    return ids


@lru_cache(maxsize=65_536)
def token_bytes(token: int) -> bytes:
    """The bytes of one token; empty for an id that this tokenizer never makes."""
    if token & _ASCII:
        length = (token >> 28 & 3) + 1
        return bytes(token >> 7 * (length - 1 - index) & 0x7F for index in range(length))
    if token & _RAW:
        length = token >> 24 & 3
        return (token & 0xFFFFFF).to_bytes(3, "big")[3 - length :] if length else b""
    return SPECIALS[token].encode() if token < len(SPECIALS) else b""


def decode(ids: Iterable[int], *, skip_specials: bool = True) -> str:
    """The text of token ids; bytes that are not UTF-8 become U+FFFD."""
    kept = (token for token in ids if not (skip_specials and token < 1024))
    return b"".join(map(token_bytes, kept)).decode("utf-8", "replace")


def retokenise(ids: Sequence[int], rate: float, random: Random) -> array[int]:
    """The same text in other tokens: ASCII pieces are split in two with a probability of ``rate``."""
    if rate <= 0:
        return array("I", ids)
    split: array[int] = array("I")
    for token in ids:
        raw = token_bytes(token)
        if token & _ASCII and len(raw) > 1 and random.random() < rate:
            at = random.randrange(1, len(raw))
            split.append(_piece_id(raw[:at]))
            split.append(_piece_id(raw[at:]))
        else:
            split.append(token)
    return split
