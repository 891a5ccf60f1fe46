"""What a turn leaves in the ledger when it ended well: the trace, and D's handle if it gave a usable one."""

import asyncio

from router.engines import nixl
from router.fleet.node import Node
from router.ledger.store import Finish as FinishKind
from router.ledger.store import Handle, LedgerUnavailable, Put, Trace, owner_of
from router.telemetry.facts import HandleFact, LedgerFailed, Outcome
from router.turn.answer import Ended, held_ids
from router.turn.context import Context
from router.turn.custody import Custody
from router.turn.digest import Digests, chain
from router.turn.ending import end_conversation, is_final, last_turn
from router.turn.handle import Finish, Unusable, accept
from router.turn.lineage import Lineage
from router.turn.plan import Kind, Plan, Verify
from router.turn.prefill import Prefilled, engine_verified
from router.turn.release import Cause
from router.turn.request import Request
from router.values import value


@value
class Memory:
    """Puts one turn into the ledger. ``lineage`` is None where nothing may be remembered."""

    context: Context
    request: Request
    lineage: Lineage | None
    custody: Custody
    tenant: bytes | None = None
    began_s: float | None = None
    """When the turn was looked up, on the ledger's clock."""

    async def __call__(self, plan: Plan, prefilled: Prefilled | None, ended: Ended) -> None:
        """Record a turn; a ledger that is down costs the next turn its reuse, nothing else."""
        await self._put(plan, prefilled, ended)
        if is_final(self.request):
            try:
                await end_conversation(self.context, self.tenant, self.request.conversation)
            except LedgerUnavailable as error:
                self.context.facts.publish(LedgerFailed("end", str(error), asked=error.asked))

    async def _put(self, plan: Plan, prefilled: Prefilled | None, ended: Ended) -> None:
        if prefilled is None and plan.kind is not Kind.STAY:
            return
        handle = self._handle(plan, prefilled, ended)
        lineage = self.lineage
        if lineage is None:
            self._release(Cause.UNKEPT, handle)
            return
        # A turn that stayed did without the branch's handle: it is as good as before.
        kept = self.custody.kept() if plan.kind is Kind.STAY else None
        trace = self._trace(plan, prefilled, ended, lineage, handle)
        at_once = last_turn(self.context.settings.one_shot, self.request, lineage)
        put = Put(
            lineage.keys,
            self.custody.found,
            trace,
            (handle or kept) if at_once is None else None,
            self.request.conversation,
            lineage.own_depth,
            owner_of(self.tenant or b"", self.request.conversation),
            self.began_s,
        )
        try:
            await self.context.ledger.put(put)
        except LedgerUnavailable as error:
            self.context.facts.publish(LedgerFailed("put", str(error), asked=error.asked))
            if kept is not None:
                self.custody.tell(Outcome.LOST, kept.tokens, "ledger_down")
            self._unsure(handle, kept)
            return
        except asyncio.CancelledError:
            self._unsure(handle, kept)
            raise
        if at_once is not None:
            self._release(at_once, handle, kept)
            return
        self.context.gaps.ended(trace.finish, trace.computed_at_s)
        self.context.releases.changed.set()
        if handle is not None:
            self.context.facts.publish(HandleFact(Outcome.STORED, handle.decode, handle.tokens))
        if kept is not None:
            outcome = Outcome.GIVEN_BACK if handle is None else Outcome.LOST
            self.custody.tell(outcome, kept.tokens, "stayed" if handle is None else "superseded")
            if handle is not None:
                self._release(Cause.SUPERSEDED, kept)

    def _release(self, cause: Cause, *handles: Handle | None) -> None:
        for handle in handles:
            if handle is not None:
                self.context.releases.add(handle, cause)

    def _unsure(self, *handles: Handle | None) -> None:
        """The ledger may have them all the same, and a turn find them: they cannot be released."""
        for handle in handles:
            if handle is not None:
                self.context.releases.lost(handle)

    def _trace(
        self, plan: Plan, prefilled: Prefilled | None, ended: Ended, lineage: Lineage, handle: Handle | None
    ) -> Trace:
        found, prefill = self.custody.found, plan.prefill.key if plan.prefill is not None else ""
        decode, prompt_tokens = plan.decode.key, _prompt_tokens(prefilled, ended)
        if plan.kind is Kind.STAY:
            # P still has what it had; estimates know better how much from the handle that was kept.
            prefill = found.trace.prefill if found is not None else ""
        elif prefilled is not None and prefilled.salt is not None:
            prefill = decode = ""  # what the nodes have in their own caches, nobody else will find
        if prompt_tokens is None:
            known = handle.tokens if handle is not None else 0
            prompt_tokens = known or int(plan.estimate.prompt_tokens if plan.estimate is not None else 0)
        return Trace(
            prefill=prefill,
            decode=decode,
            prompt_tokens=prompt_tokens,
            prompt_bytes=lineage.sizes_bytes[-1],
            reused_tokens=(prefilled.reused_tokens or 0) if prefilled is not None else 0,
            computed_at_s=self.context.now(),
            finish=FinishKind.of(ended.answer.finish_reasons[0] if ended.answer.finish_reasons else ""),
            plan=plan.kind,
            reason=plan.reason,
        )

    def _handle(self, plan: Plan, prefilled: Prefilled | None, ended: Ended) -> Handle | None:
        """D's handle, and what it teaches about D."""
        node, params = plan.decode.key, None
        if ended.answer.params is not None:
            try:
                params = nixl.read(ended.answer.params)
            except nixl.NotParams:
                params = None
        is_delivered = prefilled is not None and prefilled.params is not None
        learned = self._handles_told(plan.decode, is_there=params is not None) if is_delivered else {}
        if params is not None:
            self.context.fleet.learn(
                node,
                engine_id=params.engine_id or None,
                push_mode=params.push_mode,
                stamps=params.stamped,
                **learned,
            )
        elif learned:
            self.context.fleet.learn(node, **learned)
        accepted = accept(
            Finish(
                params=self._reachable(plan, ended),
                decode=node,
                sent_at_s=ended.sent_at_s,
                waited_from_s=ended.waited_from_s,
                prompt_tokens=_prompt_tokens(prefilled, ended) or 0,
                held=self._held(plan, prefilled, ended, params),
                media_depth=self.lineage.media_depth if self.lineage is not None else 0,
                started_at_s=plan.decode.engine.started_at_s,
            ),
            self.context.settings.lifetime,
            self.context.settings.threshold_tokens,
        )
        if isinstance(accepted, Handle):
            return accepted
        if accepted is Unusable.NO_PARAMS:
            if is_delivered:
                self.context.facts.publish(HandleFact(Outcome.MISSING_DECODE_PARAMS, node, 0))
        else:
            self.context.facts.publish(HandleFact(Outcome.UNUSABLE, node, 0, accepted))
        return None

    def _handles_told(self, decode: Node, *, is_there: bool) -> dict[str, bool]:
        """What this answer tells of whether D's answers carry handles, by its name in ``Engine``.

        One that did proves it; one that did not may have had none.
        A stop string ends a request as an abort inside the engine, which leaves no handle behind.
        """
        known = self.context.fleet.engine(decode.key) or decode.engine
        name = "stream_handle" if self.request.stream else "whole_handle"
        if is_there or (getattr(known, name) is not True and "stop" not in self.request.members):
            return {name: is_there}
        return {}

    def _reachable(self, plan: Plan, ended: Ended) -> bytes | None:
        """D's params, with an address that P can reach where the operator says they name none."""
        raw = ended.answer.params
        if raw is None or not self.context.settings.rewrite_remote_host:
            return raw
        try:
            return nixl.reachable(raw, origin=plan.decode.origin)
        except nixl.NotParams:
            return raw

    def _held(
        self, plan: Plan, prefilled: Prefilled | None, ended: Ended, params: nixl.Params | None
    ) -> Digests | None:
        mode = self.context.settings.verify
        if params is None or mode not in ("auto", Verify.ROUTER):
            return None
        if params.stamped and engine_verified(plan):
            return None
        ids = held_ids(prefilled, ended.answer, params.tokens)
        return chain(ids) if ids is not None else None


def _prompt_tokens(prefilled: Prefilled | None, ended: Ended) -> int | None:
    """How many tokens the prompt has, as the engines tell; None where neither does."""
    if prefilled is not None and prefilled.prompt_tokens is not None:
        return prefilled.prompt_tokens
    return ended.answer.usage.prompt_tokens if ended.answer.usage is not None else None
