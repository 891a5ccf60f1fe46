"""What the clients behind ``Upstream`` cost: CPU per call, both in one process, interleaved.

A call is streamed (64 calls at once, 64 events each, one every 10 ms), or read whole as a prefill leg's is.
The fake engine is a process of its own; what is counted is this process alone, its tasks and loop included.
``bare`` is no client: a protocol that wakes its task for each read and looks at nothing. It shows what the
loop and the kernel cost, the floor for any client.

    python -m bench.upstream --rounds 5
"""

import argparse
import asyncio
import contextlib
import json
import math
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Final, cast

import httpx
import uvloop

from router.demo.processes import free_port
from router.engines.aiohttp_upstream import AiohttpUpstream
from router.engines.httptools_upstream import HttptoolsUpstream
from router.engines.upstream import Call, Limits, Upstream

CLIENTS: Final[dict[str, Callable[[], Upstream]]] = {
    "aiohttp": AiohttpUpstream,
    "httptools": HttptoolsUpstream,
}
BARE: Final = "bare"
_HEADERS: Final = (
    ("content-type", "application/json"),
    ("authorization", "Bearer sk-of-nobody"),
    ("x-request-id", "0123456789abcdef0123456789abcdef"),
    ("user-agent", "bench"),
)
_LIMITS: Final = Limits(connect_s=10.0, answer_s=60.0, idle_s=60.0)
_TEXT: Final = b"a word and one more " * 100
STREAMED: Final = Call(
    "POST", "/v1/chat/completions", _HEADERS, b'{"messages":[{"content":"%b"}]}' % _TEXT, _LIMITS
)
WHOLE: Final = Call(
    "POST",
    "/v1/chat/completions",
    _HEADERS,
    b'{"messages":[{"content":"%b"}],"kv_transfer_params":{"do_remote_decode":true}}' % _TEXT,
    _LIMITS,
)
_START_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Cost:
    """One client in one round. CPU in microseconds per call, the first byte of a stream in milliseconds."""

    client: str
    streamed_us: float
    whole_us: float
    first_byte_p50_ms: float
    chunks_per_call: float


@contextlib.contextmanager
def running_engine(events: int, every_s: float) -> Iterator[str]:
    """A fake engine; its origin."""
    port = free_port()
    command = [sys.executable, "-m", "router.bench.engine", "--port", str(port)]
    process = subprocess.Popen([*command, "--events", str(events), "--every-s", str(every_s)])
    origin, end_s = f"http://127.0.0.1:{port}", time.monotonic() + _START_S
    try:
        while True:
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{origin}/health", timeout=2).status_code == 200:
                    break
            if process.poll() is not None or time.monotonic() > end_s:
                raise RuntimeError("the fake engine did not start")
            time.sleep(0.1)
        yield origin
    finally:
        process.terminate()
        process.wait(timeout=10)


async def stream(upstream: Upstream, origin: str) -> tuple[float, int]:
    """One streamed call: seconds to the first byte of its body, and its chunks."""
    began_s, first_s, chunks, last = time.perf_counter(), 0.0, 0, b""
    async with upstream.stream(origin, STREAMED) as answer:
        async for chunk in answer.chunks():
            if not chunks:
                first_s = time.perf_counter() - began_s
            chunks += 1
            last = chunk
    if not last.endswith(b"data: [DONE]\n\n"):
        raise RuntimeError("a stream did not end as it should")
    return first_s, chunks


async def whole(upstream: Upstream, origin: str) -> None:
    """One call that is read whole."""
    answer = await upstream.send(origin, WHOLE)
    if answer.status != 200 or not answer.body.endswith(b"}"):
        raise RuntimeError("an answer was not as it should be")


class Bare(asyncio.Protocol):
    """One connection that knows how its answers end, and nothing else."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._last = b""
        self._waiter: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class

    def data_received(self, data: bytes) -> None:
        self._last = data
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def ask(self, call: Call, end: bytes) -> tuple[float, int]:
        """One call: seconds to the first bytes, and its reads."""
        began_s, first_s, reads, self._last = time.perf_counter(), 0.0, 0, b""
        head = f"{call.method} {call.path} HTTP/1.1\r\nhost: a\r\ncontent-length: {len(call.body)}\r\n\r\n"
        self._transport.write(head.encode() + call.body)
        while not self._last.endswith(end):
            self._waiter = self._loop.create_future()
            await self._waiter
            if not reads:
                first_s = time.perf_counter() - began_s
            reads += 1
        return first_s, reads

    def close(self) -> None:
        self._transport.abort()


async def measure_bare(origin: str, args: argparse.Namespace) -> Cost:
    """The floor, in one round."""
    loop, seen = asyncio.get_running_loop(), list[tuple[float, int]]()
    host, port = origin.removeprefix("http://").split(":")
    bares = [(await loop.create_connection(Bare, host, int(port)))[1] for _ in range(args.streams)]
    began_s = time.process_time()
    for _ in range(args.batches):
        seen += await asyncio.gather(*(bare.ask(STREAMED, b"0\r\n\r\n") for bare in bares))
    streamed_s = time.process_time() - began_s
    began_s = time.process_time()
    for _ in range(args.whole_batches):
        await asyncio.gather(*(bare.ask(WHOLE, b"}") for bare in bares))
    whole_s = time.process_time() - began_s
    for bare in bares:
        bare.close()
    return _cost(BARE, streamed_s, whole_s, seen, args)


async def measure(name: str, origin: str, args: argparse.Namespace) -> Cost:
    """One client in one round, after a batch that opens its connections."""
    upstream = CLIENTS[name]()
    seen: list[tuple[float, int]] = []
    try:
        await asyncio.gather(*(whole(upstream, origin) for _ in range(args.streams)))
        began_s = time.process_time()
        for _ in range(args.batches):
            seen += await asyncio.gather(*(stream(upstream, origin) for _ in range(args.streams)))
        streamed_s = time.process_time() - began_s
        began_s = time.process_time()
        for _ in range(args.whole_batches):
            await asyncio.gather(*(whole(upstream, origin) for _ in range(args.streams)))
        whole_s = time.process_time() - began_s
    finally:
        await upstream.close()
    return _cost(name, streamed_s, whole_s, seen, args)


def _cost(
    name: str, streamed_s: float, whole_s: float, seen: Sequence[tuple[float, int]], args: argparse.Namespace
) -> Cost:
    calls, whole_calls = args.batches * args.streams, args.whole_batches * args.streams
    return Cost(
        name,
        streamed_us=1e6 * streamed_s / calls,
        whole_us=1e6 * whole_s / whole_calls if whole_calls else math.nan,
        first_byte_p50_ms=1e3 * statistics.median(first_s for first_s, _ in seen),
        chunks_per_call=sum(chunks for _, chunks in seen) / calls,
    )


async def play(origin: str, args: argparse.Namespace) -> list[Cost]:
    """All rounds; who begins changes from round to round."""
    costs = []
    for number in range(args.rounds):
        order = list(args.clients) if number % 2 == 0 else list(reversed(args.clients))
        for name in order:
            costs.append(await (measure_bare(origin, args) if name == BARE else measure(name, origin, args)))
            print(costs[-1], file=sys.stderr)
    return costs


def _told(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def table(costs: Sequence[Cost]) -> str:
    """Medians, with the least and the most of the rounds."""
    lines = [
        "| client | streamed, CPU µs a call | whole, CPU µs a call | first byte p50, ms | chunks per call |",
        "|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(cost.client for cost in costs):
        own = [cost for cost in costs if cost.client == name]
        cells = (
            _told([cost.streamed_us for cost in own]),
            _told([cost.whole_us for cost in own]),
            _told([cost.first_byte_p50_ms for cost in own]),
            _told([cost.chunks_per_call for cost in own]),
        )
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--events", type=int, default=64)
    parser.add_argument("--every-s", type=float, default=0.01)
    parser.add_argument("--batches", type=int, default=5, help="of so many streams at once, in a round")
    parser.add_argument("--whole-batches", type=int, default=50, help="of calls that are read whole")
    parser.add_argument("--clients", nargs="+", choices=[*CLIENTS, BARE], default=[*CLIENTS, BARE])
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with (
        running_engine(args.events, args.every_s) as origin,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        costs = runner.run(play(origin, args))
    if args.json:
        machine = {"python": platform.python_version(), "machine": platform.machine()}
        print(json.dumps({"machine": machine, "costs": [asdict(cost) for cost in costs]}, indent=1))
    else:
        print(table(costs))


if __name__ == "__main__":
    main()
