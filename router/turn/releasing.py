"""Gives pinned blocks back early: keeps each decode node's pins under the budget, and sends the legs for it.

The leg is the smallest that there is: one token, and a handle with nothing left to read. P reads nothing,
tells D, and D frees the blocks. It has the lowest priority: few at a time, at a bounded rate, to a healthy
prefill node without a queue. A handle waits ``RIDE_WAIT_S`` first, so that a turn's leg may take it along.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from router.engines import nixl
from router.engines.upstream import Call, UpstreamError
from router.fleet.node import Node, Role, State
from router.ledger.gaps import Gaps
from router.ledger.pins import URGENT_FROM, capacity_tokens, excess_tokens, least_likely
from router.ledger.store import Finish, LedgerUnavailable, PinLedger, Pinned
from router.telemetry.facts import HandleFact, LegFailed, LegFault, Outcome, UsageAfterRelease
from router.turn.context import Context
from router.turn.fault import fault_of
from router.turn.legs import engine_headers
from router.turn.plan import restarted
from router.turn.release import Cause, Due, pairs

RIDE_WAIT_S: Final = 0.25
TICK_S: Final = 0.25
"""How often it is looked at what is pinned, where nothing happens before."""
LEG_S: Final = 10.0
"""Limit on a leg of its own. It computes one token, so a P that takes longer is in trouble."""
MAX_TAKEN: Final = 64
"""Handles that are taken of one node in one look; more wait for the next."""
MAX_LEGS: Final = 8
QUIET_LEGS: Final = 4
"""Legs of ours that a prefill node has at most to count as one without a queue."""
PRESSING_S: Final = 5.0
"""After that time, or above the budget, a queue at every prefill node is no reason to wait: the leg costs one
token, and a full decode node stops every turn."""
REST_S: Final = 30.0
"""How long a pair that failed at it releases nothing."""
CONFIRM_S: Final = 7.0
"""After that time a node's usage metric is compared with what it was: probes come every 5 s, and D takes less
than 2 s (measured on vLLM 0.32.0, ``docs/engine-behaviour.md``)."""


@dataclass(frozen=True, slots=True)
class NodePins:
    """What handles pin on one decode node."""

    node: str
    tokens: int
    handles: int
    """Of those that still may be used."""
    share: float | None
    """Of the node's KV; None where its metrics do not tell how much that is."""


@dataclass(slots=True)
class _Watch:
    """Releases on one node since its usage was looked at."""

    began_s: float
    usage: float
    tokens: int = 0


@dataclass(slots=True)
class Releasing:
    """The task. ``pins`` is None for a ledger that cannot tell what waits: then no budget is kept.

    ``budget`` is the share of a decode node's KV that handles may pin; ``per_s`` how many legs of its own it
    sends in a second, 0 for none, and then nothing is released for the budget.
    """

    context: Context
    pins: PinLedger | None
    budget: float = 0.5
    per_s: float = 20.0
    look_every_s: float = 0.0
    """Least time between two looks at what is pinned: for a ledger in memory they cost nothing."""
    pinned: Mapping[str, Pinned] = field(default_factory=dict)
    """As the ledger told last."""
    _next_look_s: float = float("-inf")
    _legs: int = 0
    _allowance: float = 1.0
    _paced_s: float = float("-inf")
    _resting: dict[tuple[str, str], float] = field(default_factory=dict)
    _watches: dict[str, _Watch] = field(default_factory=dict)

    @property
    def gaps(self) -> Gaps:
        return self.context.gaps

    def state(self) -> tuple[NodePins, ...]:
        """What handles pin on each decode node, as far as is known."""
        return tuple(
            self._state_of(node) for node in self.context.fleet.snapshot.nodes if node.role is Role.DECODE
        )

    async def run(self) -> None:
        """Until cancelled; legs that are open then are closed."""
        changed, self._legs = self.context.releases.changed, 0
        async with asyncio.TaskGroup() as group:
            while True:
                changed.clear()
                for due, prefill in await self.step():
                    group.create_task(self.send(due, prefill), name=f"release on {due.handle.decode}")
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(TICK_S):
                        await changed.wait()
                # Not once for every turn that ends: what one look can do is bounded by the rate anyhow.
                await asyncio.sleep(TICK_S / 10)

    async def step(self) -> list[tuple[Due, Node]]:
        """Take what is over the budget, and what is to be sent now, each with the P that it goes to.

        What is returned counts as on its way: ``send`` has to be called for it.
        """
        now_s, releases = self.context.now(), self.context.releases
        releases.pass_time()
        self._pace(now_s)
        if self.pins is not None:
            try:
                await self._keep_budget(self.pins, now_s)
            except LedgerUnavailable:
                self.pinned = {}  # its own facts tell; what it holds is not ours to judge
        self._confirm(now_s)
        return self._sendable(now_s)

    async def send(self, due: Due, prefill: Node) -> None:
        """Release one handle with a leg of its own. Raises nothing but CancelledError."""
        context, handle = self.context, due.handle
        leg_id = f"brg-{secrets.token_hex(12)}-f1"
        headers = engine_headers((), leg_id=leg_id, api_key=context.settings.api_key(), rank=prefill.rank)
        failure, fault = "cancelled", LegFault.BROKEN
        try:
            body = release_body(prefill, handle.params)
            call = Call("POST", "/v1/completions", headers, body, context.settings.limits(LEG_S))
            with context.fleet.leg(prefill.key, with_handle=True) as leg:
                answer = await context.upstream.send(prefill.origin, call)
                leg.answered(answer.status, answer.headers)
            if answer.status == 200:
                failure = ""
            else:
                failure, fault = f"status {answer.status}", LegFault.of_status(answer.status)
        except (UpstreamError, nixl.NotParams) as error:
            failure, fault = str(error), fault_of(error)
        finally:
            self._legs -= 1
            if failure:
                context.releases.failed(due)
        if failure:
            self._resting[prefill.key, handle.decode] = context.now() + REST_S
            context.facts.publish(
                LegFailed(
                    leg_id, "release", prefill.key, failure,
                    with_handle=True, action="given_up", fault=fault,
                )
            )  # fmt: skip
            context.facts.publish(HandleFact(Outcome.LOST, handle.decode, handle.tokens, "release_failed"))
            return
        context.releases.prove(prefill.key, context.fleet.process(prefill.key))
        context.releases.released(due)
        self._watch(handle.decode, handle.tokens)
        context.facts.publish(HandleFact(Outcome.RELEASED, handle.decode, handle.tokens, due.cause))

    # -- the budget --------------------------------------------------------------------------------------

    async def _keep_budget(self, pins: PinLedger, now_s: float) -> None:
        if now_s < self._next_look_s:
            return
        self._next_look_s = now_s + self.look_every_s
        self.gaps.pass_time(now_s)
        self.pinned = await pins.pinned()
        for node in self.context.fleet.snapshot.nodes:
            if node.role is not Role.DECODE or not node.reachable:
                continue
            for _ in range(MAX_TAKEN):
                if not (self._is_over(node) and self._has_room() and await self._take_one(pins, node.key)):
                    break
                self.pinned = await pins.pinned()  # anew each time: other routers release as well

    def _is_over(self, node: Node) -> bool:
        """Whether more is pinned on a node than the budget allows, without what is about to go."""
        tokens = self.context.releases.lost_tokens(node.key)
        if node.key in self.pinned:
            tokens += self.pinned[node.key].tokens
        return excess_tokens(tokens, capacity_tokens(node.engine), self.budget) > 0

    def _has_room(self) -> bool:
        """Whether more could be sent soon: until then a turn may still come back for its handle."""
        return self.per_s > 0 and len(self.context.releases) < max(self.per_s, 1.0)

    async def _take_one(self, pins: PinLedger, decode: str) -> bool:
        """Take the least likely handle of a node; whether there was one."""
        candidates = [one for kind in Finish if (one := await pins.oldest(decode, kind)) is not None]
        choice = least_likely(candidates, self.gaps, self.context.now())
        if choice is None:
            return False
        # A turn that is faster makes room as well.
        handle = await pins.take(choice.candidate.branch, choice.candidate.version)
        if handle is not None:
            self.context.releases.add(handle, Cause.BUDGET)
        return True

    def _state_of(self, node: Node) -> NodePins:
        known = self.pinned.get(node.key, Pinned(0, 0))
        tokens = known.tokens + self.context.releases.pinned_tokens(node.key)
        capacity = capacity_tokens(node.engine)
        return NodePins(node.key, tokens, known.handles, tokens / capacity if capacity else None)

    # -- legs of its own ---------------------------------------------------------------------------------

    def _pace(self, now_s: float) -> None:
        burst = max(self.per_s * TICK_S, 1.0)
        since_s = min(max(now_s - self._paced_s, 0.0), 3600.0)
        self._allowance = min(self._allowance + since_s * self.per_s, burst) if self.per_s > 0 else 0.0
        self._paced_s = now_s

    def _sendable(self, now_s: float) -> list[tuple[Due, Node]]:
        releases, pool = self.context.releases, self.context.fleet.snapshot
        self._resting = {pair: until_s for pair, until_s in self._resting.items() if until_s > now_s}
        taken: list[tuple[Due, Node]] = []
        for due in releases.waiting():
            if self._legs >= MAX_LEGS or self._allowance < 1.0:
                break
            holder = pool.get(due.handle.decode)
            if now_s - due.since_s < RIDE_WAIT_S and not self._is_filling(holder, above=URGENT_FROM):
                continue
            is_over = not due.handle.deadline_s > now_s
            if is_over or (holder is not None and restarted(due.handle, holder)):
                releases.take(due)
                releases.released(due)  # its blocks went with its time, or with the process
                continue
            if holder is None or not holder.reachable:
                releases.last(due)
                continue
            pressing = now_s - due.since_s > PRESSING_S or self._is_filling(holder, above=1.0)
            prefill = self._prefill_for(holder, pressing=pressing, now_s=now_s)
            if prefill is None:
                continue
            releases.take(due)
            self._legs += 1
            self._allowance -= 1.0
            taken.append((due, prefill))
        return taken

    def _is_filling(self, holder: Node | None, *, above: float) -> bool:
        """Whether handles pin more than that share of the budget of a decode node."""
        if holder is None:
            return False
        pinned_tokens, capacity = self._state_of(holder).tokens, capacity_tokens(holder.engine)
        return excess_tokens(pinned_tokens, capacity, self.budget, above=above) > 0

    def _prefill_for(self, holder: Node, *, pressing: bool, now_s: float) -> Node | None:
        """The least busy prefill node that may release on ``holder``; None while all have better to do."""
        cooling = self.context.doubts.cooling(now_s).union(self._resting)
        able = [
            node
            for node in self.context.fleet.snapshot.nodes
            if node.role is Role.PREFILL
            and node.state is State.READY
            and node.busy_until_s is None
            and pairs(node, holder)
            and (node.key, holder.key) not in cooling
        ]
        if not pressing:
            able = [node for node in able if node.in_flight < QUIET_LEGS and not node.engine.waiting]
        return min(able, key=lambda node: node.in_flight, default=None)

    # -- whether it helped -------------------------------------------------------------------------------

    def _watch(self, decode: str, tokens: int) -> None:
        """Note a release, to be compared with the node's own usage metric."""
        node = self.context.fleet.snapshot.get(decode)
        if node is None or node.engine.kv_usage is None:
            return
        watch = self._watches.get(decode)
        if watch is None:
            watch = self._watches[decode] = _Watch(self.context.now(), node.engine.kv_usage)
        watch.tokens += tokens

    def _confirm(self, now_s: float) -> None:
        for decode, watch in tuple(self._watches.items()):
            if now_s - watch.began_s < CONFIRM_S:
                continue
            del self._watches[decode]
            node = self.context.fleet.snapshot.get(decode)
            if node is not None and node.engine.kv_usage is not None:
                self.context.facts.publish(
                    UsageAfterRelease(decode, watch.tokens, watch.usage, node.engine.kv_usage)
                )


def release_body(prefill: Node, params: bytes) -> bytes:
    """The smallest request that carries a handle: one prompt token, one token out, nothing to read."""
    body: dict[str, object] = {
        "prompt": [1],
        "max_tokens": 1,
        "stream": False,
        nixl.PARAMS_FIELD: msgspec.Raw(nixl.released(params)),
    }
    if prefill.engine.models:
        body = {"model": prefill.engine.models[0], **body}
    return msgspec.json.encode(body)
