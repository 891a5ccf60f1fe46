"""The inference routes as ASGI, over real turns: who waits for whom, and how each of them ends."""

import asyncio
import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any

import msgspec
import pytest
from starlette.types import Message, Scope

from router.app import Router, build
from router.errors import ERROR_ROWS, BadRequest, BodyTooLarge, NoCapacity, UnsupportedMedia
from router.http.asgi_client import AsgiClient
from router.http.openai import PATHS, InferenceRoute
from router.ledger.memory import MemoryLedger
from router.ledger.store import Found, Ledger, Query
from router.settings import Settings
from router.sim.config import EngineConfig
from router.sim.engine import SimEngine
from router.sim.fabric import LocalFabric
from router.sim.faults import Fault
from router.sim.upstream import SimUpstream
from router.telemetry.facts import EndedBy, Fact, HandleFact, Outcome, Phase, TurnEnded
from router.turn.relay import STOPPING, Relay
from router.turn.request import Endpoint

CHAT = "/v1/chat/completions"
P, D = "http://p:8000", "http://d:8000"
PATIENCE_S = 30.0
JSON = {"content-type": "application/json"}
BODY: dict[str, Any] = {
    "model": "sim-qwen3",
    "messages": [{"role": "user", "content": " ".join(f"word{n}" for n in range(200))}],
}


class FarLedger(MemoryLedger):
    """A ledger on the far side of a network: others run before it has answered."""

    async def give_back(self, found: Found) -> bool:
        for _ in range(20):
            await asyncio.sleep(0)
        return await super().give_back(found)


class BrokenLedger(MemoryLedger):
    """A ledger with a fault that nobody foresaw."""

    async def find(self, query: Query) -> Found | None:
        raise ZeroDivisionError("a detail that is for the log")


@dataclass
class Connection:
    """One client's connection, as an ASGI server shows it: its body in parts, and then its leaving."""

    parts: Sequence[bytes]
    headers: dict[str, str] = field(default_factory=lambda: dict(JSON))
    path: str = CHAT
    leaves_early: bool = False
    """It closes after the parts that it sends, and these are not all of its body."""
    sent: list[Message] = field(default_factory=list)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    blocked: bool = False
    """It does not read: whatever is sent to it waits."""

    def __post_init__(self) -> None:
        self._left = list(self.parts)

    @property
    def scope(self) -> Scope:
        raw = [(name.encode(), value.encode("latin-1")) for name, value in self.headers.items()]
        return {"type": "http", "method": "POST", "path": self.path, "headers": raw}

    async def receive(self) -> Message:
        if self._left:
            part = self._left.pop(0)
            more = bool(self._left) or self.leaves_early
            return {"type": "http.request", "body": part, "more_body": more}
        if not self.leaves_early:
            await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if self.blocked:
            await asyncio.Event().wait()
        self.sent.append(message)
        if message["type"] == "http.response.body" and not message["more_body"]:
            self.gone.set()  # as servers do: what is complete is over

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"]) if self.sent else 0

    def header(self, name: str) -> str:
        headers: list[tuple[bytes, bytes]] = self.sent[0]["headers"]
        return next(value.decode("latin-1") for key, value in headers if key == name.encode())

    @property
    def body(self) -> bytes:
        return b"".join(message["body"] for message in self.sent[1:])

    @property
    def error(self) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.json.decode(self.body)["error"]
        return found


class Front:
    """The routes of a router over simulated engines, without a server."""

    def __init__(self, **options: Any) -> None:
        fabric = LocalFabric()
        self.p, self.d = (SimEngine(EngineConfig(version="0.33.0"), fabric=fabric) for _ in range(2))
        self.upstream = SimUpstream({P: self.p, D: self.d})
        settings = Settings(prefill=(P,), decode=(D,), **options)
        self.router: Router = build(settings, upstream=self.upstream)
        self.facts: list[Fact] = []
        self.router.context.facts.subscribe(self.facts.append)
        self.ledger: Ledger = self.router.context.ledger

    async def probed(self) -> "Front":
        await self.router.context.fleet.refresh(self.upstream)
        return self

    def route(self, path: str = CHAT) -> InferenceRoute:
        context = replace(self.router.context, ledger=self.ledger)
        settings = self.router.settings
        return InferenceRoute(
            Relay(context),
            PATHS[path],
            self.router.open_turns,
            settings.max_body_bytes,
            settings.identity_header,
        )

    async def serve(self, connection: Connection) -> Connection:
        """Serve one request to its end; nothing is open afterwards."""
        async with asyncio.timeout(PATIENCE_S):
            await self.route(connection.path)(connection.scope, connection.receive, connection.send)
        self.nothing_is_open()
        return connection

    async def ask(self, body: dict[str, Any], **headers: str) -> Connection:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.serve(Connection([msgspec.json.encode(body)], {**JSON, **named}))

    def start(self, connection: Connection) -> asyncio.Task[None]:
        return asyncio.create_task(self._run(connection))

    async def _run(self, connection: Connection) -> None:
        await self.route(connection.path)(connection.scope, connection.receive, connection.send)

    def nothing_is_open(self) -> None:
        assert self.router.open_turns.count == 0
        assert not self.upstream.open_calls()
        assert not [node.key for node in self.router.context.fleet.snapshot.nodes if node.in_flight]

    @property
    def turns(self) -> list[TurnEnded]:
        return [fact for fact in self.facts if isinstance(fact, TurnEnded)]


@pytest.fixture
async def front() -> Front:
    return await Front().probed()


async def until(condition: Any) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0)


# -- reading ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size_bytes", [1, 100, 10_000])
async def test_a_body_in_parts_is_read_whole(front: Front, size_bytes: int) -> None:
    raw = msgspec.json.encode(BODY)
    parts = [raw[at : at + size_bytes] for at in range(0, len(raw), size_bytes)]
    assert (await front.serve(Connection([b"", *parts, b""]))).status == 200
    assert [one.body["messages"] for one in front.p.received] == [BODY["messages"]]


class Trickle(Connection):
    """A client whose body comes two bytes at a time, and never to its end."""

    count = 100_000

    async def receive(self) -> Message:
        if not self.count:
            return {"type": "http.disconnect"}
        self.count -= 1
        # Made anew each time, as a server's are: equal literals would be one object.
        return {"type": "http.request", "body": bytes((120, self.count & 127)), "more_body": True}


async def test_a_body_that_trickles_in_takes_about_its_own_size(front: Front) -> None:
    connection = Trickle([])
    tracemalloc.start()
    try:
        await front.serve(connection)
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert not connection.sent
    assert most_bytes < 1_000_000  # of a body of 200,000; as a list of parts it would be 4 million


async def test_a_client_that_leaves_before_its_body_is_there_is_no_turn(front: Front) -> None:
    connection = await front.serve(Connection([b'{"model":'], leaves_early=True))
    assert not connection.sent
    assert not front.turns
    assert not front.p.received


@pytest.mark.parametrize("told", [True, False])
async def test_a_body_is_refused_as_soon_as_it_is_too_large(told: bool) -> None:
    front = await Front(max_body_bytes=100).probed()
    headers = {**JSON, "content-length": "101"} if told else JSON
    connection = Connection([b"x" * 60] * 50, dict(headers))
    await front.serve(connection)
    assert connection.status == 413
    assert connection.error["code"] == ERROR_ROWS[BodyTooLarge].code
    assert len(connection._left) == (50 if told else 48), "what comes after is not read"


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "text/plain"},
        {"content-type": "multipart/form-data"},
        {"content-type": ""},
        {**JSON, "content-encoding": "gzip"},
    ],
)
async def test_other_media_are_not_read_at_all(front: Front, headers: dict[str, str]) -> None:
    connection = await front.serve(Connection([b"{}"], headers))
    assert (connection.status, connection.error["code"]) == (415, ERROR_ROWS[UnsupportedMedia].code)
    assert connection._left


@pytest.mark.parametrize(
    "headers", [{}, {"content-type": "application/vnd.api+json"}, {**JSON, "content-encoding": ""}]
)
async def test_json_by_any_name_is_read(front: Front, headers: dict[str, str]) -> None:
    assert (await front.serve(Connection([msgspec.json.encode(BODY)], headers))).status == 200


async def test_a_request_that_cannot_be_read_names_the_member_at_fault(front: Front) -> None:
    connection = await front.ask({"model": 5})
    assert (connection.status, connection.error["code"]) == (400, ERROR_ROWS[BadRequest].code)
    assert connection.error["param"] == "model"


@pytest.mark.parametrize(
    ("given", "echoed"),
    [("mine", "mine"), ("a\x01b\xffc", "abc"), ("x" * 999, "x" * 256), ("\xff", None), ("", None)],
)
async def test_the_clients_id_is_echoed_as_far_as_it_is_safe(
    front: Front, given: str, echoed: str | None
) -> None:
    for body in (BODY, {"model": 5}):
        told = (await front.ask(body, x_request_id=given)).header("x-request-id")
        assert told == echoed if echoed is not None else told.startswith("brg-")


def test_only_two_endpoints_are_split() -> None:
    split = {path: endpoint for path, endpoint in PATHS.items() if endpoint is not Endpoint.OTHER}
    assert split == {CHAT: Endpoint.CHAT, "/v1/completions": Endpoint.COMPLETIONS}


# -- leaving, stopping, failing --------------------------------------------------------------------------


@pytest.mark.parametrize("at", ["prefill", "decode", "send"])
async def test_a_client_that_leaves_ends_its_turn_wherever_it_is(front: Front, at: str) -> None:
    connection = Connection([msgspec.json.encode({**BODY, "stream": True})], blocked=at == "send")
    engine = front.p if at == "prefill" else front.d
    if at != "send":
        engine.faults.add(Fault(hang=True, path=CHAT))
    task = front.start(connection)
    await until(lambda: engine.received)
    for _ in range(50):
        await asyncio.sleep(0)
    assert front.router.open_turns.count == 1
    connection.gone.set()
    async with asyncio.timeout(PATIENCE_S):
        await task
    front.nothing_is_open()
    (turn,) = front.turns
    assert turn.ended_by is EndedBy.CLIENT
    assert turn.detail.startswith("left in phase")


async def test_what_a_turn_does_after_its_last_byte_is_not_cut_off() -> None:
    """The connection is over as soon as the answer is complete, and the turn still gives its handle back."""
    front = await Front().probed()
    front.ledger = FarLedger(trace_ttl_s=60.0, now=monotonic)
    await front.ask(BODY)
    front.p.faults.add(Fault(path="/tokenize", status=500))
    assert (await front.ask(BODY)).status == 200
    assert [turn.ended_by for turn in front.turns] == [EndedBy.ENGINE, EndedBy.ENGINE]
    outcomes = [fact.outcome for fact in front.facts if isinstance(fact, HandleFact)]
    assert Outcome.GIVEN_BACK in outcomes


class ClosingAtDone(Connection):
    """It reads no further than ``[DONE]``, as the OpenAI client does."""

    async def send(self, message: Message) -> None:
        await super().send(message)
        if b"[DONE]" in message.get("body", b""):
            asyncio.get_running_loop().call_soon(self.gone.set)


async def test_a_client_that_closes_at_done_has_not_left(front: Front) -> None:
    await front.serve(ClosingAtDone([msgspec.json.encode({**BODY, "stream": True})]))
    (turn,) = front.turns
    assert (turn.ended_by, turn.phase, turn.finish_reason) == (EndedBy.ENGINE, Phase.DONE, "stop")


async def test_a_stop_adds_nothing_to_an_answer_that_is_all_there() -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    client = AsgiClient(send, "r")
    await client.start(200, ())
    client.put(b"data: [DONE]\n\n")
    await client.flush()
    client.told_all()
    await client.tell_stop(CHAT)
    assert b"".join(message.get("body", b"") for message in sent) == b"data: [DONE]\n\n"
    assert sent[-1]["more_body"] is False


@pytest.mark.parametrize("begun", [True, False])
async def test_a_stop_is_told_in_the_answer(front: Front, begun: bool) -> None:
    """What a server does when its time for open requests is over: it cancels their tasks."""
    script = Fault(delay_chunk_s=0.001, streamed=True) if begun else Fault(hang=True, leg="decode")
    front.d.faults.add(script)
    connection = Connection(
        [msgspec.json.encode({**BODY, "stream": True, "min_tokens": 9_000, "max_tokens": 9_000})]
    )
    task = front.start(connection)
    await until(lambda: len(connection.sent) > 3 if begun else front.d.received)
    task.cancel()
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.wait((task,))
    front.nothing_is_open()
    if begun:
        assert connection.status == 200
        assert b"the router is stopping" in connection.body
        assert connection.body.endswith(b"data: [DONE]\n\n")
    else:
        assert (connection.status, connection.error["code"]) == (503, ERROR_ROWS[NoCapacity].code)
    (turn,) = front.turns
    assert turn.ended_by is EndedBy.ROUTER
    assert turn.detail.startswith(STOPPING)


async def test_a_fault_of_the_router_is_a_500_that_tells_nothing(
    front: Front, caplog: pytest.LogCaptureFixture
) -> None:
    front.ledger = BrokenLedger(trace_ttl_s=60.0, now=monotonic)
    connection = await front.ask(BODY)
    assert (connection.status, connection.error["code"]) == (500, "internal_error")
    assert b"ZeroDivisionError" not in connection.body
    assert b"a detail" not in connection.body
    assert "a detail that is for the log" in caplog.text


async def test_a_fault_within_an_answer_breaks_the_connection(front: Front) -> None:
    """The server closes it; a whole end would make a broken answer look complete."""

    class Failing(Connection):
        async def send(self, message: Message) -> None:
            if len(self.sent) == 2:
                raise ZeroDivisionError
            await super().send(message)

    connection = Failing([msgspec.json.encode({**BODY, "stream": True})])
    with pytest.raises(ZeroDivisionError):
        await front.serve(connection)
    front.nothing_is_open()
    assert connection.sent[-1]["more_body"] is True
