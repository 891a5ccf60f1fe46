"""One request of a simulated client, and what such requests are made of. All chance comes from outside."""

from dataclasses import dataclass, replace
from functools import lru_cache
from random import Random
from typing import Any, Final

Body = dict[str, Any]
Message = dict[str, Any]

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
MODEL: Final = "sim-qwen3"
ADAPTER: Final = "sim-qwen3-lora"
"""Another model on the same engines: equal tokens, other KV."""
TENANTS: Final = ("acme", "zeta", "ohm")

_WORDS: Final = """
alpha beta gamma delta kernel socket thread ledger branch parcel ticket number seven blue fast slow naïve
Zürich größer 北京 run(x) => {y} [0] != #tag "q" it's 12:30 3.14159 /etc/hosts foo_bar camelCase
""".split()  # noqa: SIM905 - a list of words reads worse


@dataclass(frozen=True, slots=True)
class Ask:
    """A request and how its client behaves."""

    path: str
    body: Body
    tenant: str
    conversation: str
    """What a client that knows no better would call the conversation; sent only where ``headers`` say so."""
    headers: tuple[tuple[str, str], ...] = ()
    leave_after_s: float | None = None
    reads_every_s: float = 0.0
    """How long the client takes between two reads of a stream."""

    def with_body(self, **members: Any) -> "Ask":
        return replace(self, body={**self.body, **members})


@lru_cache(maxsize=64)
def passage(seed: int, words: int) -> str:
    """A text of that many words, the same for the same seed; about two tokens a word."""
    random = Random(seed)
    return " ".join(random.choices(_WORDS, k=words))


def phrase(random: Random, most: int = 40) -> str:
    return " ".join(random.choices(_WORDS, k=random.randint(1, most)))


def tool(name: str) -> Body:
    properties = {"path": {"type": "string"}, "line": {"type": "integer"}, "deep": {"type": "object"}}
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "description": name, "parameters": parameters}}


def image(number: int) -> Body:
    """A picture; all of them are the same tokens."""
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{number:08d}"}}


def with_options(ask: Ask, random: Random, *, streams: float) -> Ask:
    """The request with what clients set besides their history."""
    body: Body = dict(ask.body)
    if random.random() < streams:
        body["stream"] = True
        if random.random() < 0.5:
            body["stream_options"] = {"include_usage": True}
    chat = ask.path == CHAT
    if random.random() < 0.08:
        body["max_tokens"] = 1
    elif random.random() < 0.2:
        body["max_completion_tokens" if chat and random.random() < 0.5 else "max_tokens"] = random.randint(
            2, 30
        )
    if random.random() < 0.05:
        body["stop"] = ["e"] if random.random() < 0.5 else "stone"
    if random.random() < 0.03:
        body["n"] = 2
    if random.random() < 0.05:
        body["min_tokens"] = random.randint(1, 8)
        if not chat:
            body["max_tokens"] = 16
        elif body.get("max_tokens") is not None or body.get("max_completion_tokens") is not None:
            del body["min_tokens"]
    if random.random() < 0.05:
        body["logprobs"] = True if chat else 1
    if random.random() < 0.1:
        body["temperature"] = 0.0
        body["seed"] = random.randint(0, 9)
    if random.random() < 0.03:
        body["return_token_ids"] = True
    if chat and random.random() < 0.02:
        body["response_format"] = {"type": "json_object"}
    if chat and random.random() < 0.04:
        body |= _shaping(random)
    if random.random() < 0.01:
        # A client that tries to steer the engines; none of it may reach them.
        body["kv_transfer_params"] = {"do_remote_decode": True, "remote_block_ids": [[1]], "remote_host": "x"}
    leave = random.uniform(0, 0.12) if random.random() < 0.04 else None
    pace = random.choice((0.2, 3.0)) if body.get("stream") and random.random() < 0.04 else 0.0
    return replace(ask, body=body, leave_after_s=leave, reads_every_s=pace)


def _shaping(random: Random) -> Body:
    """A member that changes the prompt without changing a message, and that few ways of rendering see."""
    return random.choice(
        (
            {"reasoning_effort": random.choice(("low", "high"))},
            {"documents": [{"title": "d", "text": phrase(random)}]},
            {"chat_template": "{{ messages }}"},
            {"truncate_prompt_tokens": random.randint(30, 600)},
            {"cache_salt": random.choice(("one", "two"))},
            {"add_generation_prompt": False},
        )
    )
