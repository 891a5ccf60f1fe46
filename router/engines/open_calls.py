"""Which calls of a client are running: to close them, and to count them by origin."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Generic, Protocol, TypeVar


class Running(Protocol):
    """A call that has begun."""

    @property
    def origin(self) -> str: ...


R = TypeVar("R", bound=Running)


class OpenCalls(Generic[R]):
    """The running calls of one client. Iterating is safe while calls end."""

    def __init__(self) -> None:
        self._calls: set[R] = set()
        self.begun = self._calls.add
        """Take in a call."""
        self.ended = self._calls.remove
        """Let a call go; each ends once."""

    def __iter__(self) -> Iterator[R]:
        return iter(tuple(self._calls))

    def by_origin(self) -> Mapping[str, int]:
        """How many are running, by origin; origins without any are left out."""
        return dict(Counter(call.origin for call in self))
