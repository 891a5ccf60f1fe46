"""A handle that a turn has taken: used once, given back, released, or lost, and never twice."""

import asyncio
from dataclasses import dataclass, field
from enum import Enum, auto

from router.ledger.store import Found, Handle, Ledger, LedgerUnavailable, Relation
from router.telemetry.facts import Facts, HandleFact, Outcome, Parted
from router.turn.digest import STRIDE_TOKENS
from router.turn.release import Cause, Releases


class _Course(Enum):
    HERE = auto()
    SENT = auto()
    """On its way, and what becomes of it is not known yet."""
    GONE = auto()


@dataclass(slots=True)
class Custody:
    """Keeps what ``find`` took. A handle is given back only if it was never sent."""

    found: Found | None
    ledger: Ledger
    facts: Facts
    releases: Releases = field(default_factory=Releases)
    """Where handles go that nobody can use any more, but their decode node still keeps."""
    _course: _Course = _Course.HERE

    @property
    def handle(self) -> Handle | None:
        """The handle, while it may still be sent."""
        if self.found is None or self._course is not _Course.HERE:
            return None
        return self.found.handle

    @property
    def superseded(self) -> bool:
        """Whether the branch moves on with this turn, so that nobody else will want the handle."""
        return self.found is not None and self.found.relation is Relation.EXTENSION

    def sent(self) -> None:
        """It is on its way to P; from here on it is used up, whatever happens."""
        self._course = _Course.SENT

    def returned(self) -> None:
        """It turned out that not a byte of the leg left."""
        if self._course is _Course.SENT:
            self._course = _Course.HERE

    def dropped(self, detail: str) -> None:
        """It is of no use to anybody: its engine is gone, or the pair is not to be trusted with it."""
        handle = self.handle
        if handle is not None:
            self._course = _Course.GONE
            self.tell(Outcome.LOST, handle.tokens, detail)

    def superfluous(self, detail: str) -> None:
        """It is of no use to anybody, and its engine keeps it all the same: it is to be released."""
        handle = self.handle
        if handle is not None:
            self.dropped(detail)
            self.releases.add(handle, Cause.SUPERSEDED)

    def kept(self) -> Handle | None:
        """Take it for the branch to keep: the turn did without, and moves the branch on.

        None where there is none any more, or the branch stays where it is and the handle with it.
        """
        handle = self.handle if self.superseded else None
        if handle is not None:
            self._course = _Course.GONE
        return handle

    def tell(self, outcome: Outcome, tokens: int, detail: str = "") -> None:
        """Publish what became of it. With the outcome of a handle that was sent its course is over."""
        if self._course is _Course.SENT:
            self._course = _Course.GONE
        if self.found is not None and self.found.handle is not None:
            parted = _parted(self.found, outcome, tokens)
            self.facts.publish(HandleFact(outcome, self.found.handle.decode, tokens, detail, parted))
            if outcome is Outcome.FAILED:
                self.releases.lost(self.found.handle)

    async def close(self) -> None:
        """Give back what was never sent. Never raises LedgerUnavailable: a lost handle is a cold turn."""
        if self._course is _Course.SENT and self.found is not None and self.found.handle is not None:
            self.tell(Outcome.LOST, self.found.handle.tokens, "leg_ended")
            self.releases.lost(self.found.handle)
        handle = self.handle
        if handle is None or self.found is None:
            return
        self._course = _Course.GONE
        try:
            back = await self.ledger.give_back(self.found)
        except LedgerUnavailable:
            self.tell(Outcome.LOST, handle.tokens, "ledger_down")
            self.releases.lost(handle)  # not to be released: the ledger may have taken it back all the same
            return
        except asyncio.CancelledError:
            self.releases.lost(handle)  # the same: nobody waits for what the ledger says
            raise
        self.tell(Outcome.GIVEN_BACK if back else Outcome.LOST, handle.tokens, "" if back else "moved_on")
        if not back:
            self.releases.add(handle, Cause.SUPERSEDED)


def _parted(found: Found, outcome: Outcome, tokens: int) -> Parted | None:
    """Where the tokens behind a handle part from the prompt, as far as its outcome tells.

    ``tokens`` is what was used of a handle that was cut; less than was proven, by up to a stride or a block.
    """
    handle = found.handle
    if handle is None or outcome not in (Outcome.CUT, Outcome.DIVERGED):
        return None
    if found.relation is not Relation.EXTENSION:
        return Parted.EDIT
    if outcome is Outcome.DIVERGED or tokens + STRIDE_TOKENS < handle.prompt_tokens:
        return Parted.HISTORY
    if handle.held is not None and handle.held.tokens <= handle.prompt_tokens:
        return None  # it ends where the answer begins, whose tokens nobody knows
    return Parted.ANSWER
