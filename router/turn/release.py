"""Handles that nobody will use, until their decode node has been told so.

A handle comes here when its conversation is over, when it was overtaken, when no turn can find it, or when
its room is needed. It must be in no ledger, and nobody may be reading it: what is released, others may write.

It leaves in one of two ways: *along* with a cold prefill leg that is sent anyway, or with a leg of its own
(``router.turn.releasing``). Both carry it with nothing left to read, so that P reads nothing, and D, which is
told all the same, frees the blocks. Where D is not told they stay pinned until its own time to live is over.
Until then they are counted here.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from heapq import heappop, heappush
from itertools import islice
from typing import Final

from router.fleet.node import Node, process_of
from router.fleet.snapshot import Pool
from router.ledger.store import Handle, Leaving
from router.turn.plan import restarted

MAX_QUEUED: Final = 10_000
"""Handles that wait to be released; of more than that the oldest are left to expire."""
MAX_SEEN: Final = 256
"""Handles that one look at the queue takes in."""
MAX_PROVEN: Final = 4_096
"""Prefill nodes that are known to cope with handles; of more than that the first has to show it again."""
_LOOKED_AT: Final = 16
"""Handles that are looked at for one that may ride along."""


class Cause(StrEnum):
    """Why a handle is released."""

    BUDGET = "budget"
    """Handles pinned too much of its node's KV, and its conversation was the least likely to go on."""
    ENDED = "ended"
    """Its client said that the conversation is over."""
    SUPERSEDED = "superseded"
    """Its branch has moved on without it."""
    EVICTED = "evicted"
    """The ledger had no room for its branch any more."""
    ONE_SHOT = "one_shot"
    """Its turn was to be the only one."""
    UNKEPT = "unkept"
    """No turn will ever find it: the caller has no identity, nothing is to be reused, or it is too large."""


_CAUSES: Final = {
    Leaving.SUPERSEDED: Cause.SUPERSEDED,
    Leaving.EVICTED: Cause.EVICTED,
    Leaving.UNKEPT: Cause.UNKEPT,
    Leaving.ENDED: Cause.ENDED,
    Leaving.BUDGET: Cause.BUDGET,
}
"""Why it may be released; of any other handle somebody may still make use."""


@dataclass(frozen=True, slots=True, eq=False)
class Due:
    """A handle to be released. ``since_s`` is on the ledger's clock."""

    handle: Handle
    cause: Cause
    since_s: float


@dataclass(slots=True)
class Releases:
    """Handles to be released, and those that were lost. One event loop only.

    ``now`` is the ledger's clock.
    """

    now: Callable[[], float] = time.monotonic
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when there is something to do for whoever sends legs; that one clears it."""
    _queue: deque[Due] = field(default_factory=deque)
    _tokens: dict[str, int] = field(default_factory=dict)
    """What is still pinned by node: by those that wait here, are on their way, or were lost."""
    _lost: list[tuple[float, int, str, int]] = field(default_factory=list)
    """A heap of deadline, a number of its own, node and tokens."""
    _lost_tokens: dict[str, int] = field(default_factory=dict)
    _losses: int = 0
    _proven: dict[str, str | None] = field(default_factory=dict)
    """Prefill nodes, and the process that was behind each then."""

    def __len__(self) -> int:
        """How many wait; not those that are on their way."""
        return len(self._queue)

    def add(self, handle: Handle, cause: Cause) -> None:
        """Nobody will use ``handle``: it was never sent, and is in no ledger."""
        _add(self._tokens, handle.decode, handle.tokens)
        self._queue.append(Due(handle, cause, self.now()))
        if len(self._queue) > MAX_QUEUED:
            self.failed(self._queue.popleft())
        self.changed.set()

    def lost(self, handle: Handle) -> None:
        """``handle`` was sent and not confirmed: it may be pinned until its deadline, and is left alone."""
        _add(self._tokens, handle.decode, handle.tokens)
        self._lose(handle)

    def left(self, handle: Handle, leaving: Leaving) -> None:
        """``handle`` has left the ledger, and nobody has it in hand."""
        cause = _CAUSES.get(leaving)
        if cause is None:
            self.lost(handle)
        else:
            self.add(handle, cause)

    def pinned_tokens(self, decode: str) -> int:
        """What is pinned on a node by handles that are not in the ledger any more."""
        return self._tokens.get(decode, 0)

    def lost_tokens(self, decode: str) -> int:
        """How much of that stays until its deadline."""
        return self._lost_tokens.get(decode, 0)

    # -- leaving -----------------------------------------------------------------------------------------

    def prove(self, prefill: str, process: str | None) -> None:
        """A prefill node has answered a leg that carried a handle: strangers' may ride along from now on."""
        self._proven.pop(prefill, None)  # it is the newest again
        while len(self._proven) >= MAX_PROVEN:
            del self._proven[next(iter(self._proven))]  # nodes come and go
        self._proven[prefill] = process

    def along(self, prefill: Node, pool: Pool, cooling: Collection[tuple[str, str]]) -> Due | None:
        """Take one that may ride along with a cold leg to ``prefill``.

        Only with a node that is known to cope with handles: a leg of a turn is no place to find out.
        """
        if not self._queue or prefill.key not in self._proven:
            return None
        if self._proven[prefill.key] != process_of(prefill.engine.engine_id):
            return None
        for at in range(min(len(self._queue), _LOOKED_AT)):
            due = self._queue[at]
            holder = pool.get(due.handle.decode)
            if holder is None or not holder.reachable or restarted(due.handle, holder):
                continue
            if due.handle.deadline_s <= self.now():
                continue
            if pairs(prefill, holder) and (prefill.key, holder.key) not in cooling:
                del self._queue[at]
                return due
        return None

    def waiting(self) -> Iterator[Due]:
        """The first of those that wait, at most ``MAX_SEEN``, as they are now."""
        return iter(tuple(islice(self._queue, MAX_SEEN)))

    def take(self, due: Due) -> None:
        """``due`` goes on its way; whoever takes it says what became of it. Raises ValueError if it left."""
        self._queue.remove(due)

    def last(self, due: Due) -> None:
        """It cannot go yet: those behind it come first. Raises ValueError if it left."""
        self._queue.remove(due)
        self._queue.append(due)

    def back(self, due: Due) -> None:
        """Nothing of it was sent: it is the next one again."""
        self._queue.appendleft(due)

    def released(self, due: Due) -> None:
        """D was told, or keeps it no more in any case."""
        _add(self._tokens, due.handle.decode, -due.handle.tokens)

    def failed(self, due: Due) -> None:
        """It will not be released: it is pinned until its deadline."""
        self._lose(due.handle)

    def pass_time(self) -> None:
        """Forget what is not pinned any more because its time is over."""
        now_s = self.now()
        while self._lost and self._lost[0][0] <= now_s:
            _, _, decode, tokens = heappop(self._lost)
            _add(self._tokens, decode, -tokens)
            _add(self._lost_tokens, decode, -tokens)
        # Of those further back with an earlier deadline whoever sends them takes care.
        while self._queue and not self._queue[0].handle.deadline_s > now_s:
            self.released(self._queue.popleft())

    def _lose(self, handle: Handle) -> None:
        self._losses += 1
        heappush(self._lost, (handle.deadline_s, self._losses, handle.decode, handle.tokens))
        _add(self._lost_tokens, handle.decode, handle.tokens)


def _add(counts: dict[str, int], key: str, tokens: int) -> None:
    left = counts.get(key, 0) + tokens
    if left > 0:
        counts[key] = left
    else:
        counts.pop(key, None)


def pairs(prefill: Node, decode: Node) -> bool:
    """Whether the two may exchange KV: as far as one knows, they serve a model in common."""
    ours, theirs = prefill.engine.models, decode.engine.models
    return not ours or not theirs or not set(ours).isdisjoint(theirs)
