"""The prompts of a check: unique in each run, and long enough that a pull is worth it. Pure.

Each begins with a random word, so that no prefix cache holds any of it from an earlier run.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from router.turn.request import Endpoint, Request, read_request

CHAT_PATH: Final = "/v1/chat/completions"
COMPLETIONS_PATH: Final = "/v1/completions"
MARGIN_TOKENS: Final = 32
UNKNOWN_BLOCK_TOKENS: Final = 128
"""vLLM's largest usual block (CPU); taken where a node does not tell its own."""
ANSWER_TOKENS: Final = 8

_WORDS: Final = [
    "the",
    "river",
    "runs",
    "past",
    "a",
    "small",
    "town",
    "and",
    "under",
    "an",
    "old",
    "stone",
    "bridge",
    "while",
    "the",
    "people",
    "on",
    "the",
    "bank",
    "talk",
    "about",
    "rain",
    "wind",
    "and",
    "the",
    "price",
    "of",
    "bread",
    "in",
    "the",
    "market",
    "on",
    "a",
    "cold",
    "morning",
    "in",
    "early",
    "spring",
]
_THOUGHT: Final = "<think>\nThe list is long.\n</think>\n\nI have read it."
"""An answer with reasoning in the history: what templates treat differently, and P and D must not."""


def wanted_tokens(threshold_tokens: int, block_tokens: int | None) -> int:
    """How long the first prompt is to be: the threshold, a block for rounding down, and a margin."""
    return threshold_tokens + (block_tokens or UNKNOWN_BLOCK_TOKENS) + MARGIN_TOKENS


def opening(
    endpoint: Endpoint, model: str, *, nonce: str, tokens: int, max_tokens: int, stream: bool = False
) -> Request:
    """The first turn: at least ``tokens`` prompt tokens, as a word is one at least."""
    text = f"{nonce} " + " ".join(_WORDS[index % len(_WORDS)] for index in range(tokens))
    members: dict[str, Any] = {"model": model}
    if endpoint is Endpoint.CHAT:
        members["messages"] = [
            {"role": "user", "content": text},
            {"role": "assistant", "content": _THOUGHT},
            {"role": "user", "content": "Go on from there."},
        ]
    else:
        members["prompt"] = text
    return _request(endpoint, members | _sampling(max_tokens, stream=stream), nonce)


def by_ids(model: str, ids: Sequence[int], *, max_tokens: int, logprobs: int | None = None) -> Request:
    """A turn whose prompt is these very tokens: no template or tokenizer comes in between."""
    members = {"model": model, "prompt": list(ids), **_sampling(max_tokens, stream=False)}
    if logprobs is not None:
        # Two tokens may have one text; their ids keep them apart.
        members |= {"logprobs": logprobs, "return_tokens_as_token_ids": True}
    return _request(Endpoint.COMPLETIONS, members, "ids")


def bare(model: str, token: int) -> bytes:
    """The smallest request: one token, and no params of any kind."""
    return msgspec.json.encode(
        {"model": model, "prompt": [token], "max_tokens": 1, "temperature": 0, "stream": False}
    )


def _sampling(max_tokens: int, *, stream: bool) -> dict[str, Any]:
    # With ignore_eos every answer has its full length, and none ends in a way that leaves no handle.
    return {"max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, "stream": stream}


def _request(endpoint: Endpoint, members: dict[str, Any], turn_id: str) -> Request:
    path = CHAT_PATH if endpoint is Endpoint.CHAT else COMPLETIONS_PATH
    return read_request(endpoint, path, (), msgspec.json.encode(members), turn_id=turn_id)
