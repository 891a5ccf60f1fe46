"""What KV depends on, as far as it can be read off a request of vLLM."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from boomerang_vllm.digest import NotAStamp, root

_MEDIA_DIGEST_BYTES = 16


def held_tokens(request: Any) -> int:
    """How many leading tokens of a finished request are real and have KV.

    The last sampled token has none yet. Positions of steps still under way are counted as computed, but may
    be past the real tokens, or of tokens that were rejected.
    """
    under_way = getattr(request, "num_in_flight_tokens", None)
    if under_way is None:
        under_way = getattr(request, "num_output_placeholders", 0)
    computed: int = request.num_computed_tokens - under_way
    real: int = request.num_tokens - 1
    return max(0, min(computed, real))


def is_whole(request: Any) -> bool:
    """Whether all that came before is in one request: not a streamed-in session, no window replayed."""
    return not getattr(request, "resumable", False) and not getattr(request, "replay_start", 0)


def origin(request: Any) -> bytes:
    """Where the token chain of a request begins: another LoRA makes other KV of all tokens.

    Name and path, as vLLM's own hashes have it: a name can be pointed at another adapter. The cache salt is
    no part of it. It keeps callers apart, which for handles is the router's part, and changes no KV.
    """
    lora = request.lora_request
    if lora is None:
        return root()
    return root(f"lora:{lora.lora_name}\0{lora.lora_path}".encode())


def tokens(request: Any) -> Sequence[int]:
    """The token ids. Raises NotAStamp where they are not what the KV was made of."""
    if getattr(request, "prompt_embeds", None) is not None:
        raise NotAStamp("the prompt has embeddings")
    ids: Sequence[int] = request.all_token_ids
    return ids


def media(request: Any, stride: int) -> dict[int, bytes]:
    """What is shown in each stride of tokens that media reach into. Raises NotAStamp if that is not known."""
    shown: dict[int, bytes] = {}
    for feature in getattr(request, "mm_features", None) or ():
        name, at = feature.identifier, feature.mm_position
        if not isinstance(name, str) or not name:
            raise NotAStamp("a picture has no identifier")
        text = f"{feature.modality}\0{name}\0{at.offset}\0{at.length}".encode()
        what = blake2b(text, digest_size=_MEDIA_DIGEST_BYTES, person=b"boomerang-media").digest()
        for index in range(at.offset // stride, (at.offset + max(at.length, 1) - 1) // stride + 1):
            shown[index] = shown.get(index, b"") + what
    return shown
