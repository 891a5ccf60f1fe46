"""Conversations by the names that clients give them: to end one, and, for operators, to look at them.

| route | does |
|---|---|
| ``DELETE /v1/conversations/{id}`` | the caller's conversation of that name is over: its pins are released |
| ``GET /admin/conversations`` | lines of all tenants, most recently used first: ``?limit=100&cursor=...`` |

A name is its tenant's own: what another tenant calls so is not there for the caller, and the answer is that
for a name that nobody uses. Operators see names and numbers, never what was said.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from router import errors
from router.http.identity import tenant_of
from router.http.refusals import refused
from router.ledger.store import LedgerUnavailable, Line, PinLedger
from router.telemetry.facts import LedgerFailed
from router.turn.context import Context
from router.turn.ending import end_conversation
from router.turn.request import conversation_hint

DEFAULT_LIMIT: Final = 100
MAX_LIMIT: Final = 1_000


class EndedTold(msgspec.Struct):
    """The shape of OpenAI's answer to a deletion, and what came of it."""

    id: str
    released_handles: int
    object: str = "conversation.deleted"
    deleted: bool = True


class LineTold(msgspec.Struct):
    """One branch. Spans are seconds before now, or from now on; None where no handle waits."""

    conversation: str
    """As its client calls it; empty where it does not."""
    branch: str
    turns: int
    plan: str
    """Of the last turn, and the reason for it."""
    reason: str
    finish: str
    """How its answer ended."""
    decode: str
    prefill: str
    prompt_tokens: int
    reused_tokens: int
    pinned_tokens: int
    age_s: float
    """Since its last turn ended."""
    used_s: float
    """Since it was looked for last."""
    deadline_in_s: float | None


class PageTold(msgspec.Struct):
    conversations: list[LineTold]
    cursor: str | None
    """For the next page; null where this is the last."""


@dataclass(frozen=True, slots=True)
class EndRoute:
    """``DELETE /v1/conversations/{id}``. ``identity_header`` as in ``identity.tenant_of``."""

    context: Context
    identity_header: str = ""

    def route(self) -> Route:
        return Route("/v1/conversations/{id}", self.end, methods=["DELETE"])

    async def end(self, request: Request) -> Response:
        # The same characters are kept of a name here as when its turns came.
        name = conversation_hint({"x-session-id": str(request.path_params["id"])}, {})
        headers = [(k.decode("latin-1").lower(), v.decode("latin-1")) for k, v in request.headers.raw]
        try:
            released = await end_conversation(self.context, tenant_of(headers, self.identity_header), name)
        except LedgerUnavailable as error:
            self.context.facts.publish(LedgerFailed("end", str(error), asked=error.asked))
            return refused(errors.NoCapacity("the ledger does not answer; nothing was ended"))
        if released is None:
            return refused(errors.NotFound("there is no such conversation"))
        return _json(EndedTold(name, released))


@dataclass(frozen=True, slots=True)
class ConversationRoutes:
    """``/admin/conversations``. ``now`` is the ledger's clock."""

    pins: PinLedger
    now: Callable[[], float]

    def routes(self) -> list[Route]:
        return [Route("/admin/conversations", self.listed, methods=["GET"])]

    async def listed(self, request: Request) -> Response:
        limit = _limit(request.query_params.get("limit"))
        try:
            page = await self.pins.conversations(cursor=request.query_params.get("cursor"), limit=limit)
        except LedgerUnavailable:
            raise errors.NoCapacity("the ledger does not answer") from None
        now_s = self.now()
        return _json(PageTold([_told(line, now_s) for line in page.lines], page.cursor))


def _limit(given: str | None) -> int:
    if given is None:
        return DEFAULT_LIMIT
    if not (given.isascii() and given.isdigit() and len(given) <= 4 and 1 <= int(given) <= MAX_LIMIT):
        raise errors.BadRequest(f"limit is a number from 1 to {MAX_LIMIT}", param="limit")
    return int(given)


def _told(line: Line, now_s: float) -> LineTold:
    trace = line.trace
    return LineTold(
        conversation=line.conversation,
        branch=line.branch,
        turns=line.turns,
        plan=trace.plan,
        reason=trace.reason,
        finish=trace.finish,
        decode=trace.decode,
        prefill=trace.prefill,
        prompt_tokens=trace.prompt_tokens,
        reused_tokens=trace.reused_tokens,
        pinned_tokens=line.pinned_tokens,
        age_s=now_s - trace.computed_at_s,
        used_s=now_s - line.used_at_s,
        deadline_in_s=None if line.deadline_s is None else line.deadline_s - now_s,
    )


def _json(told: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(told), media_type="application/json")
