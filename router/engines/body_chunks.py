"""Iterates over a body that is still coming."""

from collections.abc import Coroutine
from typing import Protocol


class Body(Protocol):
    """What can tell the next piece of a body."""

    def next(self) -> Coroutine[None, None, bytes]:
        """Raises StopAsyncIteration at the end."""


class BodyChunks:
    """A plain object: a generator left early would linger until it is collected."""

    __slots__ = ("_body",)

    def __init__(self, body: Body) -> None:
        self._body = body

    def __aiter__(self) -> "BodyChunks":
        return self

    def __anext__(self) -> Coroutine[None, None, bytes]:
        return self._body.next()
