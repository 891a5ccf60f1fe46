"""The shapes that an engine's answers are decoded into: only what the router reads of them.

A module of their own: shapes and decoders, and nothing that decides.
"""

from typing import TypeAlias

import msgspec

Unread: TypeAlias = msgspec.Raw | msgspec.UnsetType
"""A member as raw JSON; what is not there costs nothing."""


class Choice(msgspec.Struct, gc=False):
    """What one choice of a streamed event or a whole body says."""

    index: int | None = 0
    finish_reason: str | None = None
    text: str | None = None
    delta: dict[str, msgspec.Raw] | None = None


class Document(msgspec.Struct, gc=False):
    """A streamed event, or a whole body."""

    choices: list[Choice] | None = None
    error: Unread = msgspec.UNSET
    usage: Unread = msgspec.UNSET
    kv_transfer_params: Unread = msgspec.UNSET


class ChoiceOfIds(Choice, gc=False):
    """A choice with its token ids."""

    token_ids: msgspec.Raw = msgspec.Raw()
    prompt_token_ids: msgspec.Raw = msgspec.Raw()


class DocumentOfIds(msgspec.Struct, gc=False):
    """The same for who reads token ids as well."""

    choices: list[ChoiceOfIds] | None = None
    error: Unread = msgspec.UNSET
    usage: Unread = msgspec.UNSET
    kv_transfer_params: Unread = msgspec.UNSET
    prompt_token_ids: msgspec.Raw = msgspec.Raw()


class PromptDetails(msgspec.Struct):
    """What `usage` says of the prompt."""

    cached_tokens: int | None = None


class TokensUsed(msgspec.Struct):
    """The `usage` of an answer."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None


decode = msgspec.json.Decoder(Document).decode
decode_with_ids = msgspec.json.Decoder(DocumentOfIds).decode
decode_usage = msgspec.json.Decoder(TokensUsed).decode
decode_ids = msgspec.json.Decoder(list[int]).decode
