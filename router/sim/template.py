"""The chat template of the simulated models: what a request's fields become as prompt text.

It does what the templates of Qwen's models do, because that is where histories and prompts part ways:
reasoning of assistant turns before the last user message is dropped, tool calls are serialised again, tool
results are grouped into one user turn, and ``enable_thinking: false`` writes an empty thought into the
generation prompt that no later prompt repeats.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

_MEDIA = {
    "image_url": "<|image_pad|>",
    "image": "<|image_pad|>",
    "input_image": "<|image_pad|>",
    "image_embeds": "<|image_pad|>",
    "input_audio": "<|audio_pad|>",
    "audio_url": "<|audio_pad|>",
    "video_url": "<|video_pad|>",
}


class TemplateError(ValueError):
    """The messages cannot be rendered; the text is for the client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateOptions:
    strip_reasoning: bool = True
    """Drop the reasoning of assistant turns before the last user message, as Qwen3's template does."""
    media_tokens: int = 32
    """Placeholder tokens of each image, sound or film, whatever it shows: different ones look equal (T12)."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt's text, and the digests of its media in the order of their placeholders."""

    text: str
    media: tuple[bytes, ...] = ()


def compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def render_chat(fields: Mapping[str, Any], options: TemplateOptions) -> Rendered:
    """The prompt of a chat request. ``fields`` are the body's own. Raises TemplateError."""
    kwargs = fields.get("chat_template_kwargs") or {}
    if not isinstance(kwargs, dict):
        raise TemplateError("chat_template_kwargs must be an object")
    messages: Sequence[Mapping[str, Any]] = fields["messages"]
    media: list[bytes] = []
    out: list[str] = []
    rest = list(messages)
    system = _system_block(rest, fields, kwargs, media, options)
    if system:
        out.append(f"<|im_start|>system\n{system}<|im_end|>\n")
    last_user = max((i for i, m in enumerate(rest) if m.get("role") == "user"), default=-1)
    continued = bool(fields.get("continue_final_message"))
    for index, message in enumerate(rest):
        role = message.get("role")
        open_end = continued and index == len(rest) - 1
        end = "" if open_end else "<|im_end|>\n"
        if role == "assistant":
            keep = not options.strip_reasoning or index > last_user
            out.append(f"<|im_start|>assistant\n{_assistant(message, media, options, keep=keep)}{end}")
        elif role == "tool":
            first = index == 0 or rest[index - 1].get("role") != "tool"
            last = index == len(rest) - 1 or rest[index + 1].get("role") != "tool"
            body = _content(message.get("content"), media, options)
            out.append("<|im_start|>user" if first else "")
            out.append(f"\n<tool_response>\n{body}\n</tool_response>")
            out.append(end if last else "")
        else:
            body = _content(message.get("content"), media, options)
            out.append(f"<|im_start|>{role}\n{body}{end}")
    if fields.get("add_generation_prompt", not continued):
        out.append("<|im_start|>assistant\n")
        if kwargs.get("enable_thinking") is False:
            out.append("<think>\n\n</think>\n\n")
    return Rendered("".join(out), tuple(media))


def _system_block(
    rest: list[Mapping[str, Any]],
    fields: Mapping[str, Any],
    kwargs: Mapping[str, Any],
    media: list[bytes],
    options: TemplateOptions,
) -> str:
    """Everything that goes before the first turn; takes the leading system message off ``rest``."""
    parts: list[str] = []
    if fields.get("chat_template"):
        digest = blake2b(str(fields["chat_template"]).encode(), digest_size=4).hexdigest()
        parts.append(f"[template {digest}]")
    if fields.get("reasoning_effort"):
        parts.append(f"Reasoning: {fields['reasoning_effort']}")
    others = {key: value for key, value in kwargs.items() if key != "enable_thinking"}
    if others:
        parts.append(f"[{compact(others)}]")
    if rest and rest[0].get("role") in ("system", "developer"):
        parts.append(_content(rest.pop(0).get("content"), media, options))
    if fields.get("documents"):
        parts.append("# Documents\n" + "\n".join(compact(document) for document in fields["documents"]))
    tools = fields.get("tools")
    if tools:
        listed = "\n".join(compact(tool) for tool in tools)
        parts.append(f"# Tools\n\n<tools>\n{listed}\n</tools>")
    return "\n\n".join(part for part in parts if part)


def _assistant(
    message: Mapping[str, Any], media: list[bytes], options: TemplateOptions, *, keep: bool
) -> str:
    content = _content(message.get("content"), media, options)
    reasoning = message.get("reasoning") or message.get("reasoning_content") or ""
    if not reasoning and "</think>" in content:
        thought, _, content = content.partition("</think>")
        reasoning = thought.rpartition("<think>")[2].strip("\n")
    content = content.lstrip("\n")
    text = f"<think>\n{reasoning}\n</think>\n\n{content}" if reasoning and keep else content
    calls = message.get("tool_calls") or ()
    for index, call in enumerate(calls):
        function = call.get("function") or call
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except ValueError:
                raise TemplateError("a tool call's arguments are not JSON") from None
        text += "\n" if index or content else ""
        text += tool_call_text(str(function.get("name")), compact(arguments))
    return text


def tool_call_text(name: str, arguments: str) -> str:
    """One tool call as the model writes it and the template repeats it. ``arguments`` is JSON."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def _content(content: object, media: list[bytes], options: TemplateOptions) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise TemplateError("a message's content must be a string or a list of parts")
    out: list[str] = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in _MEDIA:
            raw = json.dumps(part.get(kind, part), sort_keys=True).encode()
            media.append(blake2b(raw, digest_size=16).digest())
            out.append(f"<|vision_start|>{_MEDIA[kind] * options.media_tokens}<|vision_end|>")
        elif kind is not None and isinstance(part.get("text"), str):
            out.append(part["text"])
        else:
            raise TemplateError(f"unknown part type: {kind}")
    return "".join(out)
