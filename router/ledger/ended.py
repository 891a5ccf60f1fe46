"""Which conversations were ended a while ago, for turns that were under way then. Pure.

A turn that began before its conversation's end and is over after it would bring back what the end gave up.
"""

from collections import OrderedDict
from typing import Final

MAX_ENDED: Final = 10_000
"""Ends that are remembered; of more than that the oldest are forgotten, and their late turns pin again."""


class Ended:
    """Ends by owner, for ``for_s`` seconds: longer than any turn that counts. Times are on one clock."""

    def __init__(self, for_s: float) -> None:
        self._for_s = for_s
        self._at_s: OrderedDict[bytes, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._at_s)

    def add(self, owner: bytes, now_s: float) -> None:
        """The owner's conversation was ended."""
        self._at_s[owner] = now_s
        self._at_s.move_to_end(owner)
        while self._at_s and (
            len(self._at_s) > MAX_ENDED or next(iter(self._at_s.values())) + self._for_s <= now_s
        ):
            self._at_s.popitem(last=False)

    def since(self, owner: bytes, began_s: float | None) -> bool:
        """Whether the owner's conversation was ended after a turn of it began."""
        ended_s = self._at_s.get(owner)
        return ended_s is not None and began_s is not None and began_s < ended_s
