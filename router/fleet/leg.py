"""What an open leg tells of the node that it went to."""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from router.engines.upstream import Exhausted, Stale, TimedOut, Unsendable, UpstreamError
from router.fleet.breaker import Verdict

BUSY_S: Final = 1.0
"""How long a node that named no time is left alone."""
MAX_BUSY_S: Final = 60.0
"""An engine may name any time; what it had to do is over sooner."""

_BUSY_STATUSES: Final = frozenset({429, 503})
_NOT_IMPLEMENTED: Final = 501
"""The engine is well, and does not do what was asked."""


class Judge(Protocol):
    """Whoever takes legs' verdicts on nodes."""

    def tell(
        self, key: str, verdict: Verdict, why: str = "", *, peer: str = "", on_trial: bool = False
    ) -> None:
        """Take a leg's verdict on a node; ``peer`` is the node that it may be due to instead.

        ``why`` is empty where it went well.
        """

    def busy(self, key: str, for_s: float = BUSY_S) -> None:
        """New turns keep away from a node for so long."""

    def untried(self, key: str) -> None:
        """A leg on trial ended and told nothing."""


def verdict_of(status: int, *, with_handle: bool) -> Verdict | None:
    """What an answer's status says of the node; None where that is nobody's to say.

    A prefill leg with a handle that ends in a 5xx most likely failed on what it was to read from the decode
    node (T4: an expired handle is a 500). That speaks against the pair, which cools, and not against P.
    """
    if status in _BUSY_STATUSES:
        return Verdict.BUSY
    if status < 500 or status == _NOT_IMPLEMENTED:
        return Verdict.OK
    return None if with_handle else Verdict.FAULT


def verdict_of_error(error: UpstreamError, *, with_handle: bool) -> Verdict | None:
    """What a failed call says of the node; None where that is nothing.

    A request that cannot be put on the wire is the request's own fault, a connection that this host has no
    room for is ours, and an idle one that was closed is nobody's. An overdue leg with a handle may wait for
    the decode node.
    """
    if isinstance(error, Unsendable | Exhausted | Stale):
        return None
    if with_handle and isinstance(error, TimedOut) and error.sent:
        return None
    return Verdict.FAULT


def busy_s(headers: Sequence[tuple[str, str]]) -> float:
    """How long a node wants to be left alone: its ``Retry-After`` in seconds, within bounds.

    A date is not read: it would be on the engine's clock.
    """
    told = next((value.strip() for name, value in headers if name == "retry-after"), "")
    if not (told.isascii() and told.isdigit() and len(told) < 10):
        return BUSY_S
    return min(max(float(told), BUSY_S), MAX_BUSY_S)


class Leg:
    """A leg that is open on a node. Its first verdict counts, and a fault that comes after it.

    ``with_handle``: it reads from a decode node, and may fail because of that one. ``peer`` is the prefill
    node that a decode leg reads from: what became of the leg is told of both. A leg that ends without a
    verdict, as when its client leaves, tells nothing.
    """

    __slots__ = ("_judge", "_key", "_on_trial", "_peer", "_told", "_with_handle", "given_up", "when_given_up")

    def __init__(self, judge: Judge, key: str, *, with_handle: bool, on_trial: bool, peer: str = "") -> None:
        self._judge, self._key, self._peer = judge, key, peer
        self._with_handle, self._on_trial = with_handle, on_trial
        self._told: Verdict | None = None
        self.given_up = ""
        """Why nothing is expected of the node any more; empty while something is."""
        self.when_given_up: Callable[[], None] | None = None
        """Told so, while somebody waits for the leg's first byte."""

    def give_up(self, why: str) -> None:
        """Its node does not even answer probes: who waits for its first byte need not wait on."""
        self.given_up = why
        if self.when_given_up is not None:
            self.when_given_up()

    def answered(self, status: int, headers: Sequence[tuple[str, str]] = ()) -> None:
        """The engine answered with this status. Header names are lower case.

        The headers of a stream are no such answer: engines send them before they have computed anything.
        """
        verdict = verdict_of(status, with_handle=self._with_handle)
        if verdict is Verdict.BUSY:
            self._judge.busy(self._key, busy_s(headers))
        self._tell(verdict, "" if verdict is Verdict.OK else f"status {status}")

    def broke(self, error: UpstreamError) -> None:
        """The call ended in this error."""
        # Who waits for an answer may wait for the peer; a connection is the node's own.
        shared = isinstance(error, TimedOut) and error.sent
        self._tell(verdict_of_error(error, with_handle=self._with_handle), str(error), shared=shared)

    def failed(self, why: str) -> None:
        """The engine answered nonsense, or broke off what it had begun."""
        self._tell(Verdict.FAULT, why)

    def end(self) -> None:
        """The leg is closed."""
        if self._on_trial and self._told is None:
            self._judge.untried(self._key)

    def _tell(self, verdict: Verdict | None, why: str, *, shared: bool = True) -> None:
        if verdict is None or verdict is self._told or (self._told and verdict is not Verdict.FAULT):
            return
        on_trial = self._on_trial and self._told is None
        self._told = verdict
        peer = self._peer if shared else ""
        self._judge.tell(self._key, verdict, why, peer=peer, on_trial=on_trial)
        if peer and verdict is not Verdict.BUSY:
            of_peer = "" if verdict is Verdict.OK else f"{self._key} read from it: {why}"
            self._judge.tell(peer, verdict, of_peer, peer=self._key)
