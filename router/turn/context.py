"""What every turn of a router shares, and the one face of a client that a turn sees."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from router.engines.upstream import Limits, Upstream
from router.fleet.admission import Admission
from router.fleet.doubts import Doubts
from router.fleet.load import Load
from router.fleet.pool import Fleet
from router.ledger.gaps import Gaps
from router.ledger.store import Ledger, PinLedger
from router.telemetry.facts import Facts
from router.turn.handle import Lifetime
from router.turn.prefixes import Prefixes
from router.turn.record import Record
from router.turn.release import Releases
from router.turn.spans import Tracing


def no_key() -> str | None:
    """Engines want no key."""
    return None


@dataclass(frozen=True, slots=True)
class RelaySettings:
    """The settings that shape turns. ``router.settings`` says what each is for, and gives its default."""

    lifetime: Lifetime
    verify: str
    answer_tokens: bool
    threshold_tokens: int
    take_share: float
    policy: str
    stay_max_tokens: int
    connect_s: float
    prefill_s: float | None
    pull_s: float
    first_token_s: float | None
    decode_s: float | None
    idle_s: float | None
    expose_params: bool
    explain_headers: bool
    prefill_lease_s: float
    admission_wait_s: float
    rewrite_remote_host: bool
    one_shot: str = "header"
    api_key: Callable[[], str | None] = no_key
    verify_s: float = 5.0
    """Limit on rendering a prompt for the comparison; no setting, as it only costs a cold turn."""
    max_answer_bytes: int = 268_435_456
    client_s: float | None = None

    def limits(self, answer_s: float | None, *, connect_within_s: float | None = None) -> Limits:
        """The bounds of a leg whose answer has to begin within ``answer_s`` seconds."""
        connect_s = self.connect_s if connect_within_s is None else min(self.connect_s, connect_within_s)
        return _limits(connect_s, answer_s, self.idle_s, self.max_answer_bytes)


_limits: Final = functools.lru_cache(maxsize=64)(Limits)
"""Most legs of a router have the same."""


@dataclass(frozen=True, slots=True)
class Context:
    """The parts a turn works with. ``now`` is the ledger's clock, in seconds."""

    upstream: Upstream
    fleet: Fleet
    ledger: Ledger
    facts: Facts
    doubts: Doubts
    admission: Admission
    settings: RelaySettings
    now: Callable[[], float]
    load: Load = field(default_factory=Load)
    releases: Releases = field(default_factory=Releases)
    gaps: Gaps = field(default_factory=Gaps)
    prefixes: Prefixes = field(default_factory=Prefixes)
    tracing: Tracing | None = None
    """Which turns are traced; None where none is."""
    pins: PinLedger | None = None
    """The ledger again, where it can release and end conversations."""
    running: dict[str, Record] = field(default_factory=dict)
    """The turns that are open, by id, for whoever wants to look: each adds itself and takes itself out."""


class Flow(Protocol):
    """Whether a connection takes more."""

    write_paused: bool


class ChunkWriter(Protocol):
    """The way to a client for what is a chunk of the chunked coding already."""

    is_gone: bool
    """Whether the client has closed its connection."""

    @property
    def flow(self) -> Flow: ...

    @property
    def write(self) -> Callable[[bytes], object]:
        """Write a chunk, behind all that was put; not while ``flow`` is paused."""


class Client(Protocol):
    """The client's side of a turn. A client that leaves cancels the turn's task."""

    started: bool
    """Whether a status was sent."""
    left: bool
    """Whether it has closed its connection; otherwise it is the router that ends the turn's task."""

    @property
    def has_all(self) -> bool:
        """Whether it was given its whole answer: it may close its connection then, and has not left."""

    async def start(self, status: int, headers: Sequence[tuple[str, str]]) -> None:
        """Send the status and headers of an answer whose body is still to come."""

    @property
    def chunk_writer(self) -> ChunkWriter | None:
        """For a client that gets its body chunk by chunk, without a task's help; None for others."""

    def put(self, data: bytes, chunk: bytes | None = None) -> bool:
        """Send a part of the body at once; after False ``flush`` is due before the next.

        ``chunk`` is the same in the chunked coding, for a client that gets the body so.
        """

    def put_last(self, data: bytes) -> bool:
        """As ``put``, where the end follows most likely."""

    async def flush(self) -> None:
        """Until the client has read on, if it had fallen behind."""

    def drop(self) -> None:
        """Close its connection at once: nothing more is for it."""

    def told_all(self) -> None:
        """What was put is the whole answer to a client that does not wait for ``end``, as many do not."""

    async def end(self) -> None:
        """The body is complete."""

    async def whole(self, status: int, headers: Sequence[tuple[str, str]], body: bytes) -> None:
        """Send an answer at once."""
