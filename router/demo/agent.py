"""A tool-using agent, as simple as agents are: it resends its whole history at every turn.

It knows nothing of the router: no ids, no headers, the official client.
"""

import random
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

from openai import OpenAI

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": text,
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string"}},
                "required": ["path"],
            },
        },
    }
    for name, text in (
        ("read_file", "Read a file of the repository."),
        ("search", "Search the repository for a word."),
    )
]
QUESTIONS = (
    "Find out why the nightly job fails.",
    "Is the same mistake anywhere else?",
    "What would a fix look like?",
    "Which tests have to change?",
    "Write the change log entry.",
)
_TEXT = (
    "request handler returns the cached block before lease expiry while scheduler keeps queue order "
    "stable under load and worker threads flush pending writes to the journal on commit"
)
_WORDS = _TEXT.split()


def text_of(seed: int, words: int) -> str:
    """Plain text that is the same for the same seed: what files and tools hold here."""
    draw = random.Random(seed)  # noqa: S311 - reproducible text, no secret
    lines = (" ".join(draw.choices(_WORDS, k=14)) for _ in range(words // 14))
    return "\n".join(f"{number:4d}  {line}" for number, line in enumerate(lines, 1))


@dataclass(frozen=True, slots=True)
class TurnSeen:
    """One turn, as the client saw it. Times in seconds."""

    asked: str
    prompt_tokens: int
    plan: str
    reason: str
    reused_tokens: int
    first_token_s: float


@dataclass(slots=True)
class Agent:
    """One conversation through one router. ``name`` makes it different from any other from its first word."""

    base_url: str
    model: str
    name: str
    messages: list[dict[str, Any]] = field(default_factory=list)
    _question: int = 0

    def turns(self, count: int) -> Generator[TurnSeen, None, None]:
        """Play ``count`` requests; each is a user's question, or the results of the tools called before."""
        with OpenAI(base_url=f"{self.base_url}/v1", api_key="demo", max_retries=0, timeout=120.0) as client:
            system = f"Agent {self.name}. You help with a repository.\n{text_of(1, 980)}"
            self.messages = [{"role": "system", "content": system}]
            for number in range(count):
                yield self._turn(client, number)

    def _turn(self, client: OpenAI, number: int) -> TurnSeen:
        calls = self.messages[-1].get("tool_calls")
        if calls:
            asked = f"{len(calls)} tool result{'s' if len(calls) > 1 else ''}"
            for at, call in enumerate(calls):
                content = text_of(1000 * number + at, 1400 // len(calls))
                self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})
        else:
            asked = "question"
            text = QUESTIONS[self._question % len(QUESTIONS)]
            self._question += 1
            self.messages.append({"role": "user", "content": f"{text}\n\n{text_of(7000 + number, 700)}"})
        return self._ask(client, asked)

    def _ask(self, client: OpenAI, asked: str) -> TurnSeen:
        started_s = time.perf_counter()
        first_s, prompt_tokens = 0.0, 0
        content, calls = "", dict[int, dict[str, Any]]()
        create: Any = client.chat.completions.with_raw_response.create  # typed for literals only
        raw = create(
            model=self.model,
            messages=self.messages,
            tools=TOOLS,
            temperature=0,
            max_tokens=256,
            stream=True,
            stream_options={"include_usage": True},
        )
        for chunk in raw.parse():
            if first_s == 0.0:  # an engine's first event comes with its first token
                first_s = time.perf_counter() - started_s
            if chunk.usage is not None:
                prompt_tokens = chunk.usage.prompt_tokens
            for choice in chunk.choices:
                delta = choice.delta
                content += delta.content or ""
                for part in delta.tool_calls or ():
                    _merge(calls, part)
        answer: dict[str, Any] = {"role": "assistant", "content": content}
        if calls:
            answer["tool_calls"] = list(calls.values())
        self.messages.append(answer)
        headers = raw.headers
        return TurnSeen(
            asked=asked,
            prompt_tokens=prompt_tokens,
            plan=headers.get("x-boomerang-plan", ""),
            reason=headers.get("x-boomerang-reason", ""),
            reused_tokens=int(headers.get("x-boomerang-reused-tokens", 0)),
            first_token_s=first_s,
        )


def _merge(calls: dict[int, dict[str, Any]], part: Any) -> None:
    """Add one streamed piece of a tool call to what came before."""
    call = calls.setdefault(
        part.index, {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
    )
    call["id"] = part.id or call["id"]
    if part.function is not None:
        call["function"]["name"] += part.function.name or ""
        call["function"]["arguments"] += part.function.arguments or ""
