"""How to learn a prompt's token ids before the prefill leg, on an engine that has no plugin. Pure.

Three ways, in order: the prompt is token ids already; the engine's ``…/render`` route, which reads a request
as the real one is read; ``/tokenize``, which knows only some of the fields that shape a prompt. Where a
request has a field that the way cannot see, there is no way, and the turn goes cold.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from router.turn.digest import pack
from router.turn.members import join, small
from router.turn.request import Endpoint, Request

TOKENIZE_PATH: Final = "/tokenize"

_TOKENIZE_CHAT: Final = frozenset(
    {
        "model",
        "messages",
        "add_generation_prompt",
        "continue_final_message",
        "add_special_tokens",
        "chat_template",
        "chat_template_kwargs",
        "tools",
    }
)
_TOKENIZE_PROMPT: Final = frozenset({"model", "prompt", "add_special_tokens"})
"""Fields that shape a prompt and that ``/tokenize`` knows (vLLM 0.32, ``tokenize/protocol.py``)."""

_UNSEEN_BY_TOKENIZE: Final = frozenset(
    {
        "truncate_prompt_tokens",
        "truncation_side",
        "documents",
        "reasoning_effort",
        "include_reasoning",
        "thinking",
        "thinking_token_budget",
        "response_format",
        "structured_outputs",
        "media_io_kwargs",
        "mm_processor_kwargs",
        "mm_payload",
        "functions",
        "function_call",
        "suffix",
    }
)
"""Fields that may shape a prompt and that ``/tokenize`` does not know: with one of them it is not asked."""


class Unrendered(ValueError):
    """The engine's answer is not a list of token ids."""


@dataclass(frozen=True, slots=True)
class Render:
    """A request that tells a prompt's ids."""

    path: str
    body: bytes


def own_ids(request: Request) -> array[int] | None:
    """The ids of a prompt that was given as ids and that the engine takes as they are; else None."""
    if request.endpoint is not Endpoint.COMPLETIONS or _set(request, "truncate_prompt_tokens"):
        return None
    try:
        return pack(msgspec.json.decode(request.members["prompt"], type=list[int]))
    except (KeyError, msgspec.ValidationError, OverflowError):
        return None


def by_render(request: Request) -> Render:
    """Ask the engine's render route; never streamed."""
    members = dict(request.members)
    members.pop("stream_options", None)
    members["stream"] = msgspec.Raw(b"false")
    return Render(f"{request.path}/render", join(members))


def by_tokenize(request: Request, *, media: bool) -> Render | None:
    """Ask ``/tokenize``; None where the request has something that it does not see."""
    members = request.members
    if media or any(_set(request, name) for name in _UNSEEN_BY_TOKENIZE):
        return None
    if small(members, "tool_choice") == "none" and _set(request, "tools"):
        return None  # an engine may leave the tools out of the prompt then; /tokenize would not
    known = _TOKENIZE_CHAT if request.endpoint is Endpoint.CHAT else _TOKENIZE_PROMPT
    return Render(TOKENIZE_PATH, join({k: v for k, v in members.items() if k in known}))


def _set(request: Request, name: str) -> bool:
    raw = request.members.get(name)
    return raw is not None and bytes(memoryview(raw)[:4]) != b"null"


def ids_of(answer: bytes) -> array[int]:
    """The ids in an answer of ``…/render`` or ``/tokenize``. Raises Unrendered."""
    try:
        document: Any = msgspec.json.decode(answer)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise Unrendered(str(error)) from None
    if isinstance(document, list) and len(document) == 1:
        document = document[0]
    ids = None
    if isinstance(document, dict):
        ids = document.get("token_ids", document.get("tokens"))
    if not isinstance(ids, list):
        raise Unrendered("no token ids in the answer")
    try:
        return pack(ids)
    except (TypeError, OverflowError):
        raise Unrendered("token ids are not unsigned integers") from None
