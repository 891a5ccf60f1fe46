"""Lineage: which history a request goes on from, told by its content alone. Pure.

``key_0`` is the *scope*: a digest of the tenant, the endpoint, the model and every member of the body
that can change the prompt. ``key_i = H(key_{i-1}, canonical(message_i))``, so equal keys mean equal histories
up to that boundary, for one tenant. Plain prompts chain over fixed strides of text or of ids instead.

Equal keys mean equal *messages*. They do not prove equal tokens (templates strip reasoning, answers
retokenise, objects with another key order render differently): tokens decide, lineage only finds. Where
something is left out of a digest, it is because it does not change the prompt; whatever is not known to be
harmless stays in, as a miss costs one cold turn.
"""

import re
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Final

import msgspec

from router.turn.request import Endpoint

KEY_BYTES: Final = 16
MAX_BOUNDARIES: Final = 4096
MAX_VALUES: Final = 100_000
"""JSON values in what is read of one request; a real history has ten or so in a message.

Each costs microseconds and a hundred bytes, while all other turns wait: 64 MB of empty messages are 40 s and
4 GB. Beyond it the turn is cold.
"""
STRIDE_BYTES: Final = 512
"""Of a plain text prompt, in UTF-8: about 128 tokens of English, one stride of the token digests."""
STRIDE_IDS: Final = 128
MEDIA_BYTES: Final = 4096
"""What a media string counts at most in ``sizes_bytes``: a picture is a thousand tokens, not a megabyte."""

# Members that do not change the prompt. The names are those of vLLM 0.32's ChatCompletionRequest and
# CompletionRequest (entrypoints/openai/{chat_completion,completion}/protocol.py): what there reaches only
# SamplingParams, the shape of the answer, or scheduling, and neither build_chat_params nor build_tok_params.
# Not here, and so part of the scope, are among others: tools, functions, documents, chat_template and
# chat_template_kwargs, reasoning_effort and other reasoning settings, response_format (some renderers print
# it), structured outputs, cache_salt, mm_processor_kwargs, media_io_kwargs, truncation, add_special_tokens,
# echo, suffix, prompt_embeds, and every name that is not known here.
PROMPT_NEUTRAL: Final = frozenset(
    {
        # sampling
        "allowed_token_ids",
        "bad_words",
        "best_of",
        "frequency_penalty",
        "ignore_eos",
        "length_penalty",
        "logit_bias",
        "min_p",
        "min_tokens",
        "n",
        "presence_penalty",
        "repetition_detection",
        "repetition_penalty",
        "seed",
        "temperature",
        "top_k",
        "top_p",
        "use_beam_search",
        "watermarking",
        # where an answer ends
        "include_stop_str_in_output",
        "max_completion_tokens",
        "max_tokens",
        "stop",
        "stop_token_ids",
        # the shape of an answer
        "include_reasoning",
        "logprob_token_ids",
        "logprobs",
        "mm_payload",
        "parallel_tool_calls",
        "prompt_logprobs",
        "return_mm_kwargs",
        "return_prompt_text",
        "return_token_ids",
        "return_token_offsets",
        "return_tokens_as_token_ids",
        "routed_experts_prompt_start",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "stream",
        "stream_interval",
        "stream_options",
        "top_logprobs",
        # ids, accounting, scheduling (the OpenAI API's and vLLM's)
        "conversation_id",
        "metadata",
        "priority",
        "prompt_cache_key",
        "prompt_cache_retention",
        "request_id",
        "safety_identifier",
        "service_tier",
        "session_id",
        "store",
        "user",
        # They shape only the prompt's end, past the last message's boundary.
        "add_generation_prompt",
        "continue_final_message",
    }
)

_HISTORY: Final = {Endpoint.CHAT: "messages", Endpoint.COMPLETIONS: "prompt"}
_SHOWN: Final = ("tools", "documents")
"""Members of the scope that templates print before the history."""
# Part types that vLLM 0.32 takes as text (TEXT_PART_TYPES and tool_reference in renderers/chat_utils.py).
_TEXT_PARTS: Final = frozenset({"text", "input_text", "output_text", "refusal", "thinking", "tool_reference"})
# Clients of Anthropic's API move this mark along with the newest messages; it asks for caching, not shown.
_CACHE_MARK: Final = "cache_control"
# Claude Code's first system text, new at every request; vLLM drops that line
# (_strip_claude_code_billing_header in renderers/chat_utils.py).
_BILLING_HEADER: Final = "x-anthropic-billing-header"

_STRINGS: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_encode = msgspec.json.Encoder(order="sorted").encode
_PERSON_SCOPE: Final = b"boomerang-scope"
_PERSON_MESSAGE: Final = b"boomerang-msg"
_PERSON_TEXT: Final = b"boomerang-text"
_PERSON_IDS: Final = b"boomerang-ids"
_UNREADABLE: Final = (msgspec.MsgspecError, RecursionError, UnicodeError, OverflowError)


@dataclass(frozen=True, slots=True)
class Lineage:
    """The chained digests of one request."""

    scope: bytes
    keys: tuple[bytes, ...]
    """``KEY_BYTES`` each, oldest first; ``keys[d - 1]`` is the boundary of depth d.

    At most ``MAX_BOUNDARIES``; of a longer history the newest, and depths count from the first one kept.
    """
    sizes_bytes: tuple[int, ...]
    """Cumulative size of the canonical history up to each boundary, tools and documents counted first."""
    own_depth: int
    """Depth of the first user message's boundary; 1 where there is none, or it lies before the first kept."""
    media_depth: int
    """Depth of the last message with an image, audio, video or file part; 0 where there is none.

    ``MAX_BOUNDARIES + 1``, past every boundary, where boundaries were dropped and there is any: depths of two
    requests are then no longer the same, and the safe answer is that no shared boundary covers the media.
    """
    shape: frozenset[str] = frozenset()
    """What kind of prompt it is: names of the members that shape it, and of its messages'; roles.

    Two requests of one shape are rendered by the same parts of a chat template, as far as can be seen.
    """


def lineage_of(endpoint: Endpoint, members: Mapping[str, msgspec.Raw], tenant: bytes) -> Lineage:
    """The lineage of a request. Never raises; a history that cannot be read has no boundaries.

    ``members`` are the body's top-level members as they go to an engine: what the edge strips (a client's
    ``kv_transfer_params``) has to be gone already, else it counts as unknown. ``tenant`` is a digest.
    """
    if _is_too_fine(endpoint, members):
        return Lineage(bytes(KEY_BYTES), (), (), 1, 0)
    shaping = _shaping(endpoint, members)
    scope = _scope(endpoint, shaping, tenant)
    history = members.get(_HISTORY.get(endpoint, ""))
    if history is not None:
        try:
            if endpoint is Endpoint.CHAT:
                shown_bytes = sum(len(memoryview(shaping[name])) for name in _SHOWN if name in shaping)
                found = _of_messages(scope, msgspec.json.decode(history), shown_bytes)
            else:
                found = _of_prompt(scope, msgspec.json.decode(history))
            return replace(found, shape=found.shape.union(shaping))
        except _UNREADABLE:
            pass
    return Lineage(scope, (), (), 1, 0)


def _is_too_fine(endpoint: Endpoint, members: Mapping[str, msgspec.Raw]) -> bool:
    """Whether the request has more than ``MAX_VALUES`` values. A plain prompt is flat, and does not count."""
    read = [
        bytes(raw)
        for name, raw in members.items()
        if name not in PROMPT_NEUTRAL and not (endpoint is Endpoint.COMPLETIONS and name == "prompt")
    ]
    if len(read) + sum(map(_marks, read)) <= MAX_VALUES:
        return False
    # Most of them may stand in texts.
    return len(read) + sum(_marks(_STRINGS.sub(b"", raw)) for raw in read) > MAX_VALUES


def _marks(document: bytes) -> int:
    """About how many values there are: each but the first of its container has a comma before it."""
    return document.count(b",") + document.count(b"[") + document.count(b"{")


def _shaping(endpoint: Endpoint, members: Mapping[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
    """The members that can change the prompt, but for the history; canonical where they can be read."""
    shaping: dict[str, msgspec.Raw] = {}
    history = _HISTORY.get(endpoint)
    for name, raw in members.items():
        if name in PROMPT_NEUTRAL or name == history:
            continue
        try:
            value = msgspec.json.decode(raw)
            if name == "vllm_xargs" and isinstance(value, dict):
                # vLLM reads a session id from here too; anything else may be meant for an extension.
                value = {key: item for key, item in value.items() if key != "session_id"} or None
            if value is not None:  # to vLLM a null member is an absent one
                shaping[name] = msgspec.Raw(_encode(value))
        except _UNREADABLE:
            shaping[name] = raw  # as it was written
    # Agents switch tool_choice between turns. It shapes the prompt only where "none" makes an engine leave
    # the tools out (--exclude-tools-when-tool-choice-none).
    chosen = shaping.pop("tool_choice", None)
    if chosen is not None and bytes(chosen) == b'"none"' and "tools" in shaping:
        shaping["tool_choice"] = chosen
    return shaping


def _scope(endpoint: Endpoint, shaping: Mapping[str, msgspec.Raw], tenant: bytes) -> bytes:
    state = blake2b(digest_size=KEY_BYTES, person=_PERSON_SCOPE)
    for part in (tenant, endpoint.encode(), _encode(shaping)):
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
    return state.digest()


def _of_messages(scope: bytes, messages: object, shown_bytes: int) -> Lineage:
    if not isinstance(messages, list):
        return Lineage(scope, (), (), 1, 0)
    keys: list[bytes] = []
    sizes: list[int] = []
    previous, size_bytes, own_depth, media_depth = scope, shown_bytes, 0, 0
    shape: set[str] = set()
    for depth, message in enumerate(messages, 1):
        if not isinstance(message, dict):
            return Lineage(scope, (), (), 1, 0)
        canonical = _canonical(message)
        shape.update(canonical)
        shape.add(f"role={canonical.get('role')}, {type(canonical.get('content')).__name__}")
        encoded = _encode(canonical)
        state = blake2b(previous, digest_size=KEY_BYTES, person=_PERSON_MESSAGE)
        state.update(encoded)
        previous = state.digest()
        size_bytes += len(encoded)
        if _holds_media(canonical):
            media_depth = depth
            size_bytes -= _media_excess_bytes(canonical.get("content"))
        if not own_depth and canonical.get("role") == "user":
            own_depth = depth
        keys.append(previous)
        sizes.append(size_bytes)
    dropped = max(len(keys) - MAX_BOUNDARIES, 0)
    return Lineage(
        scope,
        tuple(keys[dropped:]),
        tuple(sizes[dropped:]),
        max(own_depth - dropped, 1),
        MAX_BOUNDARIES + 1 if dropped and media_depth else media_depth,
        frozenset(shape),
    )


def _canonical(message: dict[str, Any]) -> dict[str, Any]:
    """The message without nulls, cache marks and billing header; its content untouched.

    Nulls go only where the API has optional members (a message, its parts and tool calls): vLLM takes them as
    absent. Inside of what a client fills freely, such as arguments, a null is content.
    """
    message = _present(message)
    content = message.get("content")
    if isinstance(content, list):
        message["content"] = [_present(part) if isinstance(part, dict) else part for part in content]
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        message["tool_calls"] = [_canonical_call(call) for call in calls]
    if message.get("role") == "system":
        _leave_out_billing_header(message)
    return message


def _present(value: dict[str, Any]) -> dict[str, Any]:
    return {key: item for key, item in value.items() if item is not None and key != _CACHE_MARK}


def _canonical_call(call: object) -> object:
    if not isinstance(call, dict):
        return call
    call = _present(call)
    if isinstance(call.get("function"), dict):
        call["function"] = {key: item for key, item in call["function"].items() if item is not None}
    return call


def _leave_out_billing_header(message: dict[str, Any]) -> None:
    """Only that line goes: what follows it in the same text is content."""
    content = message.get("content")
    if isinstance(content, str) and content.startswith(_BILLING_HEADER):
        message["content"] = content.partition("\n")[2]
    elif isinstance(content, list):
        kept: list[Any] = []
        for part in content:
            textual = isinstance(part, dict) and part.get("type") == "text"
            text = part.get("text") if textual else part
            if not isinstance(text, str) or not text.startswith(_BILLING_HEADER):
                kept.append(part)
            elif rest := text.partition("\n")[2]:
                kept.append({**part, "text": rest} if textual else rest)
        message["content"] = kept


def _holds_media(message: dict[str, Any]) -> bool:
    """Whether tokens may stand for something that they do not tell; what is unknown counts as media."""
    content = message.get("content")
    if isinstance(content, str) or content is None:
        return "audio" in message
    if not isinstance(content, list):
        return True
    return "audio" in message or not all(map(_is_text, content))


def _is_text(part: object) -> bool:
    if isinstance(part, dict):
        kind = part.get("type")
        # A part with a uuid is read by its media members, whatever its type says.
        return isinstance(kind, str) and kind in _TEXT_PARTS and "uuid" not in part
    return isinstance(part, str)


def _media_excess_bytes(content: object) -> int:
    """By how much the strings of media parts exceed what they count as."""
    excess_bytes = 0
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict) and not _is_text(part):
            for value in part.values():
                for text in value.values() if isinstance(value, dict) else (value,):
                    if isinstance(text, str):
                        excess_bytes += max(len(text) - MEDIA_BYTES, 0)
    return excess_bytes


def _of_prompt(scope: bytes, prompt: object) -> Lineage:
    """Boundaries at whole strides only: where a prompt ends, the next one has no boundary to meet it at.

    So a growing prompt extends the last whole stride of the one before, and one that grew by less than a
    stride has the very same boundaries. Lists of prompts have none.
    """
    if isinstance(prompt, str):
        return _of_strides(scope, prompt.encode(), STRIDE_BYTES, _PERSON_TEXT)
    # bool is an int to Python, and no token id.
    if isinstance(prompt, list) and set(map(type, prompt)) == {int}:
        packed = array("I", prompt)
        return _of_strides(scope, packed.tobytes(), STRIDE_IDS * packed.itemsize, _PERSON_IDS)
    return Lineage(scope, (), (), 1, 0)


def _of_strides(scope: bytes, data: bytes, stride_bytes: int, person: bytes) -> Lineage:
    view = memoryview(data)
    keys: list[bytes] = []
    previous = scope
    for end in range(stride_bytes, len(view) + 1, stride_bytes):
        state = blake2b(previous, digest_size=KEY_BYTES, person=person)
        state.update(view[end - stride_bytes : end])
        previous = state.digest()
        keys.append(previous)
    dropped = max(len(keys) - MAX_BOUNDARIES, 0)
    sizes_bytes = tuple(stride_bytes * depth for depth in range(dropped + 1, len(keys) + 1))
    return Lineage(scope, tuple(keys[dropped:]), sizes_bytes, 1, 0)
