"""What a turn has been through so far: filled in by the relay, published once as ``TurnEnded``."""

import secrets
from collections.abc import Callable, Collection
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from router.telemetry.facts import EndedBy, Phase, TurnEnded, Value
from router.turn.lineage import Lineage
from router.turn.plan import Kind, Plan
from router.turn.request import Request
from router.turn.spans import NO_SPAN, Span, Spans
from router.turn.traceparent import read_traceparent

STATUS_CLIENT_LEFT = 499
"""What logs and metrics say of a turn whose client left before it got a status; never sent."""

_NAMING_KEY: Final = secrets.token_bytes(16)
"""Of this process alone: whoever sees a name cannot try out which opening it is of."""


def line_name(lineage: Lineage) -> str:
    """A name of the conversation that a request belongs to, by its opening; empty where it has no history.

    Forks of a conversation share it, its tenant and model are in it, and it tells nothing of either.
    """
    if not lineage.keys:
        return ""
    opening = lineage.keys[min(lineage.own_depth, len(lineage.keys)) - 1]
    return blake2b(opening, digest_size=4, key=_NAMING_KEY, person=b"boomerang-line").hexdigest()


@dataclass(slots=True)
class Record:
    """The course of one turn. Only the turn's own task writes it. Times in seconds on ``now``'s clock."""

    request: Request
    now: Callable[[], float]
    started_s: float
    phase: Phase = Phase.PLAN
    plan: Plan | None = None
    prefill: str = ""
    decode: str = ""
    status: int = STATUS_CLIENT_LEFT
    ended_by: EndedBy = EndedBy.ENGINE
    detail: str = ""
    prompt_tokens: int | None = None
    reused_tokens: int | None = None
    completion_tokens: int | None = None
    finish_reason: str = ""
    verify_s: float | None = None
    prefill_s: float | None = None
    prefill_ended_s: float | None = None
    gap_s: float | None = None
    decode_sent_s: float | None = None
    """When the newest decode leg was sent."""
    first_byte_s: float | None = None
    legs: int = 0
    decode_legs: int = 0
    """How many other legs were open on D when this turn's was sent."""
    estimate_s: float | None = None
    """How long the plan was estimated to take to the first token, from its own making on."""
    waited_s: float | None = None
    """How long the turn waited for its place; None where it did not have to."""
    line: str = ""
    """As ``line_name`` gives it."""
    spans: Spans | None = None
    """Where the turn is traced."""
    on_nodes: Callable[[Collection[str]], None] = lambda _: None
    """Told the keys of the nodes that the turn is still to run on, as they change."""

    def leg_id(self, role: str) -> str:
        """A request id that no engine has seen: ids live on at P after the answer, so none serves twice."""
        self.legs += 1
        return f"{self.request.turn_id}-{role}{self.legs}"

    def span(self, name: str, node: str, leg_id: str) -> Span:
        """A request to an engine; for a ``with`` statement, in which it is made."""
        return NO_SPAN if self.spans is None else self.spans.leg(name, node, leg_id)

    def event(self, name: str, **attributes: Value) -> None:
        """Something that a trace of the turn tells."""
        if self.spans is not None:
            self.spans.event(name, **attributes)

    def planned(self, plan: Plan) -> None:
        """The plan in force; a later one replaces it, so that what is told is what was done."""
        self.plan = plan
        self.prefill = plan.prefill.key if plan.prefill is not None else ""
        self.decode = plan.decode.key
        self.estimate_s = plan.estimate.seconds if plan.estimate is not None else None
        self.on_nodes({self.decode, self.prefill} - {""})
        self.event("planned", plan=plan.kind, reason=plan.reason)

    def prefill_ended(self) -> None:
        """P has done its part, and may take another turn."""
        self.phase, self.prefill_ended_s = Phase.BETWEEN, self.now()
        self.on_nodes({self.decode})

    def lease_left_s(self, lease_s: float) -> float | None:
        """How long P still keeps its blocks for a decode leg; None where no prefill leg has ended."""
        return None if self.prefill_ended_s is None else self.prefill_ended_s + lease_s - self.now()

    def ended(self, by: EndedBy, detail: str) -> None:
        """The first cause stays: what follows from it is not news."""
        if not self.detail:
            self.ended_by, self.detail = by, detail

    def decode_sent(self) -> None:
        self.decode_sent_s = self.now()
        if self.prefill_ended_s is not None:
            self.gap_s = self.decode_sent_s - self.prefill_ended_s
        self.phase = Phase.FIRST_TOKEN

    def first_byte(self) -> None:
        if self.first_byte_s is None:
            self.first_byte_s = self.now() - self.started_s
            self.phase = Phase.STREAM
            if self.spans is not None:
                self.spans.newest.event("first_byte")

    def moved_tokens(self) -> int | None:
        """Of the reused tokens, those that P read from D: less what it was estimated to have itself."""
        plan, reused = self.plan, self.reused_tokens
        if plan is None or reused is None or plan.kind not in (Kind.PULL, Kind.LOCAL):
            return 0 if reused is not None else None
        held = int(plan.estimate.held_tokens) if plan.estimate is not None else 0
        return reused - min(held, reused)

    def server_timing(self) -> tuple[tuple[str, str], ...]:
        """What came before the answer, in milliseconds (https://www.w3.org/TR/server-timing/)."""
        took = {"wait": self.waited_s, "verify": self.verify_s, "prefill": self.prefill_s, "gap": self.gap_s}
        parts = [f"{name};dur={took_s * 1e3:.1f}" for name, took_s in took.items() if took_s is not None]
        return (("server-timing", ", ".join(parts)),) if parts else ()

    def fact(self) -> TurnEnded:
        request, plan, now_s = self.request, self.plan, self.now()
        return TurnEnded(
            turn_id=request.turn_id,
            client_id=request.client_id,
            conversation=request.conversation,
            endpoint=request.endpoint,
            model=request.model,
            stream=request.stream,
            plan=plan.kind if plan is not None else "none",
            reason=plan.reason if plan is not None else "none",
            prefill=self.prefill,
            decode=self.decode,
            status=self.status,
            ended_by=self.ended_by,
            phase=self.phase,
            detail=self.detail,
            prompt_tokens=self.prompt_tokens,
            reused_tokens=self.reused_tokens,
            completion_tokens=self.completion_tokens,
            finish_reason=self.finish_reason,
            waited_s=self.waited_s,
            estimate_s=self.estimate_s,
            verify_s=self.verify_s,
            prefill_s=self.prefill_s,
            gap_s=self.gap_s,
            decode_s=now_s - self.decode_sent_s if self.decode_sent_s is not None else None,
            first_byte_s=self.first_byte_s,
            total_s=now_s - self.started_s,
            line=self.line,
            trace_id=self._trace_id(),
            moved_tokens=self.moved_tokens(),
        )

    def _trace_id(self) -> str:
        if self.spans is not None:
            return self.spans.trace_id
        parent = read_traceparent(self.request.headers)
        return parent.trace_id if parent is not None else ""
