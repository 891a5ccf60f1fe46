"""The canonical form of a chat message, which equal messages share however they are written. Pure.

Parsed, null members dropped, keys sorted, content untouched; what agents are known to move from turn to turn
without changing the prompt is left out.
"""

from typing import Any, Final

import msgspec

MEDIA_BYTES: Final = 4096
"""What a media string counts at most in a size: a picture is a thousand tokens, not a megabyte."""

# Part types that vLLM 0.32 takes as text (TEXT_PART_TYPES and tool_reference in renderers/chat_utils.py).
_TEXT_PARTS: Final = frozenset({"text", "input_text", "output_text", "refusal", "thinking", "tool_reference"})
# Clients of Anthropic's API move this mark along with the newest messages; it asks for caching, not shown.
_CACHE_MARK: Final = "cache_control"
# Claude Code's first system text, new at every request; vLLM drops that line
# (_strip_claude_code_billing_header in renderers/chat_utils.py).
BILLING_HEADER: Final = "x-anthropic-billing-header"

encode: Final = msgspec.json.Encoder(order="sorted").encode
"""Writes a value in one way only: keys sorted, no whitespace, the shortest escapes."""


def canonical(message: dict[str, Any]) -> dict[str, Any]:
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
    if isinstance(content, str) and content.startswith(BILLING_HEADER):
        message["content"] = content.partition("\n")[2]
    elif isinstance(content, list):
        kept: list[Any] = []
        for part in content:
            textual = isinstance(part, dict) and part.get("type") == "text"
            text = part.get("text") if textual else part
            if not isinstance(text, str) or not text.startswith(BILLING_HEADER):
                kept.append(part)
            elif rest := text.partition("\n")[2]:
                kept.append({**part, "text": rest} if textual else rest)
        message["content"] = kept


def holds_media(message: dict[str, Any]) -> bool:
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


def media_excess_bytes(content: object) -> int:
    """By how much the strings of media parts exceed what they count as."""
    excess_bytes = 0
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict) and not _is_text(part):
            for value in part.values():
                for text in value.values() if isinstance(value, dict) else (value,):
                    if isinstance(text, str):
                        excess_bytes += max(len(text) - MEDIA_BYTES, 0)
    return excess_bytes
