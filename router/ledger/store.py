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
* A handle *waits* from its put or give-back on until it is found, taken, superseded, expired or evicted;
  exactly as long it counts as pinned and can be taken for release (``PinLedger``).
* A handle that leaves while nobody has it in hand, because its branch moves on, is evicted or has ended, is
  told to ``PinLedger.on_left``: its decode node keeps it all the same.
* Everything is bounded: by entries, by bytes, by age; the least recently used branch goes first.

All times are seconds on the clock that the ledger was made with: a process-wide monotonic one in memory, the
store's own where several processes share one (``router.ledger.clock``).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from typing import ClassVar, Protocol

from router.turn.digest import Digests
from router.values import value


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
    RELEASED = "released"
    """Its blocks were given back early: the conversation was ended, or not likely to go on."""


class Finish(StrEnum):
    """How a branch's newest answer ended: who has to do something before the next turn comes."""

    TOOL_CALLS = "tool_calls"
    """A program, which is quick."""
    STOP = "stop"
    LENGTH = "length"
    OTHER = ""

    @classmethod
    def of(cls, reason: str) -> "Finish":
        """The kind of an engine's finish reason, which may be any text."""
        return cls(reason) if reason in _FINISHES else cls.OTHER


_FINISHES = frozenset(Finish)


def owner_of(tenant: bytes, conversation: str) -> bytes:
    """The key of what a tenant calls a conversation; empty where it has no name for it."""
    if not conversation:
        return b""
    return blake2b(conversation.encode(), digest_size=16, key=tenant, person=b"boomerang-owner").digest()


@value
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


class Leaving(StrEnum):
    """Why a handle left the ledger without a turn that takes it."""

    SUPERSEDED = "superseded"
    """Its branch moved on without it."""
    EVICTED = "evicted"
    """Its branch was dropped: too many, too large, or not used for too long."""
    UNKEPT = "unkept"
    """It is too large to be kept, or no boundary leads to it."""
    ENDED = "ended"
    """Its conversation was ended while its turn was under way, or when its end was given up."""
    BUDGET = "budget"
    """It was taken to be released, and whoever took it did not wait for it any more."""
    UNSURE = "unsure"
    """It may still be in the ledger, and a turn may find it: it is not to be released."""


OnLeft = Callable[[Handle, Leaving], None]


def forgotten(handle: Handle, leaving: Leaving) -> None:
    """``OnLeft`` where nobody keeps account of what decode nodes hold."""


@value
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
    finish: Finish = Finish.OTHER
    plan: str = ""
    """Kind of the turn's plan, and the reason for it."""
    reason: str = ""


@value
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


@value
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


@value
class Put:
    """A turn that ended well: its boundaries (as in ``Query``), where it was found, what it left."""

    keys: tuple[bytes, ...]
    found: Found | None
    trace: Trace
    handle: Handle | None
    conversation: str = ""
    own_depth: int = 1
    """As in ``Query``; a shared ledger keeps a conversation where its own opening says."""
    owner: bytes = b""
    """As ``owner_of`` gives it: whoever presents the same may end the conversation."""
    began_s: float | None = None
    """When the turn was looked up: an end of its conversation since then wins. None: there was none."""


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
    measured: bool = True
    """False where the store is another's: boundaries and bytes are then not counted, and 0."""


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


@dataclass(frozen=True, slots=True)
class Pinned:
    """What the handles that wait keep on one decode node."""

    tokens: int
    handles: int


@dataclass(frozen=True, slots=True)
class Candidate:
    """A handle that could be released."""

    branch: str
    version: int
    decode: str
    finish: Finish
    tokens: int
    waits_since_s: float
    deadline_s: float


@dataclass(frozen=True, slots=True)
class Line:
    """One branch as operators see it: where it is and how it fares, nothing of what was said.

    ``deadline_s`` is None, and ``pinned_tokens`` 0, where no handle waits.
    """

    branch: str
    conversation: str
    turns: int
    trace: Trace
    pinned_tokens: int
    used_at_s: float
    deadline_s: float | None


@dataclass(frozen=True, slots=True)
class Page:
    """Some lines, the most recently used first. ``cursor`` leads to the next page; None: this is the last.

    A page may be empty and have a cursor. A branch that is used meanwhile may be missing, or come twice.
    """

    lines: tuple[Line, ...]
    cursor: str | None


class PinLedger(Protocol):
    """What a ledger can do for release, and for those who end or look at conversations.

    Methods raise ``LedgerUnavailable`` and nothing else. None of them takes longer the more there is.
    """

    on_left: OnLeft
    """Told of each handle that leaves while nobody has it in hand; set before the ledger is used."""

    async def pinned(self) -> Mapping[str, Pinned]:
        """What waits on each decode node, by key; a node that nothing waits on may be missing."""

    async def oldest(self, decode: str, finish: Finish) -> Candidate | None:
        """Of the handles on a node whose turns ended so, the one that waits longest."""

    async def take(self, branch: str, version: int) -> Handle | None:
        """Take a handle to be released: atomically, as ``find`` does; no turn gets it any more.

        None where it does not wait any more, or the branch has moved on.
        """

    async def end(self, owner: bytes) -> tuple[Handle, ...] | None:
        """Take all handles of a conversation that wait, and forget whose it was; None where none is known.

        Its traces stay. Should it go on all the same, its next turn finds no handle. What turns have in hand
        that are under way comes back no more, and what they leave is not kept (``Put.began_s``).
        """

    async def conversations(self, *, cursor: str | None, limit: int) -> Page:
        """Lines of all tenants. A cursor that is none of ours counts as None."""


@dataclass(frozen=True, slots=True)
class Note:
    """What another router has told, and how many seconds ago."""

    value: bytes
    age_s: float


class Board(Protocol):
    """Where routers that share a ledger tell each other what they have learned, now and then."""

    async def exchange(self, mine: bytes) -> Sequence[Note]:
        """Leave a note in the place of the one before, and read those of the others.

        Raises LedgerUnavailable.
        """


class LedgerUnavailable(Exception):
    """The ledger did not answer in time, or not at all."""

    asked: ClassVar[bool] = True


class LedgerNotAsked(LedgerUnavailable):
    """The ledger is known not to answer, and was not waited for."""

    asked: ClassVar[bool] = False
