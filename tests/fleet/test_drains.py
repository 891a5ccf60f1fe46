"""An operator's wish outlives a node's entry, and of two about one node the later counts."""

import pytest

from router.fleet import drains as module
from router.fleet.drains import LIFTED_KEPT_S, Drains, DrainWish


def test_a_drain_stands_until_it_is_lifted() -> None:
    drains = Drains()
    assert drains.why("p") is None
    drains.drain("p", "repairs", 1.0)
    assert drains.why("p") == "repairs"
    drains.lift("p", 2.0)
    assert drains.why("p") is None


def test_lifting_what_was_never_drained_is_nothing_to_tell() -> None:
    drains = Drains()
    drains.lift("p", 1.0)
    assert drains.told(1.0) == {}


def test_the_later_wish_counts() -> None:
    one, other = Drains(), Drains()
    one.drain("p", "repairs", 1.0)
    assert other.hear(one.told(1.0)) == ("p",)
    assert other.hear(one.told(1.0)) == (), "no news"
    other.lift("p", 2.0)
    assert other.hear(one.told(2.0)) == (), "an older wish"
    assert other.why("p") is None
    assert one.hear(other.told(2.0)) == ("p",)
    assert one.why("p") is None


def test_a_lifted_drain_is_forgotten_in_time() -> None:
    drains = Drains()
    drains.drain("p", "repairs", 1.0)
    drains.drain("d", "repairs", 1.0)
    drains.lift("p", 2.0)
    assert drains.told(2.0) == {"d": DrainWish(1.0, "repairs"), "p": DrainWish(2.0, None)}
    assert drains.told(2.0 + LIFTED_KEPT_S) == {"d": DrainWish(1.0, "repairs")}


def test_their_number_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WISHES", 2)
    drains = Drains()
    for at, key in enumerate(("a", "b", "a", "c")):
        drains.drain(key, "x", float(at))
    assert {key: drains.why(key) for key in "abc"} == {"a": "x", "b": None, "c": "x"}
