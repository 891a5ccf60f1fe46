"""The handles that wait in a ledger in memory: by deadline, by how long they have waited, and what they pin.

Each operation costs the same however many there are. Handles stand in buckets of whole seconds of their
deadline, so that taking one out is a dictionary's ``pop`` and expiring touches nothing but what has expired.
They are also linked, for each decode node and kind of finish, in the order in which they began to wait:
release looks at the first of each queue.
"""

import math
from collections.abc import Iterator, Mapping
from heapq import heappop, heappush

from router.ledger.branch import Branch
from router.ledger.store import Finish, Handle, Pinned


class _Queue:
    """Branches in the order in which their handles began to wait."""

    __slots__ = ("first", "last")

    def __init__(self) -> None:
        self.first: Branch | None = None
        self.last: Branch | None = None

    def add(self, branch: Branch) -> None:
        branch.waits_longer, branch.waits_shorter = self.last, None
        if self.last is None:
            self.first = branch
        else:
            self.last.waits_shorter = branch
        self.last = branch

    def remove(self, branch: Branch) -> None:
        longer, shorter = branch.waits_longer, branch.waits_shorter
        if longer is None:
            self.first = shorter
        else:
            longer.waits_shorter = shorter
        if shorter is None:
            self.last = longer
        else:
            shorter.waits_longer = longer
        branch.waits_longer = branch.waits_shorter = None


class _OnNode:
    """What waits on one decode node."""

    __slots__ = ("handles", "queues", "tokens")

    def __init__(self) -> None:
        self.tokens = 0
        self.handles = 0
        self.queues: dict[Finish, _Queue] = {}


class Waiting:
    """Branches whose handle waits. A branch's handle and trace stay as they are while it is in here."""

    def __init__(self) -> None:
        self._nodes: dict[str, _OnNode] = {}
        self._deadlines: dict[int, dict[str, Branch]] = {}
        """By the second that the deadline lies in."""
        self._due_s: list[int] = []
        """A heap of the keys of ``_deadlines``, each once."""
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, branch: Branch, handle: Handle, now_s: float) -> None:
        """``branch``'s handle waits from now on."""
        second = _second(handle)
        bucket = self._deadlines.get(second)
        if bucket is None:
            bucket = self._deadlines[second] = {}
            heappush(self._due_s, second)
        bucket[branch.id] = branch
        branch.waits_since_s = now_s
        node = self._nodes.get(handle.decode)
        if node is None:
            node = self._nodes[handle.decode] = _OnNode()
        queue = node.queues.get(branch.trace.finish)
        if queue is None:
            queue = node.queues[branch.trace.finish] = _Queue()
        queue.add(branch)
        node.tokens += handle.tokens
        node.handles += 1
        self._size += 1

    def remove(self, branch: Branch, handle: Handle) -> None:
        """It waits no more."""
        # An emptied bucket stays until its second has passed: its number is in the heap.
        self._deadlines[_second(handle)].pop(branch.id, None)
        node = self._nodes[handle.decode]
        node.queues[branch.trace.finish].remove(branch)
        node.tokens -= handle.tokens
        node.handles -= 1
        if not node.handles:
            del self._nodes[handle.decode]  # nodes come and go
        self._size -= 1

    def due(self, now_s: float, limit: int) -> Iterator[Branch]:
        """Branches whose handles have expired, at most ``limit``. Whoever is told of one removes it."""
        for _ in range(limit):
            while self._due_s and not self._deadlines[self._due_s[0]] and self._due_s[0] + 1 <= now_s:
                del self._deadlines[heappop(self._due_s)]
            # Within its own second a bucket may hold handles that are still good: not before its end.
            if not self._due_s or self._due_s[0] + 1 > now_s:
                return
            yield next(iter(self._deadlines[self._due_s[0]].values()))

    def oldest(self, decode: str, finish: Finish) -> Branch | None:
        node = self._nodes.get(decode)
        queue = node.queues.get(finish) if node is not None else None
        return queue.first if queue is not None else None

    def pinned(self) -> Mapping[str, Pinned]:
        return {key: Pinned(node.tokens, node.handles) for key, node in self._nodes.items()}

    def clear(self) -> None:
        self._nodes.clear()
        self._deadlines.clear()
        self._due_s.clear()
        self._size = 0


def _second(handle: Handle) -> int:
    return math.floor(min(handle.deadline_s, 2.0**53))
