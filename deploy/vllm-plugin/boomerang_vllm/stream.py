"""The handle in streams that have none, which is vLLM before 0.33.

vLLM's stream generators read engine outputs and write events. The outputs are looked at on their way in; if
one carries a handle, and no event did, one more event goes out before the end: the last event's ``id``,
``object``, ``created`` and ``model``, no choices, and the handle. Every other event is passed on as it is.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

from boomerang_vllm import guard, late

FIELD = "kv_transfer_params"
_CHAT = (
    ("vllm.entrypoints.openai.chat_completion.serving", "OpenAIServingChat"),
    ("vllm.entrypoints.openai.serving_chat", "OpenAIServingChat"),
)
_COMPLETION = (
    ("vllm.entrypoints.openai.completion.serving", "OpenAIServingCompletion"),
    ("vllm.entrypoints.openai.serving_completion", "OpenAIServingCompletion"),
)
_MESSAGES = (
    ("vllm.entrypoints.anthropic.serving", "AnthropicServingMessages"),
    ("vllm.entrypoints.anthropic.serving_messages", "AnthropicServingMessages"),
)
_DONE = "data: [DONE]"
_OUTPUTS = "result_generator"
# Inside a JSON text the closing quotation mark would be escaped, so an answer cannot contain either.
_NATIVE = (f'"{FIELD}":{{', f'"{FIELD}": {{')
_COPIED = ("id", "object", "created", "model")


class OwnEvent(str):
    """The event that was added; a class of its own, so that converters can tell it from the engine's."""

    __slots__ = ()


class Outputs:
    """Engine outputs on their way to a stream generator; remembers the handle that one carried."""

    def __init__(self, source: AsyncIterator[Any]) -> None:
        self._source = source
        self.params: dict[str, Any] | None = None

    def __aiter__(self) -> Outputs:
        return self

    async def __anext__(self) -> Any:
        item = await self._source.__anext__()
        output = item[1] if isinstance(item, tuple) and len(item) == 2 else item
        params = getattr(output, FIELD, None)
        if params:
            self.params = params
        return item

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)  # aclose() and the like


def closing_event(params: dict[str, Any], previous: str) -> OwnEvent:
    """The added event, made like the one before. Raises ValueError if that is no event with an object."""
    if not previous.startswith("data: {"):
        raise ValueError("not an event")
    said = json.loads(previous[len("data: ") :])
    event = {name: said[name] for name in _COPIED if name in said} | {"choices": [], FIELD: params}
    return OwnEvent(f"data: {json.dumps(event, separators=(',', ':'))}\n\n")


async def with_handle(events: AsyncGenerator[str, None], outputs: Outputs) -> AsyncGenerator[str, None]:
    """Pass events on, and add the handle before the end unless an event had it or said that all failed."""
    previous, needed = "", True
    async with aclosing(events):
        async for event in events:
            if outputs.params is not None and needed:
                if event.startswith(_DONE):
                    needed = False
                    added = _added(outputs.params, previous)
                    if added is not None:
                        yield added
                elif any(mark in event for mark in _NATIVE) or event.startswith('data: {"error"'):
                    needed = False
            previous = event
            yield event


def _added(params: dict[str, Any], previous: str) -> OwnEvent | None:
    try:
        return closing_event(params, previous)
    except Exception as error:  # the stream ends well without it
        guard.say_once("stream", "Boomerang: a stream's handle could not be added", error=error)
        return None


async def messages_with_handle(
    events: Callable[[AsyncIterator[str]], AsyncGenerator[str, None]], source: AsyncIterator[str]
) -> AsyncGenerator[str, None]:
    """Anthropic's events of a chat stream; the handle goes into ``message_stop``, the last of them."""
    added: list[str] = []

    async def without_own() -> AsyncGenerator[str, None]:
        async for event in source:
            if isinstance(event, OwnEvent):
                added.append(event)
            else:
                yield event

    async with aclosing(events(without_own())) as converted:
        async for event in converted:
            yield _stopped(event, added[0]) if added and "event: message_stop" in event else event


def _stopped(event: str, own: str) -> str:
    try:
        head, data = event.split("data: ", 1)
        body = json.loads(data) | {FIELD: json.loads(own[len("data: ") :])[FIELD]}
        return f"{head}data: {json.dumps(body, separators=(',', ':'))}\n\n"
    except Exception as error:  # the stream ends well without it
        guard.say_once("messages", "Boomerang: a message stream's handle could not be added", error=error)
        return event


def _wrapping(applies: Callable[[Any], bool]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        shape = inspect.signature(original)

        def stream_generator(serving: Any, *arguments: Any, **named: Any) -> AsyncGenerator[str, None]:
            try:
                bound = shape.bind(serving, *arguments, **named)
                outputs = Outputs(bound.arguments[_OUTPUTS])
                if applies(serving):
                    bound.arguments[_OUTPUTS] = outputs
                    return with_handle(original(*bound.args, **bound.kwargs), outputs)
            except Exception as error:  # nothing was started yet
                guard.say_once("stream-start", "Boomerang: a stream is left as it is", error=error)
            events: AsyncGenerator[str, None] = original(serving, *arguments, **named)
            return events

        return stream_generator

    return make


def install() -> bool:
    """Wrap the chat, completion and, where there, Messages streams, once the process has them."""
    ready: set[type] = set()

    # A subclass may convert the events and not know the added one, so only classes known here get it.
    def applies(serving: Any) -> bool:
        return type(serving) in ready

    def outputs_of(name: str) -> Callable[[type], None]:
        def wrap(owner: type) -> None:
            guard.wrap(owner, name, (_OUTPUTS,), _wrapping(applies))
            ready.add(owner)

        return wrap

    def messages(owner: type) -> None:
        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def message_stream_converter(serving: Any, generator: Any) -> AsyncGenerator[str, None]:
                return messages_with_handle(lambda source: original(serving, source), generator)

            return message_stream_converter

        guard.wrap(owner, "message_stream_converter", ("generator",), make)
        ready.add(owner)

    done = [
        late.with_class("stream (chat)", _CHAT, outputs_of("chat_completion_stream_generator")),
        late.with_class("stream (completions)", _COMPLETION, outputs_of("completion_stream_generator")),
    ]
    late.with_class("stream (Messages)", _MESSAGES, messages)
    return all(done)
