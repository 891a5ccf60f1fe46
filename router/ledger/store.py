"""Where branches, traces and handles wait between turns: the protocol of every ledger.

A *boundary* is a point between two messages of a history, named by the chained digest of all that stands
before it; its *depth* is how many messages (or strides of a plain prompt) that is. A *branch* is one line of
turns; its record moves on with every turn. Boundaries lead to branches.

Rules that every implementation keeps, and that ``tests/ledger/conformance.py`` checks:

* ``find`` is one atomic step: it picks the branch *and* takes its handle, so that of any number of turns
  that ask at the same time at most one gets a handle.
* An *extension* (the branch's newest boundary, and more messages after it) always takes the handle. Any
  other descendant takes it only if it shares the conversation's own opening (``Query.own_depth``) and would
  gain at least ``Query.take_share`` of what the handle holds; else a title or summary request, or a stranger
  with the same system prompt, would steal the main line.
* ``give_back`` is for a handle that was never sent; it is dropped when the branch has moved on since.
* A handle past its deadline is never given out. Traces outlive handles.
* Everything is bounded: by entries, by bytes, by age; the least recently used branch goes first.

All times are seconds on the clock that the ledger was made with: a process-wide monotonic one in memory, the
wall clock where several processes share a ledger.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from router.turn.digest import Digests


class Relation(StrEnum):
    """How a request stands to the branch it was found on."""

    EXTENSION = "extension"
    """It begins with the whole of the branch's newest prompt, and goes on."""
    REGENERATED = "regenerated"
    """It is the branch's newest prompt again."""
    FORK = "fork"
    """It left the branch at an earlier boundary: an edit, a fork, a side request, a compaction."""


class Absence(StrEnum):
    """Why a branch was found and no handle came with it."""

    NO_HANDLE = "no_handle"
    """The engine gave none, or another turn has it."""
    EXPIRED = "expired"
    SMALL_GAIN = "small_gain"
    """The handle was left to its main line."""


@dataclass(frozen=True, slots=True)
class Handle:
    """D's ``kv_transfer_params`` of a finished turn. Opaque, good for one read, until its deadline."""

    params: bytes
    """Raw JSON, as D gave it; never rebuilt from known keys."""
    decode: str
    """Key of the node that holds the KV."""
    engine_id: str
    tokens: int
    """How many tokens D says it holds (``remote_num_tokens``)."""
    prompt_tokens: int
    """How many of them were the turn's prompt; the rest is its answer."""
    deadline_s: float
    """Earlier than D's own end of life."""
    started_at_s: float | None = None
    """When the process that holds it started, as its metrics tell: an engine id may be a fixed one."""
    stamped: bool = False
    """D's plugin stamped it: a verifying P can check it by itself."""
    held: Digests | None = None
    """What the router knows of the held tokens; None where only the stamp tells."""
    media_depth: int = 0
    """Depth of the last message with an image, audio or the like; 0 where there is none."""


@dataclass(frozen=True, slots=True)
class Trace:
    """What is known of a branch's newest turn besides its handle; readable by any number of turns."""

    prefill: str
    """Key of the node that computed the prompt; empty where no prefill node did."""
    decode: str
    prompt_tokens: int
    prompt_bytes: int
    """Size of the history that ``prompt_tokens`` were made of, for estimates at other boundaries."""
    reused_tokens: int
    computed_at_s: float


@dataclass(frozen=True, slots=True)
class Query:
    """What ``find`` looks for: boundaries, oldest first; ``keys[d - 1]`` is the one of depth d."""

    keys: tuple[bytes, ...]
    sizes_bytes: tuple[int, ...]
    """Cumulative size of the history up to each boundary."""
    own_depth: int
    """Depth from which a history is a conversation's own: that of its first user message, else 1."""
    conversation: str = ""
    """The client's id for it, a hint that breaks ties; may be empty."""
    take_share: float = 0.5


@dataclass(frozen=True, slots=True)
class Found:
    """The branch of a request's longest known boundary, and its handle if this turn took it."""

    branch: str
    version: int
    """Moves with every put; a give-back or put on an older version does not touch the branch."""
    depth: int
    relation: Relation
    trace: Trace
    turns: int
    """How many turns the branch has seen."""
    handle: Handle | None
    absence: Absence | None
    """Set exactly where ``handle`` is None."""


@dataclass(frozen=True, slots=True)
class Put:
    """A turn that ended well: its boundaries (as in ``Query``), where it was found, what it left."""

    keys: tuple[bytes, ...]
    found: Found | None
    trace: Trace
    handle: Handle | None
    conversation: str = ""


@dataclass(frozen=True, slots=True)
class LedgerStats:
    """Sizes of a ledger now, and what it dropped since it was made."""

    branches: int
    boundaries: int
    handles: int
    size_bytes: int
    expired_handles: int
    evicted_branches: int
    evicted_handles: int


class Ledger(Protocol):
    """A ledger. Methods raise ``LedgerUnavailable`` and nothing else; the caller then goes cold."""

    async def find(self, query: Query) -> Found | None:
        """The branch of the longest known boundary; None where no boundary is known."""

    async def give_back(self, found: Found) -> bool:
        """Return a handle that was never sent; whether the branch took it back."""

    async def put(self, turn: Put) -> str:
        """Record a finished turn; the id of its branch.

        An extension moves its branch on. Anything else, or an extension that another one overtook, begins a
        branch of its own where it left, and becomes the first choice at that boundary.
        """

    async def sweep(self) -> None:
        """Drop what has expired."""

    async def stats(self) -> LedgerStats: ...

    async def close(self) -> None: ...


class LedgerUnavailable(Exception):
    """The ledger did not answer in time, or not at all."""
