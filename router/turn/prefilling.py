"""Everything up to a sane prefill: plan, verify, run the leg; what failed is left out of the next try."""

import secrets
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from router import errors
from router.engines.upstream import Exhausted, NeverSent, Stale, TimedOut, Unsendable
from router.fleet.node import Node
from router.telemetry.facts import HandleFact, LegFailed, Outcome, Phase
from router.turn.context import Context
from router.turn.custody import Custody
from router.turn.fault import fault_of
from router.turn.handle import Uncut
from router.turn.learn import learn_prefill, learn_verify
from router.turn.plan import Plan, Reason, Situation, Verify
from router.turn.prefill import Prefilled, PrefillFailed, PromptDiffers, Use, prefill, use_of
from router.turn.record import Record
from router.turn.refusal import Refused
from router.turn.reuse import Reuse, prepare, release_along, take_along
from router.turn.telling import answered, told
from router.turn.weigh import choose

MAX_ATTEMPTS = 6
"""Legs of one role in one turn: each further one follows from a fault that rules something out for good."""

MAX_NODES = 3
"""Prefill nodes that one turn may go to: what brings engines down is not to go round all of them."""

_RELEASABLE = frozenset(
    {
        Uncut.DIVERGED,
        Reason.BLOCK_SIZE,
        Reason.MEDIA,
        Reason.MODEL_MISTRUSTED,
        Reason.UNVERIFIABLE,
        Reason.CHEAPER,
    }
)
"""Reasons to leave a handle that do not speak against telling its D so."""

_NOT_NOW = frozenset({Reason.HOLDER_GONE, Reason.PAIR_COOLING})
"""Reasons that may pass: a handle whose branch does not move on goes back for a later turn."""


class _Untold(NamedTuple):
    """What a prefill leg has taught that ended well."""

    plan: Plan
    prefilled: Prefilled
    use: Use | None


@dataclass(slots=True)
class Prefilling:
    """The first half of one turn. ``situation`` moves on: what failed is excluded from the next plan."""

    context: Context
    situation: Situation
    custody: Custody
    record: Record
    _untold: "_Untold | None" = None
    """Of the newest leg that ended well."""

    async def run(self, meanwhile: Callable[[Plan, str | None], None]) -> tuple[Plan, Prefilled | None]:
        """The plan that was carried out, and what P left; None for a turn that one node serves.

        ``meanwhile`` is called while P's answer is on its way, with the plan and the salt of its legs, which
        may both be others in the end. What a leg that ended well has taught waits for ``tell``.

        Raises Refused for P's 4xx, and errors.RequestError when nothing is left to try.
        """
        self.tell()
        last: Exception | None = None
        for attempt in range(1, MAX_ATTEMPTS + 1):
            plan = self._plan(last)
            plan, reuse = await self._verified(plan)
            if plan.prefill is None:
                return plan, None
            started_s = self.context.now()
            self.record.phase = Phase.PREFILL
            # Once, before the leg: its answer may be the first of a new process, which nothing is known of.
            on_probation = self._on_probation(plan, reuse)
            salt = secrets.token_hex(16) if on_probation else self._taint_salt(plan)
            try:
                prefilled = await prefill(
                    self.context, self.record, plan, reuse, self.custody, salt=salt,
                    meanwhile=partial(meanwhile, plan, salt),
                )  # fmt: skip
            except Unsendable as error:
                raise errors.BadRequest(f"the request cannot be forwarded: {error}") from error
            except Exhausted as error:
                self._failed(error, "fail", with_handle=False)
                raise told("prefill", plan.prefill.key, error) from error
            except NeverSent as error:
                last = error
                self._failed(error, "other_node", with_handle=False)
                self.exclude(plan.prefill.key)
            except PromptDiffers as error:
                last = error
                self._failed(error, "salted", with_handle=reuse.carries_handle)
                if reuse.carries_handle:
                    self.custody.tell(Outcome.FAILED, reuse.tokens, Reason.MISMATCH)
                known = self._as_known(self.situation.prefills)
                self.situation = replace(self.situation, cold_reason=Reason.MISMATCH, prefills=known)
                if not on_probation:
                    self._taint(plan.prefill)
            except Refused as error:
                last = error
                if reuse.carries_handle and not error.is_full:
                    # The client never sent what P refuses, if that is the handle.
                    self._failed(error, "cold_retry", with_handle=True)
                    self.go_cold()
                elif error.is_full and attempt < MAX_NODES and self._has_another(plan.prefill.key):
                    self._failed(error, "other_node", with_handle=reuse.carries_handle)
                else:
                    raise
            except PrefillFailed as error:
                last = error
                self._after_failure(plan, reuse, error, attempt)
            else:
                self.record.prefill_s = self.context.now() - started_s
                if plan.verify is Verify.ROUTER and reuse.tokens and not self._mistrusts():
                    self.context.doubts.agree(self._kind_of_prompt(plan))
                return self._ended(plan, reuse, prefilled), prefilled
        raise errors.UpstreamBroken(f"no prefill leg succeeded: {last}")

    def tell(self) -> None:
        """Tell what the leg that ended well has taught: once, and best when the decode leg has left."""
        untold, self._untold = self._untold, None
        if untold is None:
            return
        plan, prefilled, use = untold
        if use is not None:
            self.custody.tell(*use)
        learn_prefill(self.context, self.situation, plan, prefilled)
        if prefilled.params is None and plan.prefill is not None:
            self.context.facts.publish(HandleFact(Outcome.MISSING_PREFILL_PARAMS, plan.prefill.key, 0))

    def _as_known(self, nodes: Sequence[Node]) -> tuple[Node, ...]:
        """The same nodes with what is known of them by now."""
        snapshot = self.context.fleet.snapshot
        return tuple(snapshot.get(node.key) or node for node in nodes)

    def exclude(self, node_key: str) -> None:
        """This turn does not go to that node again."""
        self.situation = replace(self.situation, exclude={*self.situation.exclude, node_key})

    def move_from(self, decode: str, prefill: str) -> bool:
        """Leave the pair whose decode leg failed; whether there is another one to go to.

        D may have failed on what it was to read from P: that one is left as well, if there are others.
        """
        self.exclude(decode)
        others = {node.key for node in self.situation.prefills} - {prefill, *self.situation.exclude}
        if prefill and others:
            self.exclude(prefill)
        return choose(self.situation) is not None

    def _has_another(self, key: str) -> bool:
        """Leave a P; whether the turn can go on without it."""
        self.exclude(key)
        return choose(self.situation) is not None

    def leave_stay(self) -> None:
        """The rest of the turn does not stay on D."""
        self.situation = replace(self.situation, stay_max_tokens=0)

    def go_cold(self) -> None:
        """The rest of the turn uses no handle."""
        self.situation = replace(self.situation, cold_reason=self.situation.cold_reason or Reason.RETRY)

    def _on_probation(self, plan: Plan, reuse: Reuse) -> bool:
        """Whether P's reading of such a prompt has never been compared with its rendering.

        Until it has, a handle is used under a salt that nothing else has: should the two differ, what P files
        in its prefix cache is found by nobody, also if the client leaves before anything can be compared.
        """
        verified_here = plan.verify is Verify.ROUTER and reuse.tokens > 0
        return verified_here and not self.context.doubts.agreed(self._kind_of_prompt(plan))

    def _kind_of_prompt(self, plan: Plan) -> Hashable:
        node, request = plan.prefill, self.record.request
        where = (node.origin, self.context.fleet.process(node.key)) if node is not None else None
        return (where, request.path, request.model, hash(self.situation.shape))

    def _mistrusts(self) -> bool:
        """Whether the model's prompts are read otherwise than rendered, be it past the tokens in use."""
        return self.context.doubts.mistrusts(self.record.request.model, self.context.now())

    def _taint_salt(self, plan: Plan) -> str | None:
        """The salt of both legs where the prefix cache of either node is not to be trusted."""
        nodes = (plan.prefill, plan.decode)
        doubts, fleet = self.context.doubts, self.context.fleet
        salts = (doubts.salt(node.origin, fleet.process(node.key)) for node in nodes if node)
        return next((salt for salt in salts if salt is not None), None)

    def _taint(self, node: Node) -> None:
        """What P filed in its prefix cache may be wrong: later requests keep away from it, this one too."""
        self.context.doubts.taint(node.origin, self.context.fleet.process(node.key))

    def _plan(self, last: Exception | None) -> Plan:
        found = self.situation.found
        if found is not None and found.handle is not None and self.custody.handle is None:
            self.go_cold()
        plan = choose(self.situation)
        if plan is not None:
            if last is not None:
                plan = plan.unestimated()
            self.record.planned(plan)
            return plan
        if last is not None:
            raise errors.UpstreamBroken(f"no other node to go to: {last}") from last
        raise errors.NoCapacity("no ready pair of prefill and decode nodes for this request")

    async def _verified(self, plan: Plan) -> tuple[Plan, Reuse]:
        """The plan and what its prefill leg carries; a handle that cannot be verified turns the plan cold."""
        if plan.handle is not None:
            self.record.phase = Phase.VERIFY
            started_s = self.context.now()
            reuse = await prepare(self.context, self.record, self.situation, plan)
            verify_s = self.record.verify_s = self.context.now() - started_s
            if isinstance(reuse, Reuse):
                learn_verify(self.context, plan, verify_s)
                return plan, reuse
            outcome = Outcome.DIVERGED if reuse == Uncut.DIVERGED else Outcome.UNVERIFIABLE
            self.custody.tell(outcome, plan.handle.tokens, reuse)
            plan = plan.cold(reuse)
            self.record.planned(plan)
        return plan, self._without_handle(plan)

    def _without_handle(self, plan: Plan) -> Reuse:
        """What a cold leg carries: a handle that nobody will want any more rides along to be freed."""
        handle = self.custody.handle
        if plan.prefill is None:
            return Reuse()
        if handle is None:
            return self._along(plan.prefill)
        if plan.reason == Reason.ENGINE_RESTARTED:
            self.custody.dropped(plan.reason)
        elif plan.reason in _NOT_NOW and self.custody.superseded:
            self.custody.superfluous(plan.reason)
        elif self.custody.superseded and plan.reason in _RELEASABLE:
            return release_along(handle)
        return Reuse()

    def _along(self, prefill: Node) -> Reuse:
        """Take a handle along that another conversation has no use for, where this turn never had its own."""
        found = self.situation.found
        if self.situation.cold_reason or (found is not None and found.handle is not None):
            return Reuse()
        pool, cooling = self.context.fleet.snapshot, self.situation.cooling
        due = self.context.releases.along(prefill, pool, cooling)
        return take_along(due) if due is not None else Reuse()

    def _after_failure(self, plan: Plan, reuse: Reuse, error: PrefillFailed, attempt: int) -> None:
        """Go on once more without the handle, or raise what the client is told."""
        key = self.record.prefill
        if reuse.carries_handle:
            overdue = isinstance(error.cause, TimedOut)
            self._failed(error, "cold_retry", with_handle=True)
            self.custody.tell(Outcome.FAILED, reuse.tokens, "overdue" if overdue else "failed")
            if plan.handle is not None and not isinstance(error.cause, Stale):
                self.context.doubts.cool(key, plan.handle.decode, self.context.now())
            self.go_cold()
            return
        if isinstance(error.cause, Stale) and attempt == 1:
            self._failed(error, "retry", with_handle=False)
            return
        if attempt < MAX_NODES and self._has_another(key):
            self._failed(error, "other_node", with_handle=False)
            return
        self._failed(error, "fail", with_handle=False)
        if error.cause is not None:
            raise told("prefill", key, error.cause) from error
        raise answered("prefill", key, error.answer, str(error)) from error

    def _ended(self, plan: Plan, reuse: Reuse, prefilled: Prefilled) -> Plan:
        record = self.record
        record.prefill_ended()
        record.reused_tokens = prefilled.reused_tokens
        record.prompt_tokens = prefilled.prompt_tokens
        use = use_of(plan, reuse, prefilled)
        self._untold = _Untold(plan, prefilled, use)
        if use is not None and use.outcome is Outcome.DIVERGED:
            plan = plan.cold(use.outcome)
            record.planned(plan)
        return plan

    def _failed(self, error: Exception, action: str, *, with_handle: bool) -> None:
        """Tell of a leg to the prefill node of the plan in force."""
        node, turn_id, fault = self.record.prefill, self.record.request.turn_id, fault_of(error)
        self.record.event("leg_failed", role="prefill", node=node, action=action, fault=fault)
        self.context.facts.publish(
            LegFailed(turn_id, "prefill", node, str(error), with_handle, action, fault)
        )
