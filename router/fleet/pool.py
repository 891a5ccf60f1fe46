"""The fleet: the one holder that moves the pool on.

A decision takes a snapshot (``router.fleet.snapshot``) and never sees a half-changed fleet. Everything that
changes a node goes through ``Fleet``, on the event loop's thread; what each event makes of a node's state is
in ``router.fleet.standing``, and when its breaker opens in ``router.fleet.breaker``.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType, TracebackType
from typing import Any, Final, Protocol

from router.engines.upstream import Exhausted, Upstream, UpstreamError
from router.fleet.breaker import Breaker, Rules, Verdict, due, judged, tried, untried
from router.fleet.drains import Drains, DrainWish
from router.fleet.known import Known, ejection_of
from router.fleet.leg import BUSY_S, Leg
from router.fleet.node import (
    Circuit,
    Engine,
    Node,
    Role,
    State,
    another_process,
    node_of,
    process_of,
)
from router.fleet.probe import Fault, Probed, Prober, forget, restarted, updated
from router.fleet.snapshot import Pool
from router.fleet.standing import Event, Probes, Standing, Wish, after, event_of, state_of
from router.telemetry.facts import Facts, NodeChanged, TaskFailed

__all__ = ["Fleet", "Pool", "Probe", "node_of"]

FAILURES_TO_EJECT: Final = 2
"""Failed probes in a row after which a node gets no new turns; one good probe brings it back."""


class Probe(Protocol):
    async def __call__(self, upstream: Upstream, node: Node) -> Probed:
        """Probe one node; failures are values, but for ``Exhausted``, which is none of the node's."""


class _OpenLeg(Leg):
    """A leg that its fleet counts for as long as it is open: what ``Fleet.leg`` gives."""

    __slots__ = ("fleet",)
    fleet: "Fleet"

    def __enter__(self) -> Leg:
        self.fleet._opened(self._key, self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.fleet._closed(self._key, self, error)


class Fleet:
    """Holds the current snapshot, counts open legs, hears what they came to, and keeps probing.

    One event loop only. ``now`` is the ledger's clock. ``linger_s`` bounds how long a node that leaves is
    kept for what it holds.
    """

    def __init__(
        self,
        nodes: Iterable[Node],
        *,
        probe: Probe,
        facts: Facts,
        rules: Rules | None = None,
        linger_s: float = 120.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pool = Pool()
        self._known: dict[str, Known] = {}
        self._probe, self._facts, self._now = probe, facts, now
        self._rules, self._linger_s = rules or Rules(), linger_s
        self._drains = Drains()
        self._legs: dict[str, set[Leg]] = {}
        self._uncounted: dict[str, float | None] = {}
        """Nodes whose open legs the pool does not tell yet, and since when each is idle: most changes are
        never looked at, and each would be a new pool."""
        self._probing: set[str] = set()
        self._due_s: float | None = None
        """When time alone changes something next: a breaker, a busy node, a node that leaves."""
        self._added, self._wake = False, asyncio.Event()
        """Whether a node is to be probed out of turn, and what ends the wait for the next one."""
        self.has_limits = False
        """Whether a node has, or once had, a limit of its own on open legs."""
        for node in nodes:
            self.has_limits = self.has_limits or node.limit is not None
            self._known[node.key] = Known()
            self._pool = self._pool.with_node(replace(node, since_s=now()))

    @classmethod
    def of(
        cls,
        prefill: Iterable[str],
        decode: Iterable[str],
        *,
        facts: Facts,
        probe: Probe | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> "Fleet":
        """A fleet of these origins. Raises ValueError on one that is none."""
        nodes = [node_of(origin, Role.PREFILL) for origin in prefill]
        nodes += [node_of(origin, Role.DECODE) for origin in decode]
        return cls(nodes, probe=probe if probe is not None else Prober(), facts=facts, now=now)

    @property
    def snapshot(self) -> Pool:
        """The fleet as it is now; the value never changes afterwards."""
        if self._due_s is not None and self._now() >= self._due_s:
            self._pass_time()
        if self._uncounted:
            self._count_legs()
        return self._pool

    def breaker(self, key: str) -> Breaker | None:
        """A node's breaker, for people to look at."""
        known = self._known.get(key)
        return None if known is None else known.breaker

    # -- legs --------------------------------------------------------------------------------------------

    def leg(self, key: str, *, with_handle: bool = False, peer: str = "") -> _OpenLeg:
        """Count a leg on a node for as long as it is open, however it ends: for a ``with`` that follows.

        An UpstreamError that passes through is a verdict, as are the calls of the leg itself.
        ``with_handle``: it reads from a decode node, and may fail because of that one. ``peer``: the prefill
        node that a decode leg reads from.
        """
        known = self._known.get(key)
        # A closed breaker is not opened by time alone.
        is_closed = known is None or known.breaker.circuit is Circuit.CLOSED
        on_trial = not is_closed and self._goes_on_trial(key)
        leg = _OpenLeg(self, key, with_handle=with_handle, on_trial=on_trial, peer=peer)
        leg.fleet = self
        return leg

    def _opened(self, key: str, leg: Leg) -> None:
        legs = self._legs.get(key)
        if legs is None:
            legs = self._legs[key] = set()
        legs.add(leg)
        self._uncounted[key] = None

    def _closed(self, key: str, leg: Leg, error: BaseException | None) -> None:
        if error is not None and isinstance(error, UpstreamError):
            leg.broke(error)
        legs = self._legs.get(key)
        if legs is not None:
            legs.discard(leg)
        if not legs:
            self._legs.pop(key, None)
            self._uncounted[key] = self._now()
            known = self._known.get(key)
            if known is not None and known.standing.wish is Wish.LEAVE:
                self._let_go(key)
        else:
            self._uncounted[key] = None
        leg.end()

    def tell(
        self, key: str, verdict: Verdict, why: str = "", *, peer: str = "", on_trial: bool = False
    ) -> None:
        """Take a leg's verdict on a node; ``leg`` does so for whoever uses it."""
        known = self._known.get(key)
        if known is not None:
            breaker, now_s = known.breaker, self._now()
            moved = judged(breaker, verdict, now_s, self._rules, why=why, peer=peer, on_trial=on_trial)
            if moved.circuit is breaker.circuit:
                known.breaker = moved  # after nearly every leg
            else:
                self._turn(key, moved)

    def busy(self, key: str, for_s: float = BUSY_S) -> None:
        """New turns keep away from a node for so long, while another can have them."""
        node = self._pool.get(key)
        if node is not None:
            until_s = self._now() + for_s
            self._pool = self._pool.with_node(replace(node, busy_until_s=until_s))
            self._wait_for(until_s)

    def untried(self, key: str) -> None:
        """A leg on trial ended and told nothing: the next one is on trial."""
        known = self._known.get(key)
        if known is not None:
            self._turn(key, untried(known.breaker))

    def _goes_on_trial(self, key: str) -> bool:
        known = self._known[key]
        if self.snapshot.get(key) is None or known.breaker.circuit is not Circuit.HALF_OPEN:
            return False
        self._turn(key, tried(known.breaker, self._now(), self._rules))
        return True

    def _turn(self, key: str, breaker: Breaker) -> None:
        """Put a node's breaker where it is now."""
        known = self._known[key]
        before, known.breaker = known.breaker, breaker
        if breaker.circuit is before.circuit:
            return
        if breaker.due_s is not None:
            self._wait_for(breaker.due_s)
        self._move(key, event_of(breaker.circuit), breaker.why)

    # -- what is known of engines ------------------------------------------------------------------------

    def process(self, key: str) -> str | None:
        """The engine process that is known to be behind a node *now*.

        A plan's own node may be older than what its turn has learned: the leg that went wrong may have been
        the first that a new process answered.
        """
        node = self._pool.by_key.get(key)
        return process_of(node.engine.engine_id) if node is not None else None

    def engine(self, key: str) -> Engine | None:
        """What is known *now* of the engine behind a node."""
        node = self._pool.by_key.get(key)
        return node.engine if node is not None else None

    def learn(self, key: str, **facts: Any) -> None:
        """Take over what an answer told of the engine behind a node; see ``Engine`` for the names.

        None tells nothing. A new ``engine_id`` is a new process: what an earlier one taught is forgotten
        first. Raises TypeError for a name that ``Engine`` does not have.
        """
        node = self._pool.by_key.get(key)
        if node is None:
            return
        engine = node.engine
        for name, value in facts.items():
            if value is not None and getattr(engine, name, None) != value:
                break
        else:
            return  # of nearly every answer
        told = {name: value for name, value in facts.items() if value is not None}
        new_process = another_process(engine.engine_id, told.get("engine_id"))
        if new_process:
            engine = forget(engine)
        learned = replace(engine, **told)
        self._pool = self._pool.with_node(replace(node, engine=learned))
        if new_process:
            self._renewed(key)
            state = self._pool.by_key[key].state  # a breaker that had ejected it is closed by now
            self._facts.publish(NodeChanged(key, node.role, state, "another engine id"))

    def _renewed(self, key: str) -> None:
        """Another process is behind a node: nothing that an earlier one held or did counts any more."""
        node, known = self._pool.by_key[key], self._known[key]
        self._pool = self._pool.with_node(replace(node, renewed_at_s=self._now(), busy_until_s=None))
        self._turn(key, Breaker(trips=known.breaker.trips))

    # -- who belongs to it -------------------------------------------------------------------------------

    def add(self, node: Node) -> None:
        """Take a node in, and probe it soon; one that is there keeps what is known of it, and stays."""
        known, present = self._known.get(node.key), self._pool.get(node.key)
        drained = self._drains.why(node.key)
        self.has_limits = self.has_limits or node.limit is not None
        if known is None or present is None:
            standing = Standing() if drained is None else after(Standing(), Event.DRAINED, drained)
            self._known[node.key], state = Known(standing), state_of(standing)[0]
            legs = len(self._legs.get(node.key, ()))
            fresh = replace(node, state=state, reason=drained or "", in_flight=legs, since_s=self._now())
            self._pool = self._pool.with_node(fresh)
            self._facts.publish(NodeChanged(node.key, node.role, state, "added"))
            self._added = True
            self._wake.set()
            return
        known.leave_by_s = None
        self._pool = self._pool.with_node(replace(present, weight=node.weight, limit=node.limit))
        if drained is None:
            self._move(node.key, Event.ADDED)
        else:
            known.standing = after(known.standing, Event.ADDED)
            self._move(node.key, Event.DRAINED, drained)

    def drain(self, key: str, why: str) -> None:
        """No new turns go to a node, until it is undrained; what it holds may still be read."""
        self._drains.drain(key, why, self._now())
        self._move(key, Event.DRAINED, why)

    def drains(self) -> Mapping[str, DrainWish]:
        """What operators want of nodes, for other routers of the same pool."""
        return self._drains.told(self._now())

    def hear_drains(self, told: Mapping[str, DrainWish]) -> None:
        """Do what operators have told another router since."""
        for key in self._drains.hear(told):
            known, why = self._known.get(key), self._drains.why(key)
            if why is not None:
                self._move(key, Event.DRAINED, why)
            elif known is not None and known.standing.wish is Wish.DRAIN:
                self._move(key, Event.UNDRAINED)

    def undrain(self, key: str) -> None:
        self._drains.lift(key, self._now())
        known = self._known.get(key)
        if known is not None:
            known.leave_by_s = None
            self._move(key, Event.UNDRAINED)

    def leave(self, key: str, why: str) -> None:
        """Drain a node, and let it go when that costs nobody anything.

        A prefill node goes with its last leg. A decode node is kept while it answers probes, for at most
        ``linger_s``: the next turns of its conversations read what it holds, and decode elsewhere. Legs that
        are open when it goes run on.
        """
        known = self._known.get(key)
        if known is not None and known.standing.wish is not Wish.LEAVE:
            known.leave_by_s = self._now() + self._linger_s
            self._wait_for(known.leave_by_s)
            self._move(key, Event.LEFT, why)
            self._let_go(key)

    def remove(self, key: str, why: str = "removed") -> None:
        """Forget a node at once. Legs that are open on it run on."""
        self._move(key, Event.REMOVED, why)

    def _let_go(self, key: str) -> None:
        node, known = self._pool.get(key), self._known.get(key)
        if node is None or known is None or known.standing.wish is not Wish.LEAVE:
            return
        overdue = known.leave_by_s is not None and self._now() >= known.leave_by_s
        holds = node.role is Role.DECODE and known.standing.probes is Probes.GOOD
        if overdue or not (holds or self._legs.get(key)):
            self.remove(key, known.standing.wish_why)

    # -- probes ------------------------------------------------------------------------------------------

    async def run(self, upstream: Upstream, *, interval_s: float) -> None:
        """Probe every node at once, and then every ``interval_s`` seconds, until cancelled. Never raises.

        A node whose probe still runs is left alone, so that a slow one holds up no other; a new one is probed
        as soon as it is there.
        """
        async with asyncio.TaskGroup() as group:
            next_s = self._now()
            while True:
                self._wake.clear()
                pool = self.snapshot
                if self._now() >= next_s or self._added:
                    self._added, next_s = False, self._now() + interval_s
                    for origin, keys in pool.by_origin():
                        if origin not in self._probing:
                            self._probing.add(origin)
                            group.create_task(self._refresh(upstream, origin, keys), name=f"probe {origin}")
                until_s = next_s if self._due_s is None else min(next_s, self._due_s)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(until_s - self._now(), 0.0)):
                        await self._wake.wait()

    async def refresh(self, upstream: Upstream) -> None:
        """Probe every node once."""
        by_origin = self.snapshot.by_origin()
        await asyncio.gather(*(self._refresh(upstream, origin, keys) for origin, keys in by_origin))

    async def _refresh(self, upstream: Upstream, origin: str, keys: Sequence[str]) -> None:
        """Probe an engine once for all nodes that stand for it: its roles and ranks."""
        try:
            node = next((node for key in keys if (node := self._pool.get(key)) is not None), None)
            if node is not None:
                probed = await self._probe(upstream, node)
                for key in keys:
                    self._take(key, probed)
        except Exhausted as error:
            self._facts.publish(TaskFailed("probe", f"the router can open no more connections: {error}"))
        except Exception as error:
            self._facts.publish(TaskFailed("probe", f"{keys[0]}: {type(error).__name__}: {error}"))
        finally:
            self._probing.discard(origin)

    def _take(self, key: str, probed: Probed) -> None:
        node = self._pool.get(key)
        if node is None:
            return
        if probed.state is State.READY:
            self._take_good(node, probed.seen_at(node.rank))
        else:
            self._take_failed(node, probed)
        self._let_go(key)

    def _take_good(self, node: Node, seen: Engine) -> None:
        known, engine = self._known[node.key], node.engine
        new_process = restarted(engine, seen)
        if known.refused and not new_process:
            # Who did not even listen has most likely ended; what it had shown is to be shown again.
            new_process, engine = True, forget(engine)
        known.failures, known.refused, known.fault = 0, False, None
        why = known.standing.probes_why if known.standing.probes is Probes.GOOD else ""
        # What turns have learned while the probe ran is in the live node, and stays.
        self._pool = self._pool.with_node(replace(node, engine=updated(engine, seen)))
        if new_process:
            started = f"{seen.started_at_s:.0f}" if seen.started_at_s is not None else "an unknown time"
            why = f"another process, started at {started}"
            self._renewed(node.key)
        self._move(node.key, Event.PROBE_GOOD, why)

    def _take_failed(self, node: Node, probed: Probed) -> None:
        known = self._known[node.key]
        known.failures, known.fault = known.failures + 1, probed.fault
        if probed.fault is Fault.REFUSED and known.standing.probes is not Probes.UNKNOWN:
            known.refused = True
        self._pool = self._pool.with_node(replace(node, engine=updated(node.engine, Engine())))
        if known.standing.probes is not Probes.GOOD or known.failures >= FAILURES_TO_EJECT:
            self._move(node.key, Event.PROBE_BAD, probed.reason)
            for leg in tuple(self._legs.get(node.key, ())):
                leg.give_up(probed.reason)

    # -- moving on ---------------------------------------------------------------------------------------

    def _count_legs(self) -> None:
        """Take what has begun and ended since into the pool."""
        counted = dict(self._pool.by_key)
        for key, idle_since_s in self._uncounted.items():
            node = counted.get(key)
            if node is not None:
                counted[key] = node.with_legs(len(self._legs.get(key, ())), idle_since_s)
        self._uncounted.clear()
        self._pool = Pool(MappingProxyType(counted))

    def _move(self, key: str, event: Event, why: str = "") -> None:
        """Take an event into a node's standing, and tell where its state or the reason for it changed."""
        known, node = self._known.get(key), self._pool.get(key)
        if known is None or node is None:
            return
        known.standing = after(known.standing, event, why)
        state, reason = state_of(known.standing)
        circuit, reachable = known.breaker.circuit, known.standing.probes is Probes.GOOD
        moved = replace(node, state=state, reason=reason, circuit=circuit, reachable=reachable)
        if moved == node:
            return
        if state is State.GONE:
            self._pool = self._pool.without(key)
            del self._known[key]
        else:
            since_s = node.since_s if state is node.state else self._now()
            self._pool = self._pool.with_node(replace(moved, since_s=since_s))
        if (state, reason) != (node.state, node.reason):
            is_new = node.state is not State.EJECTED or event is Event.OPENED
            ejection = ejection_of(known) if state is State.EJECTED and is_new else None
            self._facts.publish(NodeChanged(key, node.role, state, reason, ejection or ""))

    def _wait_for(self, at_s: float) -> None:
        if self._due_s is None or at_s < self._due_s:
            self._due_s = at_s
            self._wake.set()

    def _pass_time(self) -> None:
        """Do what was due by now, and note what is due next."""
        now_s, self._due_s = self._now(), None
        for key in tuple(self._known):
            # Whoever is told of a change may look at the fleet: what is due moves under our feet.
            known, node = self._known.get(key), self._pool.get(key)
            if known is None or node is None:
                continue
            if node.busy_until_s is not None:
                if now_s >= node.busy_until_s:
                    self._pool = self._pool.with_node(replace(node, busy_until_s=None))
                else:
                    self._wait_for(node.busy_until_s)
            self._turn(key, due(known.breaker, now_s))
            if known.breaker.due_s is not None:
                self._wait_for(known.breaker.due_s)
            if known.leave_by_s is not None and known.standing.wish is Wish.LEAVE:
                self._wait_for(known.leave_by_s)
                self._let_go(key)
