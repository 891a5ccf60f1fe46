"""The ledger of one process: dictionaries, bounded by entries, bytes and age.

Each boundary leads to a short list of branches, newest first. Each method runs without an await from its
first line to its last, so that on one event loop it is one atomic step; it is not safe across threads.

No method's cost depends on how much is held. Branches are linked in the order of last use; eviction takes the
oldest. Handles that wait are kept in order by ``router.ledger.waiting``. A boundary's list is bounded, so
that no shared system prompt collects every conversation there is.
"""

import os
import time
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from operator import itemgetter
from typing import Final

from router.ledger.branch import Branch, branch_bytes, handle_bytes
from router.ledger.ended import Ended
from router.ledger.listing import page
from router.ledger.owners import Owners
from router.ledger.sharded import Sharded
from router.ledger.store import (
    Absence,
    Candidate,
    Finish,
    Found,
    Handle,
    Leaving,
    LedgerStats,
    OnLeft,
    Page,
    Pinned,
    Put,
    Query,
    Relation,
    forgotten,
)
from router.ledger.waiting import Waiting

DEFAULT_MAX_BRANCHES: Final = 1_000_000
DEFAULT_MAX_BYTES: Final = 2_147_483_648
DEFAULT_TRACE_TTL_S: Final = 3600.0
DEFAULT_MAX_SIBLINGS: Final = 8
SWEEP_HANDLES: Final = 5_000
SWEEP_BRANCHES: Final = 1_000
"""How much one sweep drops at most, some milliseconds of the loop's time; the rest waits for the next."""


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
        on_left: OnLeft = forgotten,
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
        self.on_left = on_left
        self._branches: Sharded[str, Branch] = Sharded()
        self._oldest: Branch | None = None
        self._newest: Branch | None = None
        self._boundaries: Sharded[bytes, Branch | list[Branch]] = Sharded()
        """Most boundaries lead to one branch; only those of several pay for a list."""
        self._owners = Owners()
        self._ended = Ended(trace_ttl_s)
        self._waiting = Waiting()
        self._ids = count(1)
        self._prefix = os.urandom(4).hex()
        self._size_bytes = 0
        self._expired_handles = 0
        self._evicted_branches = 0
        self._evicted_handles = 0

    async def find(self, query: Query) -> Found | None:
        now_s = self._now()
        for depth in range(len(query.keys), 0, -1):
            at = self._boundaries.get(query.keys[depth - 1])
            if at is None:
                continue
            if not isinstance(at, list):
                fresh = [] if self._too_old(at, now_s) else [at]
            else:
                fresh = [branch for branch in at if not self._too_old(branch, now_s)]
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
        self._attach(branch, found.handle, now_s)
        self._fit(now_s)
        return True

    async def put(self, turn: Put) -> str:
        now_s = self._now()
        found = turn.found
        known = self._branches.get(found.branch) if found else None
        if not turn.keys:
            if turn.handle is not None:
                self.on_left(turn.handle, Leaving.UNKEPT)
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
            branch = Branch(self._new_id(), turn.trace)
            self._branches.set(branch.id, branch)
            # Where it left it comes first; what lies before is the older branch's, as long as that is there.
            new_keys = turn.keys[found.depth - 1 :] if found and known else turn.keys
        self._index(branch, new_keys)
        superseded = self._release(branch)
        if superseded is not None:
            self.on_left(superseded, Leaving.SUPERSEDED)
        is_over = self._ended.since(turn.owner, turn.began_s)
        branch.tip = turn.keys[-1]
        branch.version += 1
        branch.turns += 1
        branch.trace = turn.trace
        branch.conversation = "" if is_over else turn.conversation
        self._owners.set(branch, b"" if is_over else turn.owner)
        self._link_newest(branch, now_s)
        branch.absence = Absence.NO_HANDLE
        self._resize(branch, branch_bytes(branch) - branch.size_bytes)
        if turn.handle is not None:
            if _expired(turn.handle, now_s):
                branch.absence = Absence.EXPIRED
                self._expired_handles += 1
            elif is_over:
                branch.absence = Absence.RELEASED
                self.on_left(turn.handle, Leaving.ENDED)
            else:
                self._attach(branch, turn.handle, now_s)
        self._fit(now_s)
        return branch.id

    async def sweep(self) -> None:
        """Drop what has expired, at most ``SWEEP_HANDLES`` and ``SWEEP_BRANCHES``; linear in that."""
        now_s = self._now()
        for branch in self._waiting.due(now_s, SWEEP_HANDLES):
            self._expire(branch)
        for _ in range(SWEEP_BRANCHES):
            if self._oldest is None or not self._too_old(self._oldest, now_s):
                break
            self._drop(self._oldest, now_s)

    async def stats(self) -> LedgerStats:
        return LedgerStats(
            branches=len(self._branches),
            boundaries=len(self._boundaries),
            handles=len(self._waiting),
            size_bytes=self._size_bytes,
            expired_handles=self._expired_handles,
            evicted_branches=self._evicted_branches,
            evicted_handles=self._evicted_handles,
        )

    async def close(self) -> None:
        self._branches, self._boundaries, self._owners = Sharded(), Sharded(), Owners()
        self._oldest = self._newest = None
        self._waiting.clear()
        self._size_bytes = 0

    async def pinned(self) -> Mapping[str, Pinned]:
        return self._waiting.pinned()

    async def oldest(self, decode: str, finish: Finish) -> Candidate | None:
        branch = self._waiting.oldest(decode, finish)
        return branch.candidate() if branch is not None else None

    async def take(self, branch: str, version: int) -> Handle | None:
        known = self._branches.get(branch)
        if known is None or known.version != version:
            return None
        return self._take(known, self._now())

    async def end(self, owner: bytes) -> tuple[Handle, ...] | None:
        if not owner:
            return None
        branches, now_s = self._owners.of(owner), self._now()
        self._ended.add(owner, now_s)
        if not branches:
            return None
        handles = [handle for branch in branches if (handle := self._take(branch, now_s)) is not None]
        for branch in branches:
            branch.version += 1  # a turn that has its handle does not bring it back
            self._owners.set(branch, b"")
            branch.conversation = ""
            self._resize(branch, branch_bytes(branch) - branch.size_bytes)
        return tuple(handles)

    async def conversations(self, *, cursor: str | None, limit: int) -> Page:
        used_after_s = self._now() - self._trace_ttl_s
        return page(self._newest, self._branches.get, cursor=cursor, limit=limit, used_after_s=used_after_s)

    def _found(self, query: Query, depth: int, branches: list[Branch], now_s: float) -> Found:
        """Choose among the branches of one boundary, and take the handle if it is to be had."""
        candidates: list[tuple[tuple[bool, bool, bool], Branch, Relation, Absence | None]] = []
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
        best = candidates[0] if len(candidates) == 1 else max(candidates, key=itemgetter(0))
        _, branch, relation, absence = best
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
        self, query: Query, depth: int, branch: Branch, relation: Relation, now_s: float
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

    def _too_old(self, branch: Branch, now_s: float) -> bool:
        return branch.used_s + self._trace_ttl_s <= now_s

    def _link_newest(self, branch: Branch, now_s: float) -> None:
        branch.used_s = now_s
        branch.older, branch.newer = self._newest, None
        if self._newest is None:
            self._oldest = branch
        else:
            self._newest.newer = branch
        self._newest = branch

    def _unlink(self, branch: Branch) -> None:
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

    def _index(self, branch: Branch, keys: Iterable[bytes]) -> None:
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

    def _attach(self, branch: Branch, handle: Handle, now_s: float) -> None:
        branch.handle = handle
        self._waiting.add(branch, handle, now_s)
        self._resize(branch, handle_bytes(handle))

    def _release(self, branch: Branch) -> Handle | None:
        """Take the branch's handle off it."""
        handle = branch.handle
        if handle is not None:
            branch.handle = None
            branch.absence = Absence.NO_HANDLE
            self._waiting.remove(branch, handle)
            self._resize(branch, -handle_bytes(handle))
        return handle

    def _take(self, branch: Branch, now_s: float) -> Handle | None:
        """Take the branch's handle off it to be released, if it is still good."""
        if branch.handle is not None and _expired(branch.handle, now_s):
            self._expire(branch)
        handle = self._release(branch)
        if handle is not None:
            branch.absence = Absence.RELEASED
        return handle

    def _expire(self, branch: Branch) -> None:
        if self._release(branch) is not None:
            branch.absence = Absence.EXPIRED
            self._expired_handles += 1

    def _resize(self, branch: Branch, by_bytes: int) -> None:
        branch.size_bytes += by_bytes
        self._size_bytes += by_bytes

    def _fit(self, now_s: float) -> None:
        """Evict the least recently used until all bounds hold."""
        while self._oldest is not None:
            if len(self._branches) <= self._max_branches and self._size_bytes <= self._max_bytes:
                break
            self._evicted_branches += 1
            self._drop(self._oldest, now_s)

    def _drop(self, branch: Branch, now_s: float) -> None:
        if branch.handle is not None and _expired(branch.handle, now_s):
            self._expire(branch)
        evicted = self._release(branch)
        if evicted is not None:
            self._evicted_handles += 1
            self.on_left(evicted, Leaving.EVICTED)
        for key in branch.keys:
            at = self._boundaries.get(key)
            if at is branch:
                self._boundaries.remove(key)
            elif isinstance(at, list) and branch in at:
                at.remove(branch)
                if len(at) == 1:
                    self._boundaries.set(key, at[0])
        self._owners.set(branch, b"")
        self._size_bytes -= branch.size_bytes
        self._branches.remove(branch.id)
        self._unlink(branch)


def _expired(handle: Handle, now_s: float) -> bool:
    # Written so that a deadline that is no number counts as past.
    return not handle.deadline_s > now_s
