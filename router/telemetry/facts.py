"""What happened, as frozen values. The core publishes facts; metrics, logs and pages subscribe.

The core imports this module and none of the subscribers. A subscriber that raises is reported, and disturbs
neither a turn nor the other subscribers.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

from router.values import value


class EndedBy(StrEnum):
    """Who ended a turn."""

    ENGINE = "engine"
    """It ran to its end, or the engine refused it."""
    CLIENT = "client"
    ROUTER = "router"
    """A time-out or a limit of ours, or our stop."""
    FAULT = "fault"
    """An engine broke or was not there, or the router itself failed."""


class Phase(StrEnum):
    """Where a turn is, or was when it ended early."""

    PLAN = "plan"
    WAIT = "wait"
    """For a place."""
    VERIFY = "verify"
    PREFILL = "prefill"
    BETWEEN = "between"
    FIRST_TOKEN = "first_token"  # noqa: S105 - a phase of a turn, not a secret
    STREAM = "stream"
    DONE = "done"


class Outcome(StrEnum):
    """What became of a handle, or of the hope for one."""

    STORED = "stored"
    USED = "used"
    CUT = "cut"
    """Used in part."""
    DIVERGED = "diverged"
    UNVERIFIABLE = "unverifiable"
    """Neither the engine nor the router could prove it."""
    FAILED = "failed"
    """A prefill leg that carried it failed; the turn went cold."""
    RELEASED = "released"
    GIVEN_BACK = "given_back"
    LOST = "lost"
    """Taken, and the turn ended before it was of use."""
    UNUSABLE = "unusable"
    """D gave params that are not a handle for us."""
    MISSING_PREFILL_PARAMS = "missing_prefill_params"
    MISSING_DECODE_PARAMS = "missing_decode_params"


class Parted(StrEnum):
    """Where the tokens behind a handle stop being those of the new prompt."""

    ANSWER = "answer"
    """An extension, in the last answer or just before it: reasoning that the template strips, an answer that
    is tokenised otherwise when it comes back, tool calls that are written anew."""
    HISTORY = "history"
    """An extension, further back: the template renders older turns otherwise than it did."""
    EDIT = "edit"
    """No extension: the client itself sent another history."""


class LegFault(StrEnum):
    """What a leg failed of."""

    UNREACHABLE = "unreachable"
    EXHAUSTED = "exhausted"
    """The router's own host had nothing left to connect with."""
    STALE = "stale"
    """A kept connection was closed without a byte of an answer."""
    BROKEN = "broken"
    TIMED_OUT = "timed_out"
    TOO_LARGE = "too_large"
    REFUSED = "refused"
    """The engine answered 4xx."""
    STATUS = "status"
    """The engine answered 5xx, or an error under 200."""
    NONSENSE = "nonsense"
    PROMPT_DIFFERS = "prompt_differs"
    """P read another prompt than was verified, or did not prove that it compared."""
    LEASE_OVER = "lease_over"
    """Too much time passed since the prefill leg."""

    @classmethod
    def of_status(cls, status: int) -> "LegFault":
        """The fault that an answer's status, which is not 200, stands for."""
        return cls.REFUSED if 400 <= status < 500 else cls.STATUS


@dataclass(frozen=True, slots=True)
class RequestRefused:
    """A request that did not become a turn. ``code`` as the client was told, or ``client_closed``."""

    turn_id: str
    client_id: str
    endpoint: str
    status: int
    code: str


@value
class TurnEnded:
    """One turn, however it ended. Times in seconds, None where it did not get that far."""

    turn_id: str
    client_id: str
    conversation: str
    endpoint: str
    model: str
    stream: bool
    plan: str
    reason: str
    prefill: str
    decode: str
    status: int
    """The HTTP status sent to the client; 499 where it left before one was."""
    ended_by: EndedBy
    phase: Phase
    detail: str
    """Why it did not end well; empty where it did."""
    prompt_tokens: int | None
    reused_tokens: int | None
    completion_tokens: int | None
    finish_reason: str
    waited_s: float | None
    estimate_s: float | None
    """To the first token, from the plan on; None where what followed was not what was planned."""
    verify_s: float | None
    prefill_s: float | None
    gap_s: float | None
    """Between the end of the prefill leg and the sending of the decode leg."""
    first_byte_s: float | None
    total_s: float
    line: str = ""
    """A name of the conversation by its opening, where ``conversation`` is the client's: it tells nothing of
    what was said, and is another one in every process. Empty for requests without a history."""
    moved_tokens: int | None = None
    """Of the reused tokens, those that P read from D; the rest was in a node's own cache."""
    decode_s: float | None = None
    """From the sending of the decode leg (of a turn that one node serves: its only one) to the turn's end."""

    trace_id: str = ""
    """Of the trace that it belongs to: its caller's, or one that began here. Empty where there is none."""

    @property
    def estimate_ratio(self) -> float | None:
        """How much longer than estimated it took to the first byte; None where that cannot be told.

        An answer that is not streamed has its first byte when it is complete.
        """
        if not self.stream or not self.estimate_s or self.first_byte_s is None:
            return None
        return (self.first_byte_s - (self.waited_s or 0.0)) / self.estimate_s


Value = str | int | float | bool


class SpanOutcome(StrEnum):
    """What became of spans that were to go to a collector."""

    SENT = "sent"
    FAILED = "failed"
    """The collector did not take them, in all the time that it was given."""
    DROPPED = "dropped"
    """Too many waited already."""


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """Something that happened within a span, ``at_ns`` since the epoch."""

    name: str
    at_ns: int
    attributes: Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class LegSpan:
    """One request to an engine of a turn that is traced: a leg, or the rendering of a prompt."""

    name: str
    """``prefill``, ``decode`` or ``render``."""
    span_id: str
    node: str
    request_id: str
    began_ns: int
    ended_ns: int
    status: int | None
    """The engine's HTTP status; None where it gave none."""
    error: str
    events: tuple[SpanEvent, ...]


@dataclass(frozen=True, slots=True)
class TurnTraced:
    """The spans of a turn that was traced; published right after ``turn``. Times are since the epoch."""

    turn: TurnEnded
    path: str
    span_id: str
    parent_id: str
    """The caller's span; empty where the trace began here."""
    began_ns: int
    ended_ns: int
    events: tuple[SpanEvent, ...]
    legs: tuple[LegSpan, ...]


@value
class HandleFact:
    """A handle's outcome. ``detail`` is a bounded word that says why.

    ``parted`` is set where its tokens were compared, and were not all the prompt's.
    """

    outcome: Outcome
    node: str
    tokens: int
    detail: str = ""
    parted: Parted | None = None


@dataclass(frozen=True, slots=True)
class PromptMismatch:
    """A prefill node read another prompt than was verified: its model is not trusted for reuse any more."""

    model: str
    node: str
    verified_tokens: int


@dataclass(frozen=True, slots=True)
class LegFailed:
    """A leg that failed or was overdue. ``action`` says what the turn did then."""

    turn_id: str
    role: str
    node: str
    error: str
    with_handle: bool
    action: str
    fault: LegFault = LegFault.BROKEN


@dataclass(frozen=True, slots=True)
class LedgerFailed:
    """The ledger was not there for a turn, which went cold."""

    operation: str
    error: str
    asked: bool = True
    """Whether it was asked at all; a store that is known to be down is not."""


@dataclass(frozen=True, slots=True)
class StoreChanged:
    """A server of the shared ledger is asked again, or not asked any more."""

    server: str
    """Its address, without a password."""
    up: bool
    reason: str


@dataclass(frozen=True, slots=True)
class NodeChanged:
    """A node's state, or the engine behind it, changed.

    ``ejection`` says in a word why it was ejected just now; empty where it was not.
    """

    node: str
    role: str
    state: str
    reason: str
    ejection: str = ""


@dataclass(frozen=True, slots=True)
class NodesListed:
    """A source of nodes lists others than before, or can be read again."""

    source: str
    nodes: int


@dataclass(frozen=True, slots=True)
class DiscoveryFailed:
    """A source of nodes cannot be read; what it listed last stands."""

    source: str
    error: str


@dataclass(frozen=True, slots=True)
class TaskFailed:
    """A supervised background task raised, and was started again."""

    task: str
    error: str


@dataclass(frozen=True, slots=True)
class UsageAfterRelease:
    """What a decode node's own metric said of its KV before and after handles were released, 0 to 1.

    What began or ended meanwhile is in it as well.
    """

    node: str
    released_tokens: int
    before: float
    after: float


Fact = (
    RequestRefused
    | TurnEnded
    | TurnTraced
    | HandleFact
    | UsageAfterRelease
    | PromptMismatch
    | LegFailed
    | LedgerFailed
    | StoreChanged
    | NodeChanged
    | NodesListed
    | DiscoveryFailed
    | TaskFailed
)
Subscriber = Callable[[Fact], None]


class Facts:
    """The one place where facts are published."""

    __slots__ = ("_by_kind", "_on_error", "_subscribers")

    def __init__(self, on_error: Callable[[Exception], None] | None = None) -> None:
        self._subscribers: list[tuple[Subscriber, tuple[type[Fact], ...]]] = []
        self._by_kind: dict[type[Fact], tuple[Subscriber, ...]] = {}
        """Who hears facts of a kind, as far as such have been published."""
        self._on_error = on_error

    def subscribe(self, subscriber: Subscriber, *kinds: type[Fact]) -> None:
        """Have ``subscriber`` called with every fact, or with those of the kinds that are named."""
        self._subscribers.append((subscriber, kinds))
        self._by_kind.clear()

    def publish(self, fact: Fact) -> None:
        """Tell every subscriber of such facts, in order of subscription; never raises."""
        kind = type(fact)
        subscribers = self._by_kind.get(kind)
        if subscribers is None:
            subscribers = tuple(one for one, kinds in self._subscribers if not kinds or kind in kinds)
            self._by_kind[kind] = subscribers
        for subscriber in subscribers:
            try:
                subscriber(fact)
            except Exception as error:
                if self._on_error is not None:
                    with suppress(Exception):
                        self._on_error(error)
