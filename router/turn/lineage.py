"""Lineage: which history a request goes on from, told by its content alone. Pure.

``key_0`` is the *scope*: a digest of the tenant, the endpoint, the model and every member of the body
that can change the prompt. ``key_i = H(key_{i-1}, canonical(message_i))``, so equal keys mean equal histories
up to that boundary, for one tenant. Plain prompts chain over fixed strides of text or of ids instead.

Equal keys mean equal *messages*. They do not prove equal tokens (templates strip reasoning, answers
retokenise, objects with another key order render differently): tokens decide, lineage only finds. Where
something is left out of a digest, it is because it does not change the prompt; whatever is not known to be
harmless stays in, as a miss costs one cold turn.
"""

from array import array
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Final

import msgspec

from router.turn.canonical import encode
from router.turn.history import KEY_BYTES, TooFine, read_history, require_coarse
from router.turn.prefixes import Prefixes
from router.turn.request import Endpoint
from router.values import value

MAX_BOUNDARIES: Final = 4096
STRIDE_BYTES: Final = 512
"""Of a plain text prompt, in UTF-8: about 128 tokens of English, one stride of the token digests."""
STRIDE_IDS: Final = 128

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
_PERSON_SCOPE: Final = b"boomerang-scope"
_PERSON_TEXT: Final = b"boomerang-text"
_PERSON_IDS: Final = b"boomerang-ids"
_decode_prompt: Final = msgspec.json.Decoder(str | list[int]).decode
_UNREADABLE: Final = (msgspec.MsgspecError, RecursionError, UnicodeError, OverflowError)


@value
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


def lineage_of(
    endpoint: Endpoint, members: Mapping[str, msgspec.Raw], tenant: bytes, prefixes: Prefixes | None = None
) -> Lineage:
    """The lineage of a request. Never raises; a history that cannot be read has no boundaries.

    ``members`` are the body's top-level members as they go to an engine: what the edge strips (a client's
    ``kv_transfer_params``) has to be gone already, else it counts as unknown. ``tenant`` is a digest.
    ``prefixes``, where given, spare reading again what earlier requests began with; the result is the same.
    """
    name = _HISTORY.get(endpoint, "")
    try:
        require_coarse(
            [bytes(raw) for key, raw in members.items() if key not in PROMPT_NEUTRAL and key != name]
        )
        shaping = _shaping(endpoint, members)
        scope = _scope(endpoint, shaping, tenant)
        history = members.get(name)
        if history is None:
            return Lineage(scope, (), (), 1, 0)
        try:
            if endpoint is Endpoint.CHAT:
                shown_bytes = sum(len(memoryview(shaping[shown])) for shown in _SHOWN if shown in shaping)
                return _of_messages(scope, history, shown_bytes, prefixes, shaping)
            return _of_prompt(scope, history, frozenset(shaping))
        except _UNREADABLE:
            return Lineage(scope, (), (), 1, 0)
    except TooFine:
        return Lineage(bytes(KEY_BYTES), (), (), 1, 0)


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
                shaping[name] = msgspec.Raw(encode(value))
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
    for part in (tenant, endpoint.encode(), encode(shaping)):
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
    return state.digest()


def _of_messages(
    scope: bytes,
    raw: msgspec.Raw,
    shown_bytes: int,
    prefixes: Prefixes | None,
    shaping: Iterable[str],
) -> Lineage:
    history = read_history(scope, raw, shown_bytes, prefixes)
    dropped = max(len(history.keys) - MAX_BOUNDARIES, 0)
    media_depth = history.media_depths[-1]
    return Lineage(
        scope,
        tuple(history.keys[dropped:]),
        tuple(history.sizes_bytes[dropped:]),
        max(history.own_depth - dropped, 1),
        MAX_BOUNDARIES + 1 if dropped and media_depth else media_depth,
        history.shape.union(shaping),
    )


def _of_prompt(scope: bytes, raw: msgspec.Raw, shape: frozenset[str]) -> Lineage:
    """Boundaries at whole strides only: where a prompt ends, the next one has no boundary to meet it at.

    So a growing prompt extends the last whole stride of the one before, and one that grew by less than a
    stride has the very same boundaries. Lists of prompts have none.
    """
    prompt = _decode_prompt(raw)
    if isinstance(prompt, str):
        return _of_strides(scope, prompt.encode(), STRIDE_BYTES, _PERSON_TEXT, shape)
    packed = array("I", prompt)
    return _of_strides(scope, packed.tobytes(), STRIDE_IDS * packed.itemsize, _PERSON_IDS, shape)


def _of_strides(
    scope: bytes, data: bytes, stride_bytes: int, person: bytes, shape: frozenset[str]
) -> Lineage:
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
    return Lineage(scope, tuple(keys[dropped:]), sizes_bytes, 1, 0, shape)
