"""Each core loop as a call that can be repeated, and that costs about the same each time."""

import json
from array import array
from collections.abc import Callable, Coroutine
from itertools import count
from random import Random
from typing import Any, Final, TypeVar

from router.fleet.load import IDLE_DECODE, IDLE_PREFILL, Loads
from router.fleet.node import Engine, Node, Role, State
from router.ledger.memory import MemoryLedger
from router.ledger.store import Found, Handle, Put, Query, Relation, Trace
from router.turn.digest import chain
from router.turn.lineage import lineage_of
from router.turn.members import decode_members
from router.turn.plan import Situation
from router.turn.prefixes import Prefixes
from router.turn.request import Endpoint, read_request
from router.turn.tap import Tap, TapSettings
from router.turn.weigh import choose

Loop = Callable[[], object]
T = TypeVar("T")

MESSAGE_BYTES: Final = 1_000
"""Of an agent's history, on the average: questions, calls and results of tools."""


def history(size_bytes: int) -> list[dict[str, Any]]:
    """An agent's history of about that size; texts have line ends, quotes and letters beyond ASCII."""
    words = Random(1).choices(["def", "of", "return", "\n   ", '"path"', "é", "router/turn", "=="], k=1_000)
    text, messages = " ".join(words), []
    for number in range(size_bytes // MESSAGE_BYTES):
        begin = number * 7 % 1_000
        call = {"id": f"c{number}", "type": "function", "function": {"name": "ls", "arguments": '{"a":1}'}}
        kinds: tuple[dict[str, Any], ...] = (
            {"role": "user"},
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{number - 1}"},
        )
        messages.append(
            {**kinds[number % 3], "content": f"{number} {text[begin : begin + MESSAGE_BYTES - 80]}"}
        )
    return messages


def body(size_bytes: int, *more: dict[str, Any]) -> bytes:
    """A chat request with such a history, as an OpenAI client writes it."""
    document = {"model": "m", "messages": [*history(size_bytes), *more], "stream": True}
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def read(size_bytes: int) -> Loop:
    """A request's top-level members."""
    data = body(size_bytes)
    return lambda: read_request(Endpoint.CHAT, "/v1/chat/completions", (), data, turn_id="t")


def lineage_at_first_sight(size_bytes: int) -> Loop:
    """The lineage of a history of which nothing is known."""
    members = decode_members(body(size_bytes))
    return lambda: lineage_of(Endpoint.CHAT, members, b"tenant", Prefixes())


def lineage_of_next_turn(size_bytes: int) -> Loop:
    """The lineage of a history that has grown by an answer and a question."""
    prefixes = Prefixes()
    lineage_of(Endpoint.CHAT, decode_members(body(size_bytes)), b"tenant", prefixes)
    more = ({"role": "assistant", "content": "a" * 500}, {"role": "user", "content": "b" * 500})
    members = decode_members(body(size_bytes, *more))
    return lambda: lineage_of(Endpoint.CHAT, members, b"tenant", prefixes)


def digest(tokens: int) -> Loop:
    """The chained digests of a prompt's tokens."""
    ids = array("I", Random(2).choices(range(150_000), k=tokens))
    return lambda: chain(ids)


def verify(tokens: int) -> Loop:
    """The comparison of held tokens with a prompt's."""
    ids = array("I", Random(2).choices(range(150_000), k=tokens))
    held = chain(ids[:-100])
    return lambda: held.common(ids)


def tap(events: int, settings: TapSettings) -> Loop:
    """A streamed answer, event by event."""
    stream = [_event({"role": "assistant", "content": ""})]
    for number in range(events - 2):
        # An engine gives ids where they were asked for.
        ids: dict[str, Any] = {"token_ids": [number]} if settings.lift_token_ids else {}
        stream.append(_event({"content": f" word{number}"}, **ids))
    params = {"remote_block_ids": [list(range(100))], "remote_engine_id": "e"}
    stream += [_event({}, finish_reason="stop", params=params), b"data: [DONE]\n\n"]

    def run() -> object:
        one = Tap(settings)
        for event in stream:
            one.feed(event)
        return one.finish()

    return run


def _event(
    delta: dict[str, Any], *, params: Any = None, finish_reason: str | None = None, **more: Any
) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason, **more}
    document = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    if params is not None:
        document["kv_transfer_params"] = params
    return b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"


def _handle(decode: str, tokens: int, number: int = 0) -> Handle:
    return Handle(
        params=b'{"remote_request_id":"%d"}' % number,
        decode=decode,
        engine_id="engine",
        tokens=tokens,
        prompt_tokens=tokens - 50,
        deadline_s=1e9,
        stamped=True,
        held=None,
        media_depth=0,
    )


def plan(pairs: int) -> Loop:
    """The choice between all nodes of a fleet, for a conversation that one of them holds."""
    engine = Engine(prefix_cache=True, verifies=True, engine_id="engine", block_size=16)
    prefills = [Node(f"p{n}", f"http://p{n}", Role.PREFILL, State.READY, engine=engine) for n in range(pairs)]
    decodes = [Node(f"d{n}", f"http://d{n}", Role.DECODE, State.READY, engine=engine) for n in range(pairs)]
    trace = Trace("p0", "d0", prompt_tokens=20_000, prompt_bytes=80_000, reused_tokens=0, computed_at_s=1.0)
    found = Found(
        branch="b",
        version=1,
        depth=3,
        relation=Relation.EXTENSION,
        trace=trace,
        turns=1,
        handle=_handle("d0", 20_500),
        absence=None,
    )
    situation = Situation(
        request=read_request(Endpoint.CHAT, "/v1/chat/completions", (), body(2_000), turn_id="t"),
        media_depth=0,
        sizes_bytes=(20_000, 40_000, 80_000, 82_000, 83_000),
        prefills=prefills,
        decodes=decodes,
        found=found,
        mode="auto",
        loads=Loads({n.key: IDLE_PREFILL for n in prefills}, {n.key: IDLE_DECODE for n in decodes}),
    )
    return lambda: choose(situation)


def ledger(depth: int) -> Loop:
    """Two turns of a new conversation in a full ledger in memory: both looked up, both kept."""
    memory = MemoryLedger(max_branches=200, max_bytes=100_000_000, trace_ttl_s=1e9, now=lambda: 1.0)
    trace = Trace("p0", "d0", prompt_tokens=20_000, prompt_bytes=80_000, reused_tokens=0, computed_at_s=1.0)
    numbers = count(1)

    def turn(keys: tuple[bytes, ...], number: int) -> Found | None:
        found = at_once(memory.find(Query(keys, tuple(range(1, len(keys) + 1)), own_depth=2)))
        at_once(memory.put(Put(keys, found, trace, _handle("d0", 20_500, number), own_depth=2)))
        return found

    def run() -> object:
        number = next(numbers)
        keys = tuple((number * 1_000 + at).to_bytes(16, "little") for at in range(depth + 2))
        turn(keys[:depth], number)
        return turn(keys, number)

    for _ in range(250):
        run()
    return run


def at_once(call: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that waits for nothing."""
    try:
        call.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("the ledger in memory has waited")


LOOPS: Final[dict[str, Callable[[], Loop]]] = {
    "read 100 KB": lambda: read(100_000),
    "lineage at first sight, 100 KB": lambda: lineage_at_first_sight(100_000),
    "lineage at first sight, 400 KB": lambda: lineage_at_first_sight(400_000),
    "lineage of a next turn, 100 KB": lambda: lineage_of_next_turn(100_000),
    "lineage of a next turn, 400 KB": lambda: lineage_of_next_turn(400_000),
    "digest 8k tokens": lambda: digest(8_192),
    "verify 8k tokens": lambda: verify(8_192),
    "tap 64 events": lambda: tap(64, TapSettings()),
    "tap 64 events with ids": lambda: tap(64, TapSettings(lift_token_ids=True, hide_token_ids=True)),
    "plan among 3 + 3 nodes": lambda: plan(3),
    "ledger, two turns of 20 messages": lambda: ledger(20),
}
"""Name → what makes the loop. Names are those of the baseline."""

AT_MOST: Final = (
    ("lineage at first sight, 400 KB", "lineage at first sight, 100 KB", 4.4),
    ("lineage of a next turn, 400 KB", "lineage of a next turn, 100 KB", 4.4),
    ("lineage of a next turn, 400 KB", "lineage at first sight, 400 KB", 0.5),
)
"""Loop, another, and how many times that one it may cost: growth is linear, and what is known is not read."""
