"""A request inside an engine, and the faults that can end it."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Literal

from router.sim.blocks import Kv, chain, origin
from router.sim.tokens import MEDIA_PADS


class EngineError(Exception):
    """The engine could not do it; ``status`` is what vLLM answers with."""

    status = 500


class LoadFailed(EngineError):
    """KV could not be loaded from a peer, and ``kv_load_failure_policy`` is ``fail``."""

    def __init__(self) -> None:
        super().__init__("Internal server error")


class EngineDead(EngineError):
    """An assertion in the engine core took it down; only a restart helps."""

    def __init__(self) -> None:
        super().__init__("EngineCore encountered an issue. See stack trace (above) for the root cause.")


class ConnectionCut(Exception):
    """The connection breaks here, without another byte."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt's token ids, and the same with media ids in place of placeholders (what the KV depends on)."""

    ids: array[int]
    content: array[int]

    @classmethod
    def of(cls, ids: array[int], media: tuple[bytes, ...] = (), media_tokens: int = 1) -> Prompt:
        if not media:
            return cls(ids, ids)
        content, seen = array("I", ids), 0
        for index, token in enumerate(ids):
            if token in MEDIA_PADS:
                at, offset = divmod(seen, media_tokens)
                seen += 1
                if at < len(media):
                    raw = blake2b(media[at] + offset.to_bytes(4, "big"), digest_size=4).digest()
                    content[index] = int.from_bytes(raw, "big") | 1 << 31
        return cls(ids, content)

    def last(self, tokens: int) -> Prompt:
        """The prompt with its beginning cut off."""
        return Prompt(self.ids[-tokens:], self.content[-tokens:]) if tokens < len(self.ids) else self


@dataclass(slots=True)
class Sequence:
    """One running request, which the engine moves on."""

    request_id: str
    path: str
    prompt: Prompt
    params: dict[str, Any] | None
    salt: str
    adapter: str
    bound_tokens: int
    """The most that it may generate; blocks for it are taken at the start."""
    epoch: int
    at_s: float
    """How far it is on the engine's clock; ahead of what the simulation has worked off, or behind."""
    expected: tuple[Kv, ...]
    stays: bool = False
    """It asks the plugin for a handle, without params."""
    fresh: bool = False
    """It reads no prefix cache (prompt log-probabilities are wanted)."""
    phase: Literal["waiting", "prefill", "decode", "done"] = "waiting"
    blocks: list[int] = field(default_factory=list)
    hit_blocks: int = 0
    loaded_tokens: int = 0
    """Prompt tokens from the prefix cache or a peer."""
    cached_tokens: int = 0
    verified_tokens: int | None = None
    """What the plugin proved of a handle; None where there was none."""
    tracked: bool = False
    """Whether the connector keeps the time of the request, so that its pin can expire (T6)."""
    notify_on_abort: bool = False
    seed: bytes = b""
    clean: bool = True
    corrupt: set[str] = field(default_factory=set)


def expected_blocks(prompt: Prompt, block_size: int, adapter: str) -> tuple[Kv, ...]:
    return chain(prompt.content.tobytes(), block_size, origin(adapter))
