"""The way of one turn: find, plan, verify, prefill leg, decode leg, remember.

Whatever happens to a handle, the worst outcome is a cold turn: before the first byte went to the client, a
prefill leg that failed with a handle is run again without one. Nothing is run again that a decode node has
begun to answer, or broke off: it could run twice. The one exception is a reused connection that was closed
without a byte, as engines close idle ones. The caller cancels the task of a turn whose client has left; every
open leg then closes.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from router import errors
from router.engines.upstream import NeverSent, Stale, Unsendable, UpstreamError
from router.fleet.node import Node, Role
from router.fleet.pool import Pool
from router.ledger.store import Found, LedgerUnavailable, Query
from router.telemetry.facts import EndedBy, LedgerFailed, LegFailed, Phase
from router.turn.answer import DecodeFailed, DecodeLeg
from router.turn.context import Client, Context
from router.turn.custody import Custody
from router.turn.legs import client_headers
from router.turn.lineage import Lineage, lineage_of
from router.turn.plan import Plan, Reason, Situation, Verify, choose
from router.turn.prefill import Prefilled
from router.turn.prefilling import MAX_ATTEMPTS, Prefilling
from router.turn.record import Record
from router.turn.refusal import Refused
from router.turn.remember import Memory
from router.turn.request import Request
from router.turn.telling import answered, told

STOPPING = "the router stops"
"""The message that a turn's task is cancelled with where it is not the client that has left."""


@dataclass(frozen=True, slots=True)
class Relay:
    """Runs turns. One object serves all of them; a turn's own state lives in ``_Turn``."""

    context: Context

    async def run(self, request: Request, tenant: bytes | None, client: Client) -> None:
        """Run one turn to its end. ``tenant`` is None for a caller whose identity is in doubt: no reuse.

        Raises CancelledError, after everything is closed and given back, and whatever a fault of the router's
        own raises: nothing is sent to the client then.
        """
        record = Record(request, self.context.now, self.context.now())
        try:
            await _Turn(self.context, request, tenant, client, record).run()
            record.phase = Phase.DONE
        except asyncio.CancelledError as cancelled:
            if cancelled.args == (STOPPING,):
                record.ended(EndedBy.ROUTER, f"{STOPPING}, in phase {record.phase}")
                if not client.started:
                    record.status = errors.ERROR_ROWS[errors.NoCapacity].status  # as the route tells it
            else:
                record.ended(EndedBy.CLIENT, f"left in phase {record.phase}")
            raise
        except Refused as refused:
            record.ended(EndedBy.ENGINE, str(refused))
            await self._refuse(client, record, refused)
        except errors.RequestError as error:
            ours = isinstance(error, errors.NoCapacity | errors.UpstreamTimeout)
            record.ended(EndedBy.ROUTER if ours else EndedBy.FAULT, error.message)
            record.status = errors.error_row(error).status
            await client.whole(record.status, errors.error_headers(error), errors.openai_error(error))
        except Exception as error:
            record.ended(EndedBy.FAULT, f"the router failed: {type(error).__name__}")
            if not client.started:
                record.status = errors.ERROR_ROWS[errors.InternalError].status  # as the route tells it
            raise
        finally:
            self.context.facts.publish(record.fact())

    @staticmethod
    async def _refuse(client: Client, record: Record, refused: Refused) -> None:
        record.status = refused.answer.status
        await client.whole(refused.answer.status, client_headers(refused.answer.headers), refused.answer.body)


def _may_serve(pool: Pool, role: Role, model: str) -> Sequence[Node]:
    """The nodes of a role that a turn for ``model`` may go to now.

    A model that no node serves goes to any: the engine says best that there is no such model, and one that
    was loaded since the last probe is served.
    """
    ready = pool.ready(role, model)
    nodes = [node for node in pool.nodes if node.role is role]
    if ready or any(not node.engine.models or model in node.engine.models for node in nodes):
        return ready
    return pool.ready(role)


class _LeaseOver(Exception):
    """Too much time passed since the prefill leg: P may have given D's blocks away."""


@dataclass(slots=True)
class _Turn:
    context: Context
    request: Request
    tenant: bytes | None
    client: Client
    record: Record

    async def run(self) -> None:
        lineage = lineage_of(self.request.endpoint, self.request.members, self.tenant or b"")
        remembers = self._remembers(lineage)
        found, cold_reason = await self._find(lineage) if remembers else (None, self._why_not())
        custody = Custody(found, self.context.ledger, self.context.facts)
        try:
            memory = Memory(self.context, self.request, lineage if remembers else None, custody)
            situation = self._situation(lineage, found, cold_reason)
            await self._legs(Prefilling(self.context, situation, custody, self.record), memory)
        finally:
            await custody.close()

    def _remembers(self, lineage: Lineage) -> bool:
        return (
            self.tenant is not None
            and self.request.unsplit is None
            and self.context.settings.verify != Verify.OFF
            and bool(lineage.keys)
        )

    def _why_not(self) -> str:
        return Reason.NO_IDENTITY if self.tenant is None else ""

    async def _find(self, lineage: Lineage) -> tuple[Found | None, str]:
        query = Query(
            lineage.keys,
            lineage.sizes_bytes,
            lineage.own_depth,
            self.request.conversation,
            self.context.settings.take_share,
        )
        try:
            return await self.context.ledger.find(query), ""
        except LedgerUnavailable as error:
            self.context.facts.publish(LedgerFailed("find", str(error)))
            return None, Reason.LEDGER_DOWN

    def _situation(self, lineage: Lineage, found: Found | None, cold_reason: str) -> Situation:
        pool, model, now_s = self.context.fleet.snapshot, self.request.model, self.context.now()
        return Situation(
            request=self.request,
            media_depth=lineage.media_depth,
            shape=lineage.shape,
            prefills=_may_serve(pool, Role.PREFILL, model),
            decodes=_may_serve(pool, Role.DECODE, model),
            found=found,
            mode=self.context.settings.verify,
            cooling=self.context.doubts.cooling(now_s),
            mistrusted=self.context.doubts.mistrusts(model, now_s),
            cold_reason=cold_reason,
        )

    async def _legs(self, first: Prefilling, memory: Memory) -> None:
        """Both legs; again from the prefill leg once, if P's params cannot serve a decode leg any more."""
        plan, prefilled = await first.run()
        try:
            await self._decode(first, memory, plan, prefilled)
        except (Stale, _LeaseOver) as error:
            self._decode_failed(str(error), "prefill_again")
            # D may have seen P's params and freed its blocks: they do not serve a second attempt.
            first.go_cold()
            plan, prefilled = await first.run()
            try:
                await self._decode(first, memory, plan, prefilled)
            except Stale as again:
                self._decode_failed(str(again), "fail")
                raise told("decode", self.record.decode, again) from again
            except _LeaseOver as again:
                self._decode_failed(str(again), "fail")
                raise errors.UpstreamTimeout(f"decode node {self.record.decode}: {again}") from again

    async def _decode(
        self, first: Prefilling, memory: Memory, plan: Plan, prefilled: Prefilled | None
    ) -> None:
        """The decode leg, on another node while nothing at all was sent. Raises Stale and _LeaseOver."""
        for _ in range(MAX_ATTEMPTS):
            key = plan.decode.key
            self._check_lease()
            leg = DecodeLeg(
                self.context, self.request, plan, prefilled, self.record, self.client, memory,
                self._explain(plan, prefilled),
            )  # fmt: skip
            try:
                await leg.run()
                return
            except Unsendable as error:
                raise errors.BadRequest(f"the request cannot be forwarded: {error}") from error
            except NeverSent as error:
                self._decode_failed(str(error), "other_node")
                first.exclude(key)
                other = choose(first.situation)
                if other is None:
                    raise told("decode", key, error) from error
                plan = replace(plan, decode=other.decode)
                self.record.planned(plan)
            except Stale:
                raise
            except UpstreamError as error:
                self._decode_failed(str(error), "fail")
                raise told("decode", key, error) from error
            except DecodeFailed as error:
                self._decode_failed(str(error), "fail")
                raise answered("decode", key, error.answer, str(error)) from error
        raise errors.UpstreamBroken("no decode node could be reached")

    def _check_lease(self) -> None:
        """P keeps its blocks for a lease that only D renews; after that D would read others."""
        ended_s, lease_s = self.record.prefill_ended_s, self.context.settings.prefill_lease_s
        if ended_s is not None and self.context.now() - ended_s > lease_s:
            raise _LeaseOver(
                f"the prefill node's lease of {lease_s:g} s passed before the decode leg was sent"
            )

    def _decode_failed(self, why: str, action: str) -> None:
        """Tell of a leg to the decode node of the plan in force, which may be another than the first."""
        node = self.record.decode
        self.context.facts.publish(
            LegFailed(self.request.turn_id, "decode", node, why, with_handle=False, action=action)
        )

    def _explain(self, plan: Plan, prefilled: Prefilled | None) -> tuple[tuple[str, str], ...]:
        if not self.context.settings.explain_headers:
            return ()
        reused = prefilled.reused_tokens if prefilled is not None else None
        return (
            ("x-boomerang-plan", plan.kind),
            ("x-boomerang-reason", plan.reason),
            ("x-boomerang-reused-tokens", str(reused or 0)),
        )
