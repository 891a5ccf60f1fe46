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
        self._by_origin: Counter[str] = Counter()

    def __iter__(self) -> Iterator[R]:
        return iter(tuple(self._calls))

    def begun(self, call: R) -> None:
        self._calls.add(call)
        self._by_origin[call.origin] += 1

    def ended(self, call: R) -> None:
        """Each call ends once."""
        self._calls.remove(call)
        self._by_origin[call.origin] -= 1
        if not self._by_origin[call.origin]:
            del self._by_origin[call.origin]

    def by_origin(self) -> Mapping[str, int]:
        """How many are running, by origin; origins without any are left out."""
        return dict(self._by_origin)
