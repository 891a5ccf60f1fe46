"""What every end-to-end run has: engines, a way to take a turn, and what must hold after each one.

Every answer is compared with that of a single engine of the same kind that reuses nothing: in the simulated
engines equal prompts and clean KV make equal answers, and wrong KV makes another one.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from router.engines.upstream import Call
from router.fleet.node import Role
from router.sim.clock import Clock
from router.sim.config import EngineConfig
from router.sim.engine import SimEngine
from router.sim.fabric import LocalFabric
from router.sim.faults import Fault
from router.sim.profiles import INSTANT
from router.sim.record import CorruptionRecord, Received
from router.sim.upstream import SimUpstream
from tests.e2e.answers import Spoken, read
from tests.e2e.asks import Ask
from tests.e2e.setups import Setup

TENANT_HEADER: Final = "x-test-tenant"
"""Goes through to the engines, as any end-to-end header does, and tells there whose request it is."""

_REQUEST_ID: Final = re.compile(r"(?:\d+_)?(?:chatcmpl|cmpl)-(?P<leg>.+-d\d+)(?:-\d+)?-[0-9a-f]{8}")
"""A decode engine's own id of a request, as handles name it."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What a client got of one turn. ``status`` is 0 where it left before there was one."""

    ask: Ask
    status: int
    plan: str
    reason: str
    reused_tokens: int
    spoken: Spoken
    left: bool

    @property
    def well(self) -> bool:
        return self.status == 200 and not self.left and self.spoken.complete


def turn_of(ask: Ask, status: int, headers: Mapping[str, str], body: bytes, *, left: bool) -> Turn:
    """A client's view of a turn."""
    streamed = headers.get("content-type", "").startswith("text/event-stream")
    return Turn(
        ask=ask,
        status=status,
        plan=headers.get("x-boomerang-plan", ""),
        reason=headers.get("x-boomerang-reason", ""),
        reused_tokens=int(headers.get("x-boomerang-reused-tokens", "0")),
        spoken=Spoken() if left else read(body, streamed=streamed),
        left=left,
    )


class Reference:
    """An engine of its own that reuses nothing."""

    def __init__(self, like: EngineConfig, clock: Clock) -> None:
        alone = replace(
            like, prefix_cache=False, plugin=False, bidirectional=False, num_blocks=1 << 16, profile=INSTANT
        )
        self._upstream = SimUpstream({"": SimEngine(alone, fabric=LocalFabric(), clock=clock)})

    async def document(self, ask: Ask) -> dict[str, Any]:
        """The whole answer to a request that is not streamed."""
        answer = await self._upstream.send("", Call("POST", ask.path, (), msgspec.json.encode(ask.body)))
        assert answer.status == 200, answer.body
        document: dict[str, Any] = msgspec.json.decode(answer.body)
        return document

    async def answer(self, ask: Ask) -> tuple[int, Spoken]:
        """Status and content of the answer to the same request."""
        call = Call("POST", ask.path, (), msgspec.json.encode(ask.body))
        answer = await self._upstream.send("", call)
        streamed = bool(ask.body.get("stream")) and answer.status == 200
        return answer.status, read(answer.body, streamed=streamed)


class Stage(ABC):
    """A router over simulated engines, by their origins."""

    def __init__(
        self, setup: Setup, engines: Mapping[str, SimEngine], prefills: Sequence[str], clock: Clock
    ) -> None:
        self.setup = setup
        self.engines = dict(engines)
        self.prefills = [engine for origin, engine in engines.items() if origin in prefills]
        self.decodes = [engine for origin, engine in engines.items() if origin not in prefills]
        self.reference = Reference(setup.decodes[0], clock)
        self._tenant_of_leg: dict[str, str] = {}
        self._sent: dict[tuple[str, str], str] = {}
        """Handles that went to a prefill node, and the leg that carried each."""

    @abstractmethod
    async def turn(self, ask: Ask) -> Turn:
        """One turn of a client, from its request to the last byte of the answer, or until it leaves."""

    @abstractmethod
    def pause(self, seconds: float) -> None:
        """Let time pass between turns, where time can be made to pass."""

    @abstractmethod
    async def probe(self) -> None:
        """Let the router look at its engines now."""

    @abstractmethod
    def take_down(self, origin: str) -> None:
        """Nothing listens there any more, until ``calm``."""

    @abstractmethod
    def check_router(self) -> None:
        """Nothing of the router is still open. Raises AssertionError."""

    def disturb(self, fault: Fault, engines: Iterable[SimEngine]) -> None:
        for engine in engines:
            engine.faults.add(fault)

    def calm(self) -> None:
        """No more faults."""
        for engine in self.engines.values():
            engine.faults.clear()

    @property
    def corruptions(self) -> list[CorruptionRecord]:
        return [record for engine in self.engines.values() for record in engine.corruptions]

    async def check(self, turns: Iterable[Turn], *, disturbed: bool) -> None:
        """All that the router promises after turns that ran together. Raises AssertionError.

        ``disturbed``: something happened meanwhile that a client may get an error from.
        """
        self.check_router()
        self.check_engines()
        for turn in turns:
            if turn.left:
                continue
            status, spoken = await self.reference.answer(turn.ask)
            if not disturbed:
                assert turn.status == status, (turn.status, status, turn.spoken.error)
            if turn.well:
                assert turn.spoken == spoken, "an answer is not what the engine alone would say"
            else:
                assert turn.status != 200 or turn.spoken.error, "an answer broke off and looks complete"

    def check_engines(self) -> None:
        """No engine has used wrong KV, or works on; handles went to their own tenants, once. Raises
        AssertionError."""
        assert not self.corruptions, self.corruptions
        received = [one for engine in self.engines.values() for one in engine.received]
        for one in received:
            if leg := one.headers.get("x-request-id"):
                self._tenant_of_leg[leg] = one.headers.get(TENANT_HEADER, "")
        for one in received:
            self._check_handle(one)
        for origin, engine in self.engines.items():
            assert not engine.running, f"{origin} works on: {list(engine.running)}"
            assert not any(engine.open_requests.values()), (origin, engine.open_requests)
            engine.received.clear()

    def _check_handle(self, received: Received) -> None:
        params = received.body.get("kv_transfer_params") or {}
        if not params.get("do_remote_decode") or not params.get("remote_block_ids"):
            return
        leg = received.headers["x-request-id"]
        handle = (params["remote_engine_id"], params["remote_request_id"])
        assert handle not in self._sent, f"{leg} carries a handle that {self._sent[handle]} carried before"
        self._sent[handle] = leg
        if params["remote_num_tokens"] == 0:
            return  # nothing can be read with it: it is to be freed, and whose leg says so is all the same
        made_by = _REQUEST_ID.fullmatch(params["remote_request_id"])
        assert made_by, f"{params['remote_request_id']} is no id of a decode leg"
        maker, user = self._tenant_of_leg[made_by["leg"]], self._tenant_of_leg[leg]
        assert maker == user, f"{user}'s leg {leg} carries a handle of {maker}"


def named(setup: Setup, engine: type[SimEngine], clock: Clock) -> tuple[dict[str, SimEngine], list[str]]:
    """The setup's engines in one process by made-up origins, and which of those are prefill nodes."""
    fabric, engines, prefills = LocalFabric(), dict[str, SimEngine](), list[str]()
    for role, configs in ((Role.PREFILL, setup.prefills), (Role.DECODE, setup.decodes)):
        for at, config in enumerate(configs, 1):
            origin = f"http://{role.value}-{at}:8000"
            engines[origin] = engine(config, fabric=fabric, clock=clock)
            if role is Role.PREFILL:
                prefills.append(origin)
    return engines, prefills
