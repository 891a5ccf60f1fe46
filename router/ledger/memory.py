"""The ledger of one process: dictionaries, bounded by entries, bytes and age.

Each boundary leads to a short list of branches, newest first. Each method runs without an await from its
first line to its last, so that on one event loop it is one atomic step; it is not safe across threads.

No method's cost depends on how much is held. Branches are linked in the order of last use; eviction takes the
oldest. Live handles stand in buckets of whole seconds of their deadline, so that taking one out is a
dictionary's ``pop`` and ``sweep`` touches nothing but what has expired. A boundary's list is bounded, so that
no shared system prompt collects every conversation there is.
"""

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from itertools import count
from operator import itemgetter
from typing import Final

from router.ledger.sharded import Sharded
from router.ledger.store import Absence, Found, Handle, LedgerStats, Put, Query, Relation, Trace

DEFAULT_MAX_BRANCHES: Final = 1_000_000
DEFAULT_MAX_BYTES: Final = 2_147_483_648
DEFAULT_TRACE_TTL_S: Final = 3600.0
DEFAULT_MAX_SIBLINGS: Final = 8
SWEEP_HANDLES: Final = 5_000
SWEEP_BRANCHES: Final = 1_000
"""How much one sweep drops at most, some milliseconds of the loop's time; the rest waits for the next."""

# What CPython takes on 64 bits, in bytes; tests/ledger/test_memory.py compares it with tracemalloc.
_BRANCH_BYTES: Final = 680
"""A branch: its object and id, its place in the order of use, its list of boundaries, its trace."""
_BOUNDARY_BYTES: Final = 105
"""A boundary: its key, its slot in the (half full) table, its place in the branch's own list."""
_HANDLE_BYTES: Final = 520
"""A handle: its object, and numbers, its place in the order of deadlines."""
_HELD_BYTES: Final = 300
"""Digests of held tokens, but for their links."""


class _Branch:
    """One line of turns. Mutable: it moves on."""

    __slots__ = (
        "absence",
        "conversation",
        "handle",
        "id",
        "keys",
        "newer",
        "older",
        "size_bytes",
        "tip",
        "trace",
        "turns",
        "used_s",
        "version",
    )

    def __init__(self, branch_id: str, trace: Trace) -> None:
        self.id = branch_id
        self.version = 0
        self.turns = 0
        self.keys: list[bytes] = []
        """The boundaries that lead here, or did until newer siblings took the place."""
        self.tip = b""
        self.trace = trace
        self.handle: Handle | None = None
        self.absence = Absence.NO_HANDLE
        """Why there is no handle, where there is none."""
        self.conversation = ""
        self.used_s = 0.0
        self.older: _Branch | None = None
        self.newer: _Branch | None = None
        self.size_bytes = 0


class MemoryLedger:
    """See ``router.ledger.store``: its rules are this class's contract.

    ``max_bytes`` bounds an estimate that stays within 30 % of what the interpreter allocates. A branch that
    was not used for ``trace_ttl_s`` seconds is gone, with its handle, which counts as evicted if it was still
    good. ``max_siblings`` is how many branches one boundary leads to. ``now`` gives seconds; deadlines of
    handles are on its clock. Raises ValueError for a limit that is not positive.
    """

    def __init__(
        self,
        *,
        max_branches: int = DEFAULT_MAX_BRANCHES,
        max_bytes: int = DEFAULT_MAX_BYTES,
        trace_ttl_s: float = DEFAULT_TRACE_TTL_S,
        max_siblings: int = DEFAULT_MAX_SIBLINGS,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        for name, limit in (
            ("max_branches", max_branches),
            ("max_bytes", max_bytes),
            ("trace_ttl_s", trace_ttl_s),
            ("max_siblings", max_siblings),
        ):
            if not limit > 0:
                raise ValueError(f"{name} has to be more than 0, not {limit}")
        self._max_branches = max_branches
        self._max_bytes = max_bytes
        self._trace_ttl_s = trace_ttl_s
        self._max_siblings = max_siblings
        self._now = now
        self._branches: Sharded[str, _Branch] = Sharded()
        self._oldest: _Branch | None = None
        self._newest: _Branch | None = None
        self._boundaries: Sharded[bytes, _Branch | list[_Branch]] = Sharded()
        """Most boundaries lead to one branch; only those of several pay for a list."""
        self._deadlines: dict[int, dict[str, _Branch]] = {}
        """Live handles by the second their deadline lies in."""
        self._due_s: list[int] = []
        """A heap of the keys of ``_deadlines``, each once."""
        self._ids = count(1)
        self._prefix = os.urandom(4).hex()
        self._size_bytes = 0
        self._handles = 0
        self._expired_handles = 0
        self._evicted_branches = 0
        self._evicted_handles = 0

    async def find(self, query: Query) -> Found | None:
        now_s = self._now()
        for depth in range(len(query.keys), 0, -1):
            at = self._boundaries.get(query.keys[depth - 1])
            if at is None:
                continue
            branches = at if isinstance(at, list) else [at]
            fresh = [branch for branch in branches if not self._too_old(branch, now_s)]
            if fresh:
                return self._found(query, depth, fresh, now_s)
        return None

    async def give_back(self, found: Found) -> bool:
        branch = self._branches.get(found.branch)
        if found.handle is None or branch is None:
            return False
        if branch.version != found.version or branch.handle is not None:
            return False
        now_s = self._now()
        if _expired(found.handle, now_s):
            branch.absence = Absence.EXPIRED
            self._expired_handles += 1
            return False
        self._attach(branch, found.handle)
        self._fit(now_s)
        return branch.handle is not None

    async def put(self, turn: Put) -> str:
        now_s = self._now()
        found = turn.found
        known = self._branches.get(found.branch) if found else None
        if not turn.keys:
            return self._new_id()  # no boundary, so nothing could ever lead to it
        if (
            known is not None
            and found is not None
            and found.relation is Relation.EXTENSION
            and found.version == known.version
        ):
            branch = known
            self._unlink(branch)
            new_keys = turn.keys[found.depth :]
        else:
            branch = _Branch(self._new_id(), turn.trace)
            self._branches.set(branch.id, branch)
            # Where it left it comes first; what lies before is the older branch's, as long as that is there.
            new_keys = turn.keys[found.depth - 1 :] if found and known else turn.keys
        self._index(branch, new_keys)
        self._release(branch)
        branch.tip = turn.keys[-1]
        branch.version += 1
        branch.turns += 1
        branch.trace = turn.trace
        branch.conversation = turn.conversation
        self._link_newest(branch, now_s)
        branch.absence = Absence.NO_HANDLE
        self._resize(branch, _branch_bytes(branch) - branch.size_bytes)
        if turn.handle is not None:
            if _expired(turn.handle, now_s):
                branch.absence = Absence.EXPIRED
                self._expired_handles += 1
            else:
                self._attach(branch, turn.handle)
        self._fit(now_s)
        return branch.id

    async def sweep(self) -> None:
        """Drop what has expired, at most ``SWEEP_HANDLES`` and ``SWEEP_BRANCHES``; linear in that."""
        now_s = self._now()
        for branch in self._due(now_s, SWEEP_HANDLES):
            self._expire(branch)
        for _ in range(SWEEP_BRANCHES):
            if self._oldest is None or not self._too_old(self._oldest, now_s):
                break
            self._drop(self._oldest, now_s)

    async def stats(self) -> LedgerStats:
        return LedgerStats(
            branches=len(self._branches),
            boundaries=len(self._boundaries),
            handles=self._handles,
            size_bytes=self._size_bytes,
            expired_handles=self._expired_handles,
            evicted_branches=self._evicted_branches,
            evicted_handles=self._evicted_handles,
        )

    async def close(self) -> None:
        self._branches, self._boundaries = Sharded(), Sharded()
        self._oldest = self._newest = None
        self._deadlines.clear()
        self._due_s.clear()
        self._size_bytes = self._handles = 0

    def _found(self, query: Query, depth: int, branches: list[_Branch], now_s: float) -> Found:
        """Choose among the branches of one boundary, and take the handle if it is to be had."""
        candidates: list[tuple[tuple[bool, bool, bool], _Branch, Relation, Absence | None]] = []
        for branch in branches:
            at_tip = branch.tip == query.keys[depth - 1]
            if not at_tip:
                relation = Relation.FORK
            else:
                relation = Relation.EXTENSION if depth < len(query.keys) else Relation.REGENERATED
            absence = self._absence(query, depth, branch, relation, now_s)
            same = bool(query.conversation) and branch.conversation == query.conversation
            candidates.append(((absence is None, at_tip, same), branch, relation, absence))
        # Of equals the first, which is the newest.
        _, branch, relation, absence = max(candidates, key=itemgetter(0))
        self._unlink(branch)
        self._link_newest(branch, now_s)
        handle = self._release(branch) if absence is None else None
        return Found(
            branch=branch.id,
            version=branch.version,
            depth=depth,
            relation=relation,
            trace=branch.trace,
            turns=branch.turns,
            handle=handle,
            absence=absence,
        )

    def _absence(
        self, query: Query, depth: int, branch: _Branch, relation: Relation, now_s: float
    ) -> Absence | None:
        """Why this turn may not have the branch's handle; None where it may."""
        if branch.handle is not None and _expired(branch.handle, now_s):
            self._expire(branch)
        handle, size_bytes = branch.handle, branch.trace.prompt_bytes
        if handle is None:
            return branch.absence
        if relation is Relation.EXTENSION:
            return None
        if depth < query.own_depth:
            return Absence.SMALL_GAIN
        gain_tokens = float(handle.prompt_tokens)
        if relation is Relation.FORK:
            # Nobody counted the tokens up to this boundary; sizes tell about how many there are.
            share = query.sizes_bytes[depth - 1] / size_bytes if size_bytes > 0 else 0.0
            gain_tokens *= min(share, 1.0)
        return None if gain_tokens >= query.take_share * handle.tokens else Absence.SMALL_GAIN

    def _too_old(self, branch: _Branch, now_s: float) -> bool:
        return branch.used_s + self._trace_ttl_s <= now_s

    def _link_newest(self, branch: _Branch, now_s: float) -> None:
        branch.used_s = now_s
        branch.older, branch.newer = self._newest, None
        if self._newest is None:
            self._oldest = branch
        else:
            self._newest.newer = branch
        self._newest = branch

    def _unlink(self, branch: _Branch) -> None:
        if branch.older is None:
            self._oldest = branch.newer
        else:
            branch.older.newer = branch.newer
        if branch.newer is None:
            self._newest = branch.older
        else:
            branch.newer.older = branch.older
        branch.older = branch.newer = None

    def _new_id(self) -> str:
        return f"{self._prefix}-{next(self._ids):x}"

    def _index(self, branch: _Branch, keys: Iterable[bytes]) -> None:
        """Make ``branch`` the first choice at each of ``keys``."""
        for key in keys:
            at = self._boundaries.get(key)
            branch.keys.append(key)
            if isinstance(at, list):
                at.insert(0, branch)
                del at[self._max_siblings :]
            elif at is not None and self._max_siblings > 1:
                self._boundaries.set(key, [branch, at])
            else:
                self._boundaries.set(key, branch)

    def _attach(self, branch: _Branch, handle: Handle) -> None:
        branch.handle = handle
        second = _second(handle)
        bucket = self._deadlines.get(second)
        if bucket is None:
            bucket = self._deadlines[second] = {}
            heappush(self._due_s, second)
        bucket[branch.id] = branch
        self._handles += 1
        self._resize(branch, _handle_bytes(handle))

    def _release(self, branch: _Branch) -> Handle | None:
        """Take the branch's handle off it."""
        handle = branch.handle
        if handle is not None:
            branch.handle = None
            branch.absence = Absence.NO_HANDLE
            # An emptied bucket stays until its second has passed: its number is in the heap.
            self._deadlines[_second(handle)].pop(branch.id, None)
            self._handles -= 1
            self._resize(branch, -_handle_bytes(handle))
        return handle

    def _expire(self, branch: _Branch) -> None:
        if self._release(branch) is not None:
            branch.absence = Absence.EXPIRED
            self._expired_handles += 1

    def _due(self, now_s: float, limit: int) -> Iterator[_Branch]:
        """Branches whose handles have expired, at most ``limit``."""
        for _ in range(limit):
            while self._due_s and not self._deadlines[self._due_s[0]] and self._due_s[0] + 1 <= now_s:
                del self._deadlines[heappop(self._due_s)]
            # Within its own second a bucket may hold handles that are still good: not before its end.
            if not self._due_s or self._due_s[0] + 1 > now_s:
                return
            yield next(iter(self._deadlines[self._due_s[0]].values()))

    def _resize(self, branch: _Branch, by_bytes: int) -> None:
        branch.size_bytes += by_bytes
        self._size_bytes += by_bytes

    def _fit(self, now_s: float) -> None:
        """Evict the least recently used until all bounds hold."""
        while self._oldest is not None:
            if len(self._branches) <= self._max_branches and self._size_bytes <= self._max_bytes:
                break
            self._evicted_branches += 1
            self._drop(self._oldest, now_s)

    def _drop(self, branch: _Branch, now_s: float) -> None:
        if branch.handle is not None:
            if _expired(branch.handle, now_s):
                self._expire(branch)
            else:
                self._release(branch)
                self._evicted_handles += 1
        for key in branch.keys:
            at = self._boundaries.get(key)
            if at is branch:
                self._boundaries.remove(key)
            elif isinstance(at, list) and branch in at:
                at.remove(branch)
                if len(at) == 1:
                    self._boundaries.set(key, at[0])
        self._size_bytes -= branch.size_bytes
        self._branches.remove(branch.id)
        self._unlink(branch)


def _expired(handle: Handle, now_s: float) -> bool:
    # Written so that a deadline that is no number counts as past.
    return not handle.deadline_s > now_s


def _second(handle: Handle) -> int:
    return math.floor(min(handle.deadline_s, 2.0**53))


def _branch_bytes(branch: _Branch) -> int:
    text_bytes = len(branch.conversation) + len(branch.trace.prefill) + len(branch.trace.decode)
    return _BRANCH_BYTES + text_bytes + _BOUNDARY_BYTES * len(branch.keys)


def _handle_bytes(handle: Handle) -> int:
    held_bytes = len(handle.held.links) + _HELD_BYTES if handle.held else 0
    return _HANDLE_BYTES + len(handle.params) + len(handle.decode) + len(handle.engine_id) + held_bytes
