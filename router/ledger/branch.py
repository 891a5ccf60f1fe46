"""A branch as the ledger in memory keeps it, and what it takes there."""

from __future__ import annotations

from typing import Final

from router.ledger.store import Absence, Candidate, Handle, Line, Trace

# What CPython takes on 64 bits, in bytes; tests/ledger/test_memory.py compares it with tracemalloc.
_BRANCH_BYTES: Final = 760
"""A branch: its object and id, its place in the order of use, its list of boundaries, its trace."""
_BOUNDARY_BYTES: Final = 105
"""A boundary: its key, its slot in the (half full) table, its place in the branch's own list."""
_HANDLE_BYTES: Final = 520
"""A handle: its object, and numbers, its place in the order of deadlines."""
_HELD_BYTES: Final = 300
"""Digests of held tokens, but for their links."""
_OWNER_BYTES: Final = 150
"""The key of a branch's owner, and its slot in the table of owners."""


class Branch:
    """One line of turns. Mutable: it moves on."""

    __slots__ = (
        "absence",
        "conversation",
        "handle",
        "id",
        "keys",
        "newer",
        "older",
        "owner",
        "size_bytes",
        "tip",
        "trace",
        "turns",
        "used_s",
        "version",
        "waits_longer",
        "waits_shorter",
        "waits_since_s",
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
        self.owner = b""
        self.used_s = 0.0
        self.older: Branch | None = None
        self.newer: Branch | None = None
        self.waits_since_s = 0.0
        self.waits_longer: Branch | None = None
        self.waits_shorter: Branch | None = None
        """Neighbours in the queue of handles of its kind; see ``router.ledger.waiting``."""
        self.size_bytes = 0

    def candidate(self) -> Candidate | None:
        """Its handle, as release sees it."""
        if self.handle is None:
            return None
        return Candidate(
            branch=self.id,
            version=self.version,
            decode=self.handle.decode,
            finish=self.trace.finish,
            tokens=self.handle.tokens,
            waits_since_s=self.waits_since_s,
            deadline_s=self.handle.deadline_s,
        )

    def line(self) -> Line:
        """The branch, as operators see it."""
        handle = self.handle
        return Line(
            branch=self.id,
            conversation=self.conversation,
            turns=self.turns,
            trace=self.trace,
            pinned_tokens=handle.tokens if handle is not None else 0,
            used_at_s=self.used_s,
            deadline_s=handle.deadline_s if handle is not None else None,
        )


def branch_bytes(branch: Branch) -> int:
    """What a branch takes without its handle, estimated."""
    trace = branch.trace
    text_bytes = len(branch.conversation) + len(trace.prefill) + len(trace.decode)
    owner_bytes = _OWNER_BYTES if branch.owner else 0
    return _BRANCH_BYTES + text_bytes + owner_bytes + _BOUNDARY_BYTES * len(branch.keys)


def handle_bytes(handle: Handle) -> int:
    """What a handle takes, estimated."""
    held_bytes = len(handle.held.links) + _HELD_BYTES if handle.held else 0
    return _HANDLE_BYTES + len(handle.params) + len(handle.decode) + len(handle.engine_id) + held_bytes
