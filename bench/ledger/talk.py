"""Conversations that grow, each turn at a router of its client's choice."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import aiohttp

from router.sim.config import EngineConfig

MODEL = EngineConfig().model
WORDS = ("lease", "block", "cache", "request", "decode", "prefill", "queue", "answer", "router", "history")
SYSTEM = " ".join(WORDS * 12)


@dataclass(frozen=True, slots=True)
class Seen:
    """One turn as its client saw it. Times in seconds."""

    conversation: int
    turn: int
    status: int
    began_s: float
    took_s: float
    plan: str = ""
    reason: str = ""
    prompt_tokens: int = 0
    reused_tokens: int = 0
    text: str = ""


@dataclass(slots=True)
class Talk:
    """What all conversations share: the client, and what was seen."""

    session: aiohttp.ClientSession
    choose: Callable[[int, int], str]
    """The router for a turn of a conversation."""
    seen: list[Seen] = field(default_factory=list)

    async def play(self, conversations: int, turns: int, *, pause_s: float = 0.0) -> None:
        """All conversations at the same time."""
        await asyncio.gather(*(self.converse(at, turns, pause_s=pause_s) for at in range(conversations)))

    async def converse(self, at: int, turns: int, *, pause_s: float = 0.0) -> None:
        """One conversation, until it ends or a turn fails."""
        random = Random(at)
        history: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}]
        for turn in range(turns):
            asked = " ".join(random.choices(WORDS, k=40))
            history.append({"role": "user", "content": f"{at}.{turn}: {asked}"})
            seen = await self.turn(at, turn, history)
            self.seen.append(seen)
            if seen.status != 200:
                return
            history.append({"role": "assistant", "content": seen.text})
            if pause_s:
                await asyncio.sleep(pause_s)

    async def turn(self, at: int, turn: int, history: list[dict[str, Any]]) -> Seen:
        """One turn, not streamed."""
        body = {"model": MODEL, "messages": history, "max_tokens": 24, "temperature": 0}
        url = f"{self.choose(at, turn)}/v1/chat/completions"
        began_s = time.monotonic()
        headers = {"authorization": "Bearer bench"}
        async with self.session.post(url, json=body, headers=headers) as answer:
            document = await answer.json()
            took_s = time.monotonic() - began_s
            if answer.status != 200:
                return Seen(at, turn, answer.status, began_s, took_s)
            return Seen(
                at,
                turn,
                answer.status,
                began_s,
                took_s,
                answer.headers.get("x-boomerang-plan", ""),
                answer.headers.get("x-boomerang-reason", ""),
                document["usage"]["prompt_tokens"],
                int(answer.headers.get("x-boomerang-reused-tokens", "0")),
                document["choices"][0]["message"]["content"] or "",
            )


def reuse(seen: Sequence[Seen]) -> float:
    """The share of prompt tokens that no engine computed again, of all turns but the first ones."""
    later = [one for one in seen if one.turn]
    return sum(one.reused_tokens for one in later) / max(sum(one.prompt_tokens for one in later), 1)
