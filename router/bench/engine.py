"""An engine that is never the bottleneck: precomputed bytes on a bare protocol, events on a timer.

It answers what a router asks of a vLLM 0.33, and computes nothing. Two kinds: with the ``plugin``, where P's
answers say that all was verified, and D's streams end with a handle that is stamped; and ``stock``, where the
router has to verify: token ids are told to those that ask for them, and prompts are rendered.
"""

import argparse
import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, cast

import httptools
import msgspec
import uvloop

MODEL: Final = "bench"
_HEADERS: Final = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
_STREAM: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
HELD_TOKENS: Final = 2_048
BLOCK_SIZE: Final = 16
PROMPT_IDS: Final = list(range(HELD_TOKENS + BLOCK_SIZE))
"""Of every prompt: D holds all but what is new of it."""


def whole(document: object) -> bytes:
    """A complete JSON answer."""
    body = msgspec.json.encode(document)
    return _HEADERS % (len(body), body)


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def params(role: str, *, stamped: bool) -> dict[str, object]:
    """The side's ``kv_transfer_params``, as NIXL's connector writes them; ``stamped`` by the plugin."""
    is_prefill = role == "prefill"
    stamp: dict[str, object] = {"v": 1, "verified_tokens": HELD_TOKENS, "reason": "whole"}
    if not is_prefill:
        stamp = {"v": 1, "kind": "tokens", "stride": 128, "tokens": HELD_TOKENS, "root": "", "digests": ""}
    return {
        "do_remote_prefill": is_prefill,
        "do_remote_decode": not is_prefill,
        "remote_block_ids": [list(range(HELD_TOKENS // BLOCK_SIZE))],
        "remote_engine_id": f"bench-{role}",
        "remote_request_id": "chatcmpl-bench",
        "remote_host": "127.0.0.1",
        "remote_port": 5600,
        "tp_size": 1,
        "remote_num_tokens": HELD_TOKENS,
        "remote_blocks_expiry_time": 1e9,
        "remote_prefill_cached_tokens": HELD_TOKENS,
        "transfer_mode": "pull",
        **({"boomerang": stamp} if stamped else {}),
    }


@dataclass(frozen=True, slots=True)
class Script:
    """All that an engine has to say, as it goes over the wire."""

    prefill: bytes
    events: list[bytes]
    render: bytes | None = None
    """The answer of the render route; None where there is none."""


def prefill_answer(*, stamped: bool, with_ids: bool) -> bytes:
    """What P answers to any prefill leg."""
    choice: dict[str, object] = {
        "index": 0, "finish_reason": "length", "message": {"role": "assistant", "content": "a"},
    }  # fmt: skip
    document: dict[str, object] = {
        "id": "chatcmpl-bench", "object": "chat.completion", "created": 1, "model": MODEL,
        "choices": [choice],
        "usage": {"prompt_tokens": HELD_TOKENS, "completion_tokens": 1, "total_tokens": HELD_TOKENS + 1},
        "kv_transfer_params": params("prefill", stamped=stamped),
    }  # fmt: skip
    if with_ids:
        choice["token_ids"] = [7]
        document["prompt_token_ids"] = PROMPT_IDS
    return whole(document)


def _event(first: dict[str, object] | None = None, /, **choice: object) -> bytes:
    document = {
        "id": "chatcmpl-bench", "object": "chat.completion.chunk", "created": 1, "model": MODEL,
        "choices": [{"index": 0, "logprobs": None, **choice}], **(first or {}),
    }  # fmt: skip
    return chunk(b"data: " + msgspec.json.encode(document) + b"\n\n")


def stream_events(count: int, *, stamped: bool, with_ids: bool) -> list[bytes]:
    """A streamed answer in ``count`` events, as they go over the wire; the last ends it."""

    def ids(number: int) -> dict[str, Any]:
        return {"token_ids": [number]} if with_ids else {}

    first: dict[str, object] = {"prompt_token_ids": PROMPT_IDS} if with_ids else {}
    events = [_STREAM + _event(first, delta={"role": "assistant", "content": ""}, finish_reason=None)]
    events += [_event(delta={"content": f" word{n}"}, finish_reason=None, **ids(n)) for n in range(count - 2)]
    handle: dict[str, object] = {"kv_transfer_params": params("decode", stamped=stamped)}
    end = _event(handle, delta={}, finish_reason="stop", **ids(count))
    return [*events, end + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"]


def scripts(kind: str, events: int) -> tuple[Script, Script]:
    """What an engine of this kind says to those that do not ask for token ids, and to those that do."""
    stamped = kind == "plugin"
    plain, with_ids = (
        Script(
            prefill_answer(stamped=stamped, with_ids=ids),
            stream_events(events, stamped=stamped, with_ids=ids),
            None if stamped else whole({"token_ids": PROMPT_IDS}),
        )
        for ids in (False, True)
    )
    return plain, with_ids


_NOT_FOUND: Final = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"
_METRICS: Final = (
    b'vllm:cache_config_info{block_size="16",num_gpu_blocks="100000",enable_prefix_caching="True"} 1\n'
)
_ASIDE: Final = {
    b"/health": _HEADERS % (0, b""),
    b"/version": whole({"version": "0.33.0"}),
    b"/v1/models": whole({"object": "list", "data": [{"id": MODEL, "object": "model"}]}),
    b"/metrics": _HEADERS % (len(_METRICS), _METRICS),
}


class FakeEngine(asyncio.Protocol):
    """One connection."""

    def __init__(self, plain: Script, with_ids: Script, every_s: float) -> None:
        self._plain, self._with_ids, self._every_s = plain, with_ids, every_s
        self._events = plain.events
        self._parser = httptools.HttpRequestParser(self)
        self._loop = asyncio.get_running_loop()
        self._path, self._body = b"", b""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._path, self._body = b"", b""

    def on_url(self, url: bytes) -> None:
        self._path += url

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        aside = _ASIDE.get(self._path)
        script = self._with_ids if b'"return_token_ids":true' in self._body else self._plain
        if aside is not None:
            self._transport.write(aside)
        elif self._path == b"/v1/chat/completions/render" and script.render is not None:
            self._transport.write(script.render)
        elif self._path != b"/v1/chat/completions":
            self._transport.write(_NOT_FOUND)
        elif b'"do_remote_decode":true' in self._body.replace(b" ", b""):
            self._transport.write(script.prefill)
        else:
            self._events = script.events
            self._due_s = self._loop.time()
            self._say(0)

    def _say(self, number: int) -> None:
        self._transport.write(self._events[number])
        if number + 1 < len(self._events):
            self._due_s += self._every_s
            self._timer = self._loop.call_at(self._due_s, self._say, number + 1)


async def serve(port: int, kind: str, events: int, every_s: float) -> None:
    """Serve until cancelled."""
    plain, with_ids = scripts(kind, events)
    make: Callable[[], FakeEngine] = lambda: FakeEngine(plain, with_ids, every_s)  # noqa: E731 - a factory
    server = await asyncio.get_running_loop().create_server(make, "127.0.0.1", port, backlog=4096)
    async with server:
        await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--kind", choices=("plugin", "stock"), default="plugin")
    parser.add_argument("--events", type=int, required=True)
    parser.add_argument("--every-s", type=float, required=True)
    arguments = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(arguments.port, arguments.kind, arguments.events, arguments.every_s))


if __name__ == "__main__":
    main()
