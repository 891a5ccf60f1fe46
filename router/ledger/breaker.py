"""Whether a store is asked at all: closed while it answers, open after several failures in a row. Pure.

An open breaker costs a turn nothing. It has no timer: somebody asks the store in the background, and reports
what came of it; the first answer closes it.
"""

from dataclasses import dataclass

OPENS_AFTER = 3
"""Failures in a row: a lost packet or a busy moment is not yet a dead store."""


@dataclass(slots=True)
class Breaker:
    """Mutable; one for each server."""

    opens_after: int = OPENS_AFTER
    failures: int = 0
    """In a row, since the last answer."""
    reason: str = ""
    """Of the last failure; empty while it is closed and well."""

    @property
    def open(self) -> bool:
        return self.failures >= self.opens_after

    def answered(self) -> bool:
        """The store answered; whether that closed the breaker."""
        closed = self.open
        self.failures, self.reason = 0, ""
        return closed

    def failed(self, reason: str) -> bool:
        """The store did not answer; whether that opened the breaker."""
        self.failures, self.reason = self.failures + 1, reason
        return self.failures == self.opens_after
