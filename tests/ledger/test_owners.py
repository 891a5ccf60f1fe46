"""Who may end which branch."""

import pytest

from router.ledger import owners
from router.ledger.branch import Branch
from router.ledger.owners import Owners
from router.ledger.store import Trace, owner_of


def branch(name: str) -> Branch:
    return Branch(name, Trace("p", "d", 1, 1, 0, 0.0))


def test_an_owner_is_a_tenants_own_name_for_a_conversation() -> None:
    assert owner_of(b"tenant", "c") == owner_of(b"tenant", "c")
    assert len({owner_of(b"one", "c"), owner_of(b"two", "c"), owner_of(b"one", "d"), owner_of(b"", "c")}) == 4
    assert owner_of(b"tenant", "") == b""


@pytest.mark.parametrize("count", [1, 2, 5])
def test_branches_come_and_go(count: int) -> None:
    known, branches = Owners(), [branch(str(number)) for number in range(count)]
    for one in branches:
        known.set(one, b"me")
        known.set(one, b"me")
    assert known.of(b"me") == tuple(branches)
    for gone, one in enumerate(branches, 1):
        known.set(one, b"")
        assert known.of(b"me") == tuple(branches[gone:])
        assert one.owner == b""
    assert len(known) == 0


def test_a_branch_has_one_owner() -> None:
    known, one = Owners(), branch("one")
    known.set(one, b"me")
    known.set(one, b"you")
    assert (known.of(b"me"), known.of(b"you")) == ((), (one,))
    assert known.of(b"") == ()


def test_an_owner_has_a_bounded_number_of_branches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owners, "MAX_BRANCHES", 3)
    known, branches = Owners(), [branch(str(number)) for number in range(5)]
    for one in branches:
        known.set(one, b"me")
    assert known.of(b"me") == tuple(branches[:3])
    assert branches[4].owner == b""
