"""The handle goes into streams that have none, once, and nothing else in them changes."""

import json
from collections.abc import AsyncGenerator, AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from stand_in import module

from boomerang_vllm import stream
from boomerang_vllm.stream import Outputs, OwnEvent, messages_with_handle, with_handle

HANDLE = {"do_remote_decode": True, "remote_block_ids": [[3, 1]], "remote_num_tokens": 200}
HEAD = '"id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"tiny"'
ROLE = f'data: {{{HEAD},"choices":[{{"index":0,"delta":{{"role":"assistant"}}}}]}}\n\n'
TEXT = f'data: {{{HEAD},"choices":[{{"index":0,"delta":{{"content":"x"}}}}]}}\n\n'
LAST = f'data: {{{HEAD},"choices":[{{"index":0,"delta":{{}},"finish_reason":"stop"}}]}}\n\n'
USAGE = f'data: {{{HEAD},"choices":[],"usage":{{"prompt_tokens":5}}}}\n\n'
DONE = "data: [DONE]\n\n"


class Serving:
    """vLLM's shape: the generator reads outputs and writes an event for each."""

    def __init__(self, events: list[str]) -> None:
        self.events = events
        self.closed = False

    async def chat_completion_stream_generator(
        self, request: Any, result_generator: AsyncIterator[Any], request_id: str, **named: Any
    ) -> AsyncGenerator[str, None]:
        try:
            pending = iter(self.events)
            async for _ in result_generator:
                yield next(pending)
            for event in pending:
                yield event
        finally:
            self.closed = True


async def outputs_of(*params: dict[str, Any] | None) -> AsyncGenerator[Any, None]:
    for each in params:
        yield SimpleNamespace(kv_transfer_params=each)


async def run(events: list[str], *params: dict[str, Any] | None) -> list[str]:
    outputs = Outputs(outputs_of(*params))
    generator = Serving(events).chat_completion_stream_generator(None, outputs, "r")
    return [event async for event in with_handle(generator, outputs)]


def handle_of(event: str) -> Any:
    return json.loads(event[len("data: ") :])["kv_transfer_params"]


@pytest.mark.parametrize("before", [[ROLE, TEXT, LAST], [ROLE, TEXT, LAST, USAGE]])
async def test_one_event_is_added_before_the_end(before: list[str]) -> None:
    seen = await run([*before, DONE], None, None, HANDLE)
    assert seen[:-2] == before
    assert seen[-1] == DONE
    added = json.loads(seen[-2][len("data: ") :])
    assert added == {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 7,
        "model": "tiny",
        "choices": [],
        "kv_transfer_params": HANDLE,
    }
    assert seen[-2].endswith("\n\n")


async def test_a_stream_without_a_handle_is_as_it_was() -> None:
    events = [ROLE, TEXT, LAST, USAGE, DONE]
    assert await run(events, None, None, None) == events


@pytest.mark.parametrize("space", ["", " "])
async def test_a_stream_that_has_it_gets_no_second_one(space: str) -> None:
    native = LAST.replace('"choices"', f'"kv_transfer_params":{space}{json.dumps(HANDLE)},"choices"')
    events = [ROLE, TEXT, native, USAGE, DONE]
    assert await run(events, None, None, HANDLE) == events


async def test_a_null_is_not_a_handle() -> None:
    null = LAST.replace('"choices"', '"kv_transfer_params":null,"choices"')
    seen = await run([ROLE, null, DONE], None, HANDLE)
    assert handle_of(seen[-2]) == HANDLE


async def test_an_answer_that_speaks_of_handles_is_no_handle() -> None:
    text = json.dumps({"content": '"kv_transfer_params":{"a":1}'})
    speaks = LAST.replace('"delta":{}', f'"delta":{text}')
    seen = await run([ROLE, speaks, DONE], None, HANDLE)
    assert handle_of(seen[-2]) == HANDLE


async def test_a_failed_stream_gets_none() -> None:
    events = [ROLE, TEXT, 'data: {"error":{"message":"x","code":500}}\n\n', DONE]
    assert await run(events, None, None, HANDLE) == events


async def test_an_event_that_cannot_be_read_leaves_the_stream_alone() -> None:
    events = ["data: [1]\n\n", DONE]
    assert await run(events, HANDLE) == events


async def test_outputs_with_a_prompt_index() -> None:
    async def indexed() -> AsyncGenerator[Any, None]:
        yield 0, SimpleNamespace(kv_transfer_params=HANDLE)

    outputs = Outputs(indexed())
    assert [index async for index, _ in outputs] == [0]
    assert outputs.params == HANDLE


async def test_a_client_that_leaves_closes_the_engines_stream() -> None:
    serving = Serving([ROLE, TEXT, LAST, DONE])
    outputs = Outputs(outputs_of(None, None, HANDLE))
    events = with_handle(serving.chat_completion_stream_generator(None, outputs, "r"), outputs)
    assert await anext(events) == ROLE
    await events.aclose()
    assert serving.closed


async def test_an_error_in_the_engines_stream_passes_through() -> None:
    async def failing() -> AsyncGenerator[str, None]:
        yield ROLE
        raise RuntimeError("engine")

    events = with_handle(failing(), Outputs(outputs_of()))
    assert await anext(events) == ROLE
    with pytest.raises(RuntimeError, match="engine"):
        await anext(events)


# -- put into vLLM's classes ------------------------------------------------------------------------------


@pytest.fixture
def chat(monkeypatch: pytest.MonkeyPatch) -> type[Serving]:
    class OpenAIServingChat(Serving):
        chat_completion_stream_generator = Serving.chat_completion_stream_generator

    module(
        monkeypatch,
        "vllm.entrypoints.openai.chat_completion.serving",
        OpenAIServingChat=OpenAIServingChat,
    )
    return OpenAIServingChat


async def test_installed_into_a_class_and_not_twice(
    chat: type[Serving], caplog: pytest.LogCaptureFixture
) -> None:
    assert stream.install() is False  # there are no completions here
    assert stream.install() is False
    assert "completions" in caplog.text
    serving = chat([ROLE, LAST, DONE])
    events = serving.chat_completion_stream_generator(None, outputs_of(None, HANDLE), request_id="r")
    seen = [event async for event in events]
    assert len(seen) == 4
    assert handle_of(seen[2]) == HANDLE


async def test_a_subclass_that_may_convert_events_is_left_alone(chat: type[Serving]) -> None:
    stream.install()

    class Converting(chat):  # type: ignore[valid-type, misc]
        pass

    events = [ROLE, LAST, DONE]
    generator = Converting(events).chat_completion_stream_generator(None, outputs_of(None, HANDLE), "r")
    assert [event async for event in generator] == events


def test_another_shape_switches_it_off(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class OpenAIServingChat:
        def chat_completion_stream_generator(self, results: Any) -> None: ...

    module(
        monkeypatch,
        "vllm.entrypoints.openai.chat_completion.serving",
        OpenAIServingChat=OpenAIServingChat,
    )
    before = OpenAIServingChat.chat_completion_stream_generator
    assert stream.install() is False
    assert OpenAIServingChat.chat_completion_stream_generator is before
    assert "no parameter result_generator" in caplog.text


# -- Anthropic's Messages ---------------------------------------------------------------------------------

STOP = 'event: message_stop\ndata: {"type":"message_stop"}\n\n'


async def convert(source: AsyncIterator[str]) -> AsyncGenerator[str, None]:
    async for event in source:
        yield STOP if event == DONE else f"event: delta\n{event}"


async def chat_events(*events: str) -> AsyncGenerator[str, None]:
    for event in events:
        yield event


async def test_a_message_stream_has_it_in_its_last_event() -> None:
    own = OwnEvent(f'data: {{"choices":[],"kv_transfer_params":{json.dumps(HANDLE)}}}\n\n')
    seen = [event async for event in messages_with_handle(convert, chat_events(ROLE, LAST, own, DONE))]
    assert seen[:-1] == [f"event: delta\n{ROLE}", f"event: delta\n{LAST}"]
    assert seen[-1].startswith("event: message_stop\ndata: ")
    stopped = json.loads(seen[-1].split("data: ")[1])
    assert stopped == {"type": "message_stop", "kv_transfer_params": HANDLE}


async def test_a_message_stream_without_a_handle_is_as_it_was() -> None:
    plain = [event async for event in convert(chat_events(ROLE, LAST, DONE))]
    assert [event async for event in messages_with_handle(convert, chat_events(ROLE, LAST, DONE))] == plain
