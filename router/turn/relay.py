"""The way of one turn: find, plan, verify, prefill leg, decode leg, remember.

Whatever happens to a handle, the worst outcome is a cold turn: before the first byte went to the client, a
prefill leg that failed with a handle is run again without one. A leg that its node did not answer, or
answered with a server error, is run again once on other nodes where there are any, from the prefill leg on: a
node that broke off is dead, or aborts what nobody reads any more, so that no answer is given twice. After the
first byte nothing is run again. The caller cancels the task of a turn whose client has left; every open leg
then closes.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from router import errors
from router.engines.upstream import Exhausted, NeverSent, Stale, Unsendable, UpstreamError
from router.fleet.node import Node, Role
from router.telemetry.facts import EndedBy, LegFailed, LegFault, Phase
from router.turn.admit import admitted
from router.turn.answer import DecodeFailed, DecodeLeg
from router.turn.context import Client, Context
from router.turn.custody import Custody
from router.turn.decode_request import Ahead, make_ahead
from router.turn.fault import fault_of
from router.turn.forwarding import ClientStalls
from router.turn.legs import client_headers
from router.turn.plan import Kind, Plan
from router.turn.prefill import Prefilled
from router.turn.prefilling import MAX_ATTEMPTS, Prefilling
from router.turn.record import Record, line_name
from router.turn.refusal import Refused
from router.turn.remember import Memory
from router.turn.request import Request
from router.turn.situate import learn_gap, look_up, may_serve, situate
from router.turn.telling import answered, told
from router.turn.weigh import choose

STOPPING = "the router stops"
"""How a turn ended whose task was cancelled although its client was still there."""


@dataclass(frozen=True, slots=True)
class Relay:
    """Runs turns. One object serves all of them; a turn's own state lives in ``_Turn``."""

    context: Context

    async def run(self, request: Request, tenant: bytes | None, client: Client) -> None:
        """Run one turn to its end. ``tenant`` is None for a caller whose identity is in doubt: no reuse.

        Raises CancelledError, after everything is closed and given back, and whatever a fault of the router's
        own raises: nothing is sent to the client then.
        """
        tracing = self.context.tracing
        spans = tracing.begin(request.headers) if tracing is not None else None
        record = Record(request, self.context.now, self.context.now(), spans=spans)
        running = self.context.running
        running[request.turn_id] = record
        try:
            await _Turn(self.context, request, tenant, client, record).run()
            record.phase = Phase.DONE
        except asyncio.CancelledError:
            if client.left:
                record.ended(EndedBy.CLIENT, f"left in phase {record.phase}")
            elif client.has_all:
                record.phase = Phase.DONE
            else:
                record.ended(EndedBy.ROUTER, f"{STOPPING}, in phase {record.phase}")
                if not client.started:
                    record.status = errors.ERROR_ROWS[errors.NoCapacity].status  # as the route tells it
            raise
        except ClientStalls as stalled:
            record.ended(EndedBy.CLIENT, str(stalled))
            client.drop()
        except Refused as refused:
            record.ended(EndedBy.ENGINE, str(refused))
            await self._refuse(client, record, refused)
        except errors.RequestError as error:
            ours = isinstance(error, errors.NoCapacity | errors.TooManyTurns | errors.UpstreamTimeout)
            record.ended(EndedBy.ROUTER if ours else EndedBy.FAULT, error.message)
            record.status = errors.error_row(error).status
            await client.whole(record.status, errors.error_headers(error), errors.openai_error(error))
        except Exception as error:
            record.ended(EndedBy.FAULT, f"the router failed: {type(error).__name__}")
            if not client.started:
                record.status = errors.ERROR_ROWS[errors.InternalError].status  # as the route tells it
            raise
        finally:
            running.pop(request.turn_id, None)
            ended = record.fact()
            self.context.facts.publish(ended)
            if spans is not None:
                self.context.facts.publish(spans.traced(ended, request.path))

    @staticmethod
    async def _refuse(client: Client, record: Record, refused: Refused) -> None:
        record.status = refused.answer.status
        await client.whole(refused.answer.status, client_headers(refused.answer.headers), refused.answer.body)


class _LeaseOver(Exception):
    """Too much time passed since the prefill leg: P may have given D's blocks away."""


class _Unanswered(Exception):
    """The decode leg failed before the client got a byte; ``error`` is for it, if nothing else helps."""

    def __init__(self, key: str, why: str, error: Exception) -> None:
        super().__init__(why)
        self.key, self.error = key, error


class _CannotStay(Exception):
    """The D that holds the conversation cannot be reached: no other one can take its place without P."""


@dataclass(slots=True)
class _Turn:
    context: Context
    request: Request
    tenant: bytes | None
    client: Client
    record: Record
    ahead: Ahead | None = None
    """Of the decode leg that is expected to be next."""

    async def run(self) -> None:
        self.record.phase = Phase.WAIT
        async with admitted(self.context, self.record, self.tenant, self._pools):
            self.record.phase = Phase.PLAN
            await self._run()

    def _pools(self) -> Sequence[Sequence[Node]]:
        """The nodes that the turn may run on now: one of each is needed."""
        pool, model = self.context.fleet.snapshot, self.request.model
        roles = (Role.DECODE,) if self.request.unsplit is not None else (Role.DECODE, Role.PREFILL)
        return [may_serve(pool, role, model) for role in roles]

    async def _run(self) -> None:
        began_s = self.context.now()
        known = await look_up(self.context, self.request, self.tenant)
        self.record.line = line_name(known.lineage)
        if known.found is not None:
            took = known.found.handle is not None
            self.record.event("ledger.found", relation=known.found.relation, took_handle=took)
        learn_gap(self.context, known.found)
        custody = Custody(known.found, self.context.ledger, self.context.facts, self.context.releases)
        try:
            lineage = known.lineage if known.remembers else None
            memory = Memory(self.context, self.request, lineage, custody, self.tenant, began_s)
            situation = situate(self.context, self.request, known)
            first = Prefilling(self.context, situation, custody, self.record)
            try:
                await self._legs(first, memory)
            finally:
                first.tell()
        finally:
            await custody.close()

    async def _legs(self, first: Prefilling, memory: Memory) -> None:
        """Both legs; again from the prefill leg once, if P's params cannot serve a decode leg any more.

        A turn that could not stay on D has lost nothing yet, and begins with a prefill leg.
        """
        plan, prefilled = await first.run(self._make_ahead)
        is_last = False
        while True:
            try:
                return await self._decode(first, memory, plan, prefilled)
            except (Stale, _LeaseOver, _CannotStay) as error:
                if is_last:
                    self._decode_failed(error, "fail")
                    raise self._told_last(error) from error
                self._decode_failed(error, "prefill_again")
                if plan.kind is Kind.STAY:
                    first.leave_stay()
                else:
                    # D may have seen P's params and freed its blocks: they do not serve a second attempt.
                    first.go_cold()
                    is_last = True
                plan, prefilled = await first.run(self._make_ahead)
            except _Unanswered as error:
                # Asked once more on another pair, if there is one.
                if is_last or self.client.started or not first.move_from(error.key, self.record.prefill):
                    self._decode_failed(error, "fail")
                    raise error.error from error
                self._decode_failed(error, "prefill_again")
                first.go_cold()
                is_last = True
                plan, prefilled = await first.run(self._make_ahead)

    def _make_ahead(self, plan: Plan, salt: str | None) -> None:
        self.ahead = make_ahead(self.context, self.record, plan, salt)

    def _told_last(self, error: Exception) -> errors.RequestError:
        if isinstance(error, Stale):
            return told("decode", self.record.decode, error)
        return errors.UpstreamTimeout(f"decode node {self.record.decode}: {error}")

    async def _decode(
        self, first: Prefilling, memory: Memory, plan: Plan, prefilled: Prefilled | None
    ) -> None:
        """The decode leg, on another node while nothing at all was sent.

        Raises Stale, _LeaseOver, _CannotStay and _Unanswered.
        """
        for _ in range(MAX_ATTEMPTS):
            key = plan.decode.key
            self._check_lease()
            ahead, self.ahead = self.ahead, None
            leg = DecodeLeg(
                self.context, self.request, plan, prefilled, self.record, self.client, memory,
                self._explain(plan, prefilled), ahead, first.tell,
            )  # fmt: skip
            try:
                await leg.run()
                return
            except Unsendable as error:
                raise errors.BadRequest(f"the request cannot be forwarded: {error}") from error
            except Exhausted as error:
                self._decode_failed(error, "fail")
                raise told("decode", key, error) from error
            except NeverSent as error:
                first.exclude(key)
                if plan.kind is Kind.STAY:
                    raise _CannotStay(str(error)) from error
                self._decode_failed(error, "other_node")
                other = choose(first.situation)
                if other is None:
                    raise told("decode", key, error) from error
                plan = plan.on_decode(other)
                self.record.planned(plan)
            except Stale:
                raise
            except UpstreamError as error:
                raise _Unanswered(key, str(error), told("decode", key, error)) from error
            except DecodeFailed as error:
                raise _Unanswered(
                    key, str(error), answered("decode", key, error.answer, str(error))
                ) from error
            except Refused as error:
                if not error.is_full:
                    raise
                raise _Unanswered(key, str(error), error) from error
        raise errors.UpstreamBroken("no decode node could be reached")

    def _check_lease(self) -> None:
        """P keeps its blocks for a lease that only D renews; after that D would read others."""
        lease_s = self.context.settings.prefill_lease_s
        left_s = self.record.lease_left_s(lease_s)
        if left_s is not None and left_s <= 0:
            raise _LeaseOver(
                f"the prefill node's lease of {lease_s:g} s passed before the decode leg was sent"
            )

    def _decode_failed(self, error: Exception, action: str) -> None:
        """Tell of a leg to the decode node of the plan in force, which may be another than the first."""
        cause = error.__cause__ if isinstance(error, _Unanswered | _CannotStay) else error
        fault = LegFault.LEASE_OVER if isinstance(error, _LeaseOver) else fault_of(cause)
        node, why = self.record.decode, str(error)
        self.record.event("leg_failed", role="decode", node=node, action=action, fault=fault)
        self.context.facts.publish(
            LegFailed(
                self.request.turn_id, "decode", node, why, with_handle=False, action=action, fault=fault
            )
        )

    def _explain(self, plan: Plan, prefilled: Prefilled | None) -> tuple[tuple[str, str], ...]:
        if not self.context.settings.explain_headers:
            return ()
        told = (("x-boomerang-plan", plan.kind), ("x-boomerang-reason", plan.reason))
        if plan.kind is Kind.STAY:
            return told  # what D still has, only the end of its answer tells
        reused = prefilled.reused_tokens if prefilled is not None else None
        return (*told, ("x-boomerang-reused-tokens", str(reused or 0)))
