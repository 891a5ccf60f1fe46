"""The ledger of several processes, in Redis or Valkey: a server, a cluster, or what sentinels name.

Each method is one script that the server runs in one step (``lua/``). All keys of a conversation lie in one
of ``SLOT_TAGS`` slots, chosen by its first *user* message: conversations spread over a cluster, also where
all have the same system prompt. ``docs/redis.md`` has the keys, and what is in them.

A history is looked for where its own first user message says, one round trip. Only where nothing is known
there, as in a conversation's first turn, its shared beginnings are asked for, the longest first: they lead to
the trace of the newest conversation that began so.

Entries expire by themselves: times to live are relative, so that a server whose clock is wrong still drops a
handle in time, and each router compares the deadline with the clock that it was made with (``SharedClock``).
"""

import math
import os
import struct
from typing import Any, Final

from router.ledger.calls import Script
from router.ledger.codec import (
    NotAValue,
    decode_shared,
    decode_trace,
    encode_handle,
    encode_shared,
    encode_trace,
)
from router.ledger.redis_board import RedisBoard
from router.ledger.redis_pins import FINISH_CODES, RedisPins
from router.ledger.redis_slots import SLOT_TAGS, branch_name, branch_place, read_handle, tag_of
from router.ledger.store import (
    Absence,
    Finish,
    Found,
    Handle,
    Leaving,
    LedgerStats,
    LedgerUnavailable,
    Put,
    Query,
    Relation,
)

MAX_SHARED_DEPTHS: Final = 8
"""Boundaries before the own opening that are looked for and recorded; more than any real prompt has."""
MAX_HANDLE_BYTES: Final = 262_144
"""Larger ones (more than some 60,000 blocks) are not kept: their turn comes back cold."""
RECOUNTED: Final = 8
"""Slots that one sweep looks at: all of them within eight sweeps."""
MAX_TTL_S: Final = 604_800.0

_RELATIONS: Final = (Relation.EXTENSION, Relation.REGENERATED, Relation.FORK)
_ABSENCES: Final = (Absence.NO_HANDLE, Absence.EXPIRED, Absence.SMALL_GAIN, Absence.RELEASED)
_FIND, _PUT, _GIVE_BACK = Script.named("find"), Script.named("put"), Script.named("give_back")


class RedisLedger(RedisPins, RedisBoard):
    """See ``router.ledger.store``: its rules are this class's contract.

    ``max_branches`` bounds the whole store; each slot tag has its share, and drops what was not used for
    longest. Bytes are the server's to bound (``maxmemory``). ``turn_s`` is how long a turn waits for an
    answer. ``now`` gives seconds and has to be alike in all processes; ``agree`` is told what the server's
    clock says (seconds since the epoch, and how long the answer took). Raises ValueError for a limit that is
    not positive, or a prefix that would break keys apart.
    """

    _probed = 0

    async def find(self, query: Query) -> Found | None:
        own_depth = min(query.own_depth, len(query.keys))
        for depth in range(own_depth, max(own_depth - MAX_SHARED_DEPTHS, 1) - 1, -1):
            found = await self._find_from(query, depth)
            if found is not None:
                return found
        return None

    async def give_back(self, found: Found) -> bool:
        handle = found.handle
        if handle is None:
            return False
        place = branch_place(found.branch)
        if place is None:
            return False
        slot, branch = self._slot(place[0]), place[1]
        now_s = self._now()
        back, expired = await self._calls.run(
            _GIVE_BACK,
            (slot + b"b" + branch,),
            (
                slot,
                repr(now_s),
                self._trace_ttl_ms,
                branch,
                found.version,
                *_kept(handle, now_s, found.trace.finish),
            ),
        )
        self._expired_handles += expired
        return bool(back)

    async def put(self, turn: Put) -> str:
        now_s, serial = self._now(), os.urandom(8)
        if not turn.keys:
            if turn.handle is not None:
                self.on_left(turn.handle, Leaving.UNKEPT)
            return f"00-{serial.hex()}"  # no boundary, so nothing could ever lead to it
        first = min(turn.own_depth, len(turn.keys))
        root = turn.keys[first - 1]
        tag = tag_of(root)
        slot = self._slot(tag)
        found = turn.found
        known = _serial(found.branch, tag) if found is not None else b""
        handle, absence = turn.handle, Absence.NO_HANDLE
        if handle is not None and not handle.deadline_s > now_s:
            handle, absence = None, Absence.EXPIRED
            self._expired_handles += 1
        kept = _NOTHING if handle is None else _kept(handle, now_s, turn.trace.finish)
        unkept = handle if len(kept[0]) > MAX_HANDLE_BYTES else None
        if unkept is not None:
            kept = _NOTHING
        trace = encode_trace(turn.trace)
        reply = await self._calls.run(
            _PUT,
            (*self._generations(slot, root, now_s), slot + b"B"),
            (
                slot,
                repr(now_s),
                self._trace_ttl_ms,
                first,
                b"".join(turn.keys[first - 1 :]),
                known,
                found.version if found is not None else 0,
                found.depth if found is not None else 0,
                int(found is not None and found.relation is Relation.EXTENSION),
                serial,
                trace,
                turn.trace.prompt_bytes,
                turn.conversation,
                turn.owner,
                _ABSENCES.index(absence),
                self._max_siblings,
                self._branches_per_tag,
                *kept,
            ),
            late=self._have_left,
        )
        await self._have_left(reply)
        if unkept is not None:  # told by whoever fails, too, and it is to be told once
            self.on_left(unkept, Leaving.UNKEPT)
        branch = reply[0]
        name = branch_name(slot, branch)
        if branch == serial and first > 1:
            await self._share(turn, first, name)
        if turn.owner:
            await self._own(turn, name)
        return name

    async def _have_left(self, reply: Any) -> None:
        """What a put has taken out of the store."""
        _, expired, evicted_branches, superseded, *evicted = reply
        self._expired_handles += expired
        self._evicted_branches += evicted_branches
        self._evicted_handles += len(evicted)
        for raw, why in ((superseded, Leaving.SUPERSEDED), *((raw, Leaving.EVICTED) for raw in evicted)):
            handle = read_handle(raw)
            if handle is not None:
                self.on_left(handle, why)

    async def sweep(self) -> None:
        """Ask one server, and those that failed; then see to it that the sums of some slots are right.

        What has expired is the server's to drop.
        """
        self._probed = (self._probed + RECOUNTED) % SLOT_TAGS
        store_s, waited_s = await self._calls.probe((self._slot(self._probed) + b"H",))
        if self._agree is not None:
            self._agree(store_s, waited_s)
        for tag in range(self._probed, self._probed + RECOUNTED):
            await self._recount(self._slot(tag % SLOT_TAGS))

    async def stats(self) -> LedgerStats:
        """Sizes of the whole store; what was dropped is counted by the process that saw it."""
        now_s = self._now()
        commands: list[tuple[Any, ...]] = []
        for tag in range(SLOT_TAGS):
            slot = self._slot(tag)
            commands.append(("ZCOUNT", slot + b"B", f"({now_s - self._trace_ttl_s!r}", "+inf"))
            commands.append(("ZCOUNT", slot + b"H", f"({now_s!r}", "+inf"))
        counts = await self._calls.pipeline(self._slot(0) + b"H", commands)
        return LedgerStats(
            branches=sum(counts[0::2]),
            boundaries=0,
            handles=sum(counts[1::2]),
            size_bytes=0,
            expired_handles=self._expired_handles,
            evicted_branches=self._evicted_branches,
            evicted_handles=self._evicted_handles,
            measured=False,
        )

    async def close(self) -> None:
        await self._calls.close()

    async def _find_from(self, query: Query, first: int) -> Found | None:
        """Look for boundaries from depth ``first`` on, at the root that its key names."""
        root, now_s = query.keys[first - 1], self._now()
        slot = self._slot(tag_of(root))
        sizes = query.sizes_bytes[first - 1 :]

        async def give_back(reply: Any) -> None:
            late = self._found(slot, query, first, reply)
            if late is None or late.handle is None:
                return
            try:
                back = await self.give_back(late)
            except LedgerUnavailable:
                self.on_left(late.handle, Leaving.UNSURE)
                return
            if not back:
                self.on_left(late.handle, Leaving.SUPERSEDED)

        reply = await self._calls.run(
            _FIND,
            (*self._generations(slot, root, now_s), slot + b"s" + root, slot + b"B"),
            (
                slot,
                repr(now_s),
                self._trace_ttl_ms,
                first,
                query.own_depth,
                repr(query.take_share),
                query.conversation,
                b"".join(query.keys[first - 1 :]),
                struct.pack(f">{len(sizes)}d", *sizes),
            ),
            late=give_back,
        )
        return self._found(slot, query, first, reply)

    def _found(self, slot: bytes, query: Query, first: int, reply: Any) -> Found | None:
        expired, shared, *found = reply
        self._expired_handles += expired
        try:
            if not found:
                return _shared(shared, first) if shared and first < query.own_depth else None
            branch, version, turns, depth, relation, absent, trace, raw = found
            handle = read_handle(raw)
            self._evicted_handles += raw is not None and handle is None
            absence = _ABSENCES[absent] if absent >= 0 else Absence.NO_HANDLE
            return Found(
                branch=branch_name(slot, branch),
                version=version,
                depth=depth,
                relation=_RELATIONS[relation],
                trace=decode_trace(trace),
                turns=turns,
                handle=handle,
                absence=None if handle is not None else absence,
            )
        except NotAValue:
            return None

    async def _share(self, turn: Put, own_depth: int, branch: str) -> None:
        """Leave the trace where other conversations with the same beginning will look."""
        value = encode_shared(branch, 1, turn.trace)
        commands: list[tuple[Any, ...]] = []
        for depth in range(max(own_depth - MAX_SHARED_DEPTHS, 1), own_depth):
            key = turn.keys[depth - 1]
            commands.append(("SET", self._slot(tag_of(key)) + b"s" + key, value, "PX", self._trace_ttl_ms))
        try:
            await self._calls.pipeline(commands[0][1], commands)
        except LedgerUnavailable:
            return  # the turn itself is in the ledger, and the next conversation leaves the same

    def _generations(self, slot: bytes, root: bytes, now_s: float) -> tuple[bytes, bytes]:
        """Keys of a root's index: what is written now, and what was before and may still be read.

        Boundaries cannot expire one by one; an index of old ones ends as a whole, and what is in use is
        carried over.
        """
        generation = math.floor(now_s / self._trace_ttl_s)
        return slot + b"i" + root + b":%d" % generation, slot + b"i" + root + b":%d" % (generation - 1)


def _shared(raw: bytes, depth: int) -> Found:
    branch, turns, trace = decode_shared(raw)
    return Found(
        branch=branch,
        version=0,
        depth=depth,
        relation=Relation.FORK,
        trace=trace,
        turns=turns,
        handle=None,
        absence=Absence.SMALL_GAIN,
    )


_Kept = tuple[bytes, str, int, int, int, str, str]
_NOTHING: Final[_Kept] = (b"", "0", 0, 0, 0, "", "")


def _kept(handle: Handle, now_s: float, finish: Finish) -> _Kept:
    """A handle as the scripts take it: value, deadline, time to live in ms, tokens, those of its prompt,
    decode node, and how its turn ended."""
    # Past every real deadline there is nothing to tell apart, and the server's numbers are finite.
    deadline_s = min(handle.deadline_s, now_s + MAX_TTL_S)
    ttl_ms = math.ceil((deadline_s - now_s) * 1000) if deadline_s > now_s else 1
    value = encode_handle(handle)
    tokens = (handle.tokens, handle.prompt_tokens)
    return value, repr(deadline_s), ttl_ms, *tokens, handle.decode, FINISH_CODES[finish]


def _serial(branch: str, tag: int) -> bytes:
    """A branch's own part of its id; empty where it lies in another slot."""
    place = branch_place(branch)
    return place[1] if place is not None and place[0] == tag else b""
