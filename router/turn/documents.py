"""The shapes that an engine's answers are decoded into: only what the router reads of them.

A module of their own, because classes of msgspec cannot be compiled (`docs/decisions/0003-compiled.md`).
"""

import msgspec


class Choice(msgspec.Struct, gc=False):
    """What one choice of a streamed event or a whole body says."""

    index: int | None = 0
    finish_reason: str | None = None
    text: str | None = None
    delta: dict[str, msgspec.Raw] | None = None
    token_ids: msgspec.Raw = msgspec.Raw()
    prompt_token_ids: msgspec.Raw = msgspec.Raw()


class Document(msgspec.Struct, gc=False):
    """A streamed event, or a whole body."""

    choices: list[Choice] | None = None
    error: msgspec.Raw = msgspec.Raw()
    usage: msgspec.Raw = msgspec.Raw()
    prompt_token_ids: msgspec.Raw = msgspec.Raw()


class PromptDetails(msgspec.Struct):
    """What `usage` says of the prompt."""

    cached_tokens: int | None = None


class TokensUsed(msgspec.Struct):
    """The `usage` of an answer."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None


class Carried(msgspec.Struct, gc=False):
    """The one member that a prefill leg's answer is read for."""

    kv_transfer_params: msgspec.Raw = msgspec.Raw()


decode = msgspec.json.Decoder(Document).decode
decode_usage = msgspec.json.Decoder(TokensUsed).decode
decode_ids = msgspec.json.Decoder(list[int]).decode
decode_carried = msgspec.json.Decoder(Carried).decode
