"""The load: agents and chats that resend their growing histories, however the pool does.

Arrivals are open: a slow pool does not slow its own load down. The same seed gives the same conversations,
so that two routers are asked the same.
"""

import asyncio
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
import msgspec

from router.demo.agent import TOOLS, text_of
from router.sim.model import TAINT

MODEL: Final = "sim-qwen3"
HUNG_S: Final = 120.0
"""A request without an end for so long counts as hung."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of conversation. Words of text, seconds between turns."""

    name: str
    system_words: int
    user_words: tuple[int, int]
    tool_words: tuple[int, int]
    turns: tuple[int, int]
    think_s: tuple[float, float]
    """After an answer that calls no tool."""
    tool_s: tuple[float, float]
    """What a tool takes."""
    share: float


KINDS: Final = (
    Kind("coder", 5000, (40, 300), (200, 1800), (6, 12), (2.0, 6.0), (0.2, 1.5), 0.5),
    Kind("researcher", 2000, (20, 120), (600, 3000), (4, 8), (3.0, 8.0), (0.5, 3.0), 0.3),
    Kind("chat", 120, (20, 200), (50, 100), (2, 6), (2.0, 8.0), (0.2, 0.5), 0.2),
)


@dataclass(frozen=True, slots=True)
class TurnSeen:
    """One request, as its client saw it. Times in seconds; ``at_s`` since the load began."""

    at_s: float
    conversation: int
    number: int
    status: int
    """0: no answer at all."""
    error: str
    first_token_s: float | None
    total_s: float
    plan: str
    reason: str
    reused_tokens: int
    prompt_tokens: int
    tainted: bool


@dataclass(slots=True)
class Load:
    """A load on one router; ``seen`` grows as turns end."""

    origin: str
    seed: int
    conversations_per_s: float
    seen: list[TurnSeen] = field(default_factory=list)
    in_flight: int = 0
    _began_s: float = field(default_factory=time.perf_counter)

    def elapsed_s(self) -> float:
        """Since the load began."""
        return time.perf_counter() - self._began_s

    async def run(self, duration_s: float) -> None:
        """Let conversations arrive for ``duration_s``; ends when the last one has ended."""
        draw = random.Random(self.seed)
        self._began_s = time.perf_counter()
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=HUNG_S)
        session = aiohttp.ClientSession(connector=connector, timeout=timeout)
        async with session, asyncio.TaskGroup() as group:
            at_s, number = 0.0, 0
            while (at_s := at_s + draw.expovariate(self.conversations_per_s)) < duration_s:
                await asyncio.sleep(max(0.0, self._began_s + at_s - time.perf_counter()))
                group.create_task(self._converse(session, number, duration_s))
                number += 1

    async def _converse(self, session: aiohttp.ClientSession, number: int, until_s: float) -> None:
        draw = random.Random(f"{self.seed}/{number}")
        kind = draw.choices(KINDS, [kind.share for kind in KINDS])[0]
        system = (
            f"You are the {kind.name} of team {number % 2}.\n{text_of(len(kind.name), kind.system_words)}"
        )
        messages: list[dict[str, Any]] = [{"role": "system", "content": system}]
        for turn in range(draw.randint(*kind.turns)):
            calls = messages[-1].get("tool_calls") or ()
            for call in calls:
                words = draw.randint(*kind.tool_words) // len(calls)
                content = text_of(draw.getrandbits(20), max(words, 14))
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})
            if not calls:
                asked = text_of(draw.getrandbits(20), draw.randint(*kind.user_words))
                messages.append({"role": "user", "content": f"Question {turn} of {number}.\n{asked}"})
            answer = await self._turn(session, number, turn, messages)
            if answer is None or self.elapsed_s() > until_s:
                return
            messages.append(answer)
            await asyncio.sleep(draw.uniform(*(kind.tool_s if answer.get("tool_calls") else kind.think_s)))

    async def _turn(
        self, session: aiohttp.ClientSession, number: int, turn: int, messages: list[dict[str, Any]]
    ) -> dict[str, Any] | None:
        """One request; the answer's message, or None where there was none."""
        body = {
            "model": MODEL, "messages": messages, "tools": TOOLS, "max_tokens": 64, "temperature": 0,
            "stream": True, "stream_options": {"include_usage": True},
        }  # fmt: skip
        started_s, reading = time.perf_counter(), _Reading()
        status, headers, error = 0, {}, ""
        self.in_flight += 1
        try:
            async with session.post(
                f"{self.origin}/v1/chat/completions",
                data=msgspec.json.encode(body),
                headers={"content-type": "application/json"},
            ) as answer:
                status, headers = answer.status, dict(answer.headers)
                if status == 200:
                    async for chunk in answer.content.iter_any():
                        reading.feed(chunk)
                    error = reading.error or ("" if reading.done else "the stream broke off")
                else:
                    error = (await answer.text())[:300]
        except TimeoutError:
            error = "hung"
        except aiohttp.ClientError as fault:
            error = f"{type(fault).__name__}: {fault}"
        finally:
            self.in_flight -= 1
        first_s = reading.first_s - started_s if reading.first_s is not None else None
        reused = headers.get("x-boomerang-reused-tokens", "0")
        self.seen.append(
            TurnSeen(
                at_s=started_s - self._began_s,
                conversation=number,
                number=turn,
                status=status,
                error=error,
                first_token_s=first_s,
                total_s=time.perf_counter() - started_s,
                plan=headers.get("x-boomerang-plan", ""),
                reason=headers.get("x-boomerang-reason", ""),
                reused_tokens=int(reused),
                prompt_tokens=reading.prompt_tokens,
                tainted=TAINT in reading.content,
            )
        )
        return reading.message() if not error else None


class _Reading:
    """A streamed answer, put together again."""

    def __init__(self) -> None:
        self.content, self.prompt_tokens, self.error = "", 0, ""
        self.done = False
        self.first_s: float | None = None
        self._calls: dict[int, dict[str, Any]] = {}
        self._rest = b""

    def feed(self, chunk: bytes) -> None:
        if self.first_s is None:  # an engine's first event comes with its first token
            self.first_s = time.perf_counter()
        *events, self._rest = (self._rest + chunk).split(b"\n\n")
        for data in self._data(events):
            if data == b"[DONE]":
                self.done = True
            else:
                self._event(msgspec.json.decode(data))

    def message(self) -> dict[str, Any]:
        told: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self._calls:
            told["tool_calls"] = list(self._calls.values())
        return told

    @staticmethod
    def _data(events: list[bytes]) -> Iterator[bytes]:
        for event in events:
            for line in event.splitlines():
                if line.startswith(b"data: "):
                    yield line[6:]

    def _event(self, event: dict[str, Any]) -> None:
        if "error" in event:
            self.error = str(event["error"])[:300]
        if event.get("usage"):
            self.prompt_tokens = event["usage"]["prompt_tokens"]
        for choice in event.get("choices", ()):
            delta = choice["delta"]
            self.content += delta.get("content") or ""
            for part in delta.get("tool_calls") or ():
                self._merge(part)

    def _merge(self, part: dict[str, Any]) -> None:
        call = self._calls.setdefault(
            part["index"], {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
        )
        function = part.get("function") or {}
        call["id"] = part.get("id") or call["id"]
        call["function"]["name"] += function.get("name") or ""
        call["function"]["arguments"] += function.get("arguments") or ""
