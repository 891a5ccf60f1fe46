"""What every turn of a router shares, and the one face of a client that a turn sees."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from router.engines.upstream import Limits, Upstream
from router.fleet.doubts import Doubts
from router.fleet.pool import Fleet
from router.ledger.store import Ledger
from router.telemetry.facts import Facts
from router.turn.handle import Lifetime


def no_key() -> str | None:
    """Engines want no key."""
    return None


@dataclass(frozen=True, slots=True)
class RelaySettings:
    """The settings that shape turns. ``router.settings`` says what each is for."""

    lifetime: Lifetime
    verify: str = "auto"
    answer_tokens: bool = True
    threshold_tokens: int = 64
    take_share: float = 0.5
    connect_s: float = 2.0
    verify_s: float = 5.0
    prefill_s: float | None = 600.0
    pull_s: float = 20.0
    first_token_s: float | None = None
    decode_s: float | None = None
    idle_s: float | None = 300.0
    max_answer_bytes: int = 268_435_456
    expose_params: bool = False
    explain_headers: bool = True
    prefill_lease_s: float = 30.0
    rewrite_remote_host: bool = False
    api_key: Callable[[], str | None] = no_key

    def limits(self, answer_s: float | None) -> Limits:
        """The bounds of a leg whose answer has to begin within ``answer_s`` seconds."""
        return Limits(self.connect_s, answer_s, self.idle_s, self.max_answer_bytes)


@dataclass(frozen=True, slots=True)
class Context:
    """The parts a turn works with. ``now`` is the ledger's clock, in seconds."""

    upstream: Upstream
    fleet: Fleet
    ledger: Ledger
    facts: Facts
    doubts: Doubts
    settings: RelaySettings
    now: Callable[[], float]


class Client(Protocol):
    """The client's side of a turn. A client that leaves cancels the turn's task."""

    started: bool
    """Whether a status was sent."""

    async def start(self, status: int, headers: Sequence[tuple[str, str]]) -> None:
        """Send the status and headers of an answer whose body is still to come."""

    async def write(self, data: bytes) -> None:
        """Send a part of the body; waits while the client does not read."""

    async def end(self) -> None:
        """The body is complete."""

    async def whole(self, status: int, headers: Sequence[tuple[str, str]], body: bytes) -> None:
        """Send an answer at once."""
