"""Pages of branches of a ledger in memory, the most recently used first.

A cursor names the branch that the page before ended with, and when that was used. A branch that was used
since has moved to the front; its place is then looked for from there, a bounded number of steps at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from router.ledger.branch import Branch
from router.ledger.store import Line, Page

MAX_PASSED: Final = 10_000
"""Branches that one page looks at in vain; then it is empty, and the next one goes on."""


class _Cursor(NamedTuple):
    name: str = ""
    at_s: float = float("inf")
    """When the branch of that name was used."""
    before_s: float = float("inf")
    """The page shows what was not used after this."""


def page(
    newest: Branch | None,
    named: Callable[[str], Branch | None],
    *,
    cursor: str | None,
    limit: int,
    used_after_s: float,
) -> Page:
    """The page after ``cursor``; of branches that were used after ``used_after_s``."""
    name, at_s, before_s = _read(cursor)
    known = named(name)
    branch = known.older if known is not None and known.used_s == at_s else newest
    last, passed = known, 0
    while branch is not None and branch.used_s > before_s and passed < MAX_PASSED:
        last, branch = branch, branch.older
        passed += 1
    lines: list[Line] = []
    if branch is not None and branch.used_s <= before_s:
        while branch is not None and branch.used_s > used_after_s and len(lines) < limit:
            lines.append(branch.line())
            last, branch = branch, branch.older
            before_s = last.used_s
    if branch is None or last is None or branch.used_s <= used_after_s:
        return Page(tuple(lines), None)
    return Page(tuple(lines), f"{last.id}/{last.used_s!r}/{before_s!r}")


def _read(cursor: str | None) -> _Cursor:
    try:
        name, at_s, before_s = (cursor or "").split("/")
        return _Cursor(name, float(at_s), float(before_s))
    except ValueError:
        return _Cursor()
