"""Doubts end by themselves, and there are never too many of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.fleet.doubts import _MAX_ENTRIES, Doubted, Doubts


@pytest.mark.parametrize(("after_s", "cooling"), [(0.0, True), (29.9, True), (30.0, False), (1000.0, False)])
def test_a_pair_cools_for_its_time(after_s: float, cooling: bool) -> None:
    doubts = Doubts(pair_s=30.0)
    doubts.cool("p1", "d1", 100.0)
    assert (("p1", "d1") in doubts.cooling(100.0 + after_s)) is cooling


def test_only_that_pair_cools() -> None:
    doubts = Doubts()
    doubts.cool("p1", "d1", 0.0)
    doubts.cool("p2", "d1", 1.0)
    assert doubts.cooling(2.0) == {("p1", "d1"), ("p2", "d1")}


def test_failing_again_begins_anew() -> None:
    doubts = Doubts(pair_s=30.0)
    doubts.cool("p1", "d1", 0.0)
    doubts.cool("p1", "d1", 20.0)
    assert doubts.cooling(49.0) == {("p1", "d1")}
    assert doubts.cooling(50.0) == frozenset()


@pytest.mark.parametrize(("after_s", "mistrusted"), [(0.0, True), (59.0, True), (60.0, False), (61.0, False)])
def test_a_model_is_mistrusted_for_its_time(after_s: float, mistrusted: bool) -> None:
    doubts = Doubts(model_s=60.0)
    doubts.mistrust("m", 5.0)
    assert doubts.mistrusts("m", 5.0 + after_s) is mistrusted
    assert not doubts.mistrusts("other", 5.0 + after_s)


def test_nothing_is_doubted_at_first() -> None:
    doubts = Doubts()
    assert doubts.cooling(0.0) == frozenset()
    assert not doubts.mistrusts("m", 0.0)
    assert not doubts.mistrusts("", -1.0)


def test_two_routers_share_doubts_where_they_are_told() -> None:
    one, other = Doubts(pair_s=30.0, model_s=60.0), Doubts(pair_s=30.0, model_s=60.0)
    one.cool("p", "d", 0.0)
    one.mistrust("m", 0.0)
    one.taint("http://p", "engine-a")
    assert other.cooling(0.0) == frozenset()
    assert not other.mistrusts("m", 0.0)
    other.hear(one.told(10.0), 10.0)
    assert other.cooling_s(10.0) == {("p", "d"): 20.0}
    assert other.mistrusted_s(10.0) == {"m": 50.0}
    assert other.salt("http://p", "engine-a") == one.salt("http://p", "engine-a") is not None


def test_what_is_heard_neither_shortens_nor_outlasts_a_doubt() -> None:
    doubts = Doubts(pair_s=30.0)
    doubts.cool("p", "d", 10.0)
    told = Doubted({("p", "d"): 20.0, ("over", "d"): 9.0, ("nonsense", "d"): 1e12})
    doubts.hear(told, 10.0)
    assert doubts.cooling_s(10.0) == {("p", "d"): 30.0, ("nonsense", "d"): 30.0}


def test_a_salt_of_one_s_own_stays() -> None:
    one, other = Doubts(), Doubts()
    for doubts in (one, other):
        doubts.taint("http://p", "engine-a")
    salt = other.salt("http://p", "engine-a")
    other.hear(one.told(0.0), 0.0)
    assert other.salt("http://p", "engine-a") == salt, "what is computed under it is found again"


def test_engines_that_came_and_went_do_not_pile_up() -> None:
    doubts = Doubts()
    for number in range(_MAX_ENTRIES + 10):
        doubts.taint(f"http://p{number}", "engine-a")
    assert len(doubts.tainted) == _MAX_ENTRIES
    assert doubts.salt("http://p0", "engine-a") is None
    assert doubts.salt("http://p10", "engine-a") is not None


def test_an_engine_that_nothing_was_heard_of_for_long_is_tainted() -> None:
    doubts = Doubts()
    for number in range(_MAX_ENTRIES + 1):
        doubts.unconfirmed(f"http://p{number}")
    assert doubts.tainted == ("http://p0",)
    assert doubts.confirm("http://p0", verifies=False)
    assert not doubts.confirm("http://p1", verifies=False)


def test_there_are_never_more_than_the_bound_and_the_oldest_goes_first() -> None:
    doubts = Doubts()
    for index in range(_MAX_ENTRIES + 10):
        doubts.cool(f"p{index}", "d", 0.0)
        doubts.mistrust(f"m{index}", 0.0)
    assert len(doubts.cooling(1.0)) == _MAX_ENTRIES
    assert ("p9", "d") not in doubts.cooling(1.0)
    assert ("p10", "d") in doubts.cooling(1.0)
    assert not doubts.mistrusts("m9", 1.0)
    assert doubts.mistrusts("m10", 1.0)


def test_what_is_over_goes_before_what_is_not() -> None:
    doubts = Doubts(pair_s=30.0)
    for index in range(_MAX_ENTRIES - 1):
        doubts.cool(f"p{index}", "d", 100.0)
    doubts.cool("over", "d", 0.0)
    doubts.cool("new", "d", 110.0)
    assert len(doubts.cooling(110.0)) == _MAX_ENTRIES, "every pair that cools is still there"


def test_what_is_doubted_again_is_the_newest_again() -> None:
    doubts = Doubts()
    doubts.cool("p", "d", 0.0)
    doubts.mistrust("m", 0.0)
    for index in range(_MAX_ENTRIES - 1):
        doubts.cool(f"p{index}", "d", 0.0)
        doubts.mistrust(f"m{index}", 0.0)
    doubts.cool("p", "d", 1.0)
    doubts.mistrust("m", 1.0)
    doubts.cool("one more", "d", 1.0)
    doubts.mistrust("one more", 1.0)
    assert ("p", "d") in doubts.cooling(1.0)
    assert doubts.mistrusts("m", 1.0)
    assert not doubts.mistrusts("m0", 1.0)


def test_a_tainted_cache_is_salted_as_long_as_its_engine_lives() -> None:
    doubts = Doubts()
    assert doubts.salt("http://p1", "engine-a") is None
    doubts.taint("http://p1", "engine-a")
    salt = doubts.salt("http://p1", "engine-a")
    assert salt is not None
    assert len(salt) == 32
    assert doubts.salt("http://p1", "engine-a") == salt, "what is computed under it is found again"
    assert doubts.salt("http://p1", None) == salt, "an engine that is not known is not a new one"
    assert doubts.salt("http://p2", "engine-a") is None
    assert doubts.salt("http://p1", "engine-b") is None, "its cache went with its process"
    assert doubts.salt("http://p1", "engine-a") is None


def test_a_taint_of_an_engine_that_was_not_known_stays() -> None:
    doubts = Doubts()
    doubts.taint("http://p1", None)
    salt = doubts.salt("http://p1", "engine-a")
    assert salt is not None
    assert doubts.salt("http://p1", "engine-b") == salt


def test_a_second_taint_has_another_salt() -> None:
    doubts = Doubts()
    doubts.taint("http://p1", "engine-a")
    first = doubts.salt("http://p1", "engine-a")
    doubts.taint("http://p1", "engine-a")
    assert doubts.salt("http://p1", "engine-a") not in (first, None)


TIMES = st.integers(0, 100)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("xy"), TIMES), max_size=20), TIMES)
def test_a_pair_cools_exactly_until_its_last_failure_is_long_enough_ago(
    failures: list[tuple[str, str, int]], now_s: int
) -> None:
    failures.sort(key=lambda failure: failure[2])
    doubts, last = Doubts(pair_s=30.0), {}
    for prefill, decode, at_s in failures:
        doubts.cool(prefill, decode, at_s)
        last[prefill, decode] = at_s
    assert doubts.cooling(now_s) == {pair for pair, at_s in last.items() if at_s + 30.0 > now_s}


def test_a_kind_of_prompt_is_trusted_once_it_was_compared() -> None:
    doubts = Doubts()
    assert not doubts.agreed(("p", "process", "model", frozenset({"tools"})))
    doubts.agree(("p", "process", "model", frozenset({"tools"})))
    assert doubts.agreed(("p", "process", "model", frozenset({"tools"})))
    assert not doubts.agreed(("p", "another process", "model", frozenset({"tools"})))
    assert not doubts.agreed(("p", "process", "model", frozenset({"tools", "documents"})))


def test_trust_is_bounded_and_lost_in_the_safe_direction() -> None:
    doubts = Doubts()
    for number in range(10_000):
        doubts.agree(number)
    assert sum(doubts.agreed(number) for number in range(10_000)) <= 4096
    assert doubts.agreed(9_999)


@pytest.mark.parametrize(
    ("sent", "verifies", "sound"),
    [(False, False, True), (False, True, True), (True, True, True), (True, False, False)],
)
def test_an_answer_settles_what_was_sent_to_be_verified(*, sent: bool, verifies: bool, sound: bool) -> None:
    doubts = Doubts()
    if sent:
        doubts.unconfirmed("http://p")
    assert doubts.confirm("http://p", verifies=verifies) is sound
    assert doubts.confirm("http://p", verifies=False), "settled once"


def test_a_tainted_engine_is_used_under_its_salt_until_its_process_ends() -> None:
    doubts = Doubts()
    assert doubts.salt("http://p", "one") is None
    doubts.taint("http://p", "one")
    salt = doubts.salt("http://p", "one")
    assert salt is not None
    assert doubts.salt("http://p", None) == salt, "not known to be another process"
    assert doubts.salt("http://other", "one") is None
    assert doubts.salt("http://p", "two") is None
    assert doubts.salt("http://p", "two") is None


def test_the_ranks_of_one_process_share_its_taint() -> None:
    doubts = Doubts()
    doubts.taint("http://p1", "one_dp0")
    salt = doubts.salt("http://p1", "one_dp1")
    assert salt is not None
    assert doubts.salt("http://p1", "one") == salt
    assert doubts.salt("http://p1", "two_dp0") is None


def test_what_is_doubted_can_be_looked_at() -> None:
    doubts = Doubts(pair_s=30.0, model_s=60.0)
    doubts.cool("p", "d", 100.0)
    doubts.mistrust("m", 100.0)
    doubts.taint("http://p", None)
    assert doubts.cooling_s(110.0) == {("p", "d"): 20.0}
    assert doubts.mistrusted_s(110.0) == {"m": 50.0}
    assert doubts.tainted == ("http://p",)
    assert (doubts.cooling_s(130.0), doubts.mistrusted_s(160.0)) == ({}, {})
