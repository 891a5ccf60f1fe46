"""Which branches a client's conversation has, in a ledger in memory."""

from typing import Final

from router.ledger.branch import Branch
from router.ledger.sharded import Sharded

MAX_BRANCHES: Final = 1_000
"""Of one owner: the bound on what ending a conversation does at once. More are not known as the owner's."""


class Owners:
    """Branches by owner. Most owners have one branch; only those of several pay for a table."""

    def __init__(self) -> None:
        self._owned: Sharded[bytes, Branch | dict[str, Branch]] = Sharded()

    def __len__(self) -> int:
        return len(self._owned)

    def of(self, owner: bytes) -> tuple[Branch, ...]:
        """The branches of an owner; none for the empty one."""
        owned = self._owned.get(owner)
        if owned is None:
            return ()
        return tuple(owned.values()) if isinstance(owned, dict) else (owned,)

    def set(self, branch: Branch, owner: bytes) -> None:
        """Make ``branch`` the owner's; nobody's, where ``owner`` is empty or has too many already."""
        if branch.owner == owner:
            return
        self._leave(branch)
        if not owner:
            return
        owned = self._owned.get(owner)
        if owned is None:
            self._owned.set(owner, branch)
        elif not isinstance(owned, dict):
            self._owned.set(owner, {owned.id: owned, branch.id: branch})
        elif len(owned) < MAX_BRANCHES:
            owned[branch.id] = branch
        else:
            return
        branch.owner = owner

    def _leave(self, branch: Branch) -> None:
        owner, branch.owner = branch.owner, b""
        if not owner:
            return
        owned = self._owned.get(owner)
        if isinstance(owned, dict):
            del owned[branch.id]
            if len(owned) == 1:
                self._owned.set(owner, next(iter(owned.values())))
        else:
            self._owned.remove(owner)
