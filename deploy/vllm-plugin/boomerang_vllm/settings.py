"""What an operator can set, in the environment of the engine."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

PARTS = ("stream", "stamp", "verify", "release", "stay")
_Choice = TypeVar("_Choice")


@dataclass(frozen=True)
class Settings:
    """The settings, read once at start-up. Each is named ``BOOMERANG_VLLM_`` and its own name."""

    parts: frozenset[str] = frozenset(PARTS)
    """``PARTS``: what is switched on, comma-separated."""
    unstamped: str = "pass"
    """``UNSTAMPED``: ``pass`` takes a handle without a stamp as it is, ``refuse`` reads nothing of it."""
    digests: str = "auto"
    """``DIGESTS``: ``auto`` stamps the engine's block hashes where P said that it hashes alike and token
    digests elsewhere, ``tokens`` always token digests, ``blocks`` the engine's hashes where it can."""
    expired: str = "drop"
    """``EXPIRED``: ``drop`` computes instead of reading what D no longer holds, ``pass`` leaves it to vLLM,
    which fails such a request."""


def read(environment: Mapping[str, str] | None = None) -> tuple[Settings, list[str]]:
    """The settings, and what is wrong with them; a value that is not known leaves the default."""
    given = os.environ if environment is None else environment
    wrong: list[str] = []

    def value(name: str, default: _Choice, known: Callable[[str], _Choice | None]) -> _Choice:
        text = given.get(f"BOOMERANG_VLLM_{name}", "").strip()
        if not text:
            return default
        found = known(text)
        if found is None:
            wrong.append(f"BOOMERANG_VLLM_{name}={text!r} is not known, using the default")
            return default
        return found

    def one_of(*choices: str) -> Callable[[str], str | None]:
        return lambda text: text if text in choices else None

    def parts(text: str) -> frozenset[str] | None:
        names = frozenset(name.strip() for name in text.split(",")) - {"", "none"}
        return names if names <= frozenset(PARTS) else None

    plain = Settings()
    settings = Settings(
        parts=value("PARTS", plain.parts, parts),
        unstamped=value("UNSTAMPED", plain.unstamped, one_of("pass", "refuse")),
        digests=value("DIGESTS", plain.digests, one_of("auto", "tokens", "blocks")),
        expired=value("EXPIRED", plain.expired, one_of("drop", "pass")),
    )
    return settings, wrong
