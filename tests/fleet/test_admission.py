"""Who may run, who waits, and who is next."""

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.fleet.admission import Admission, AdmissionLimits, Full, Place, TenantFull


class Turns:
    """Turns that ask for places, and the order in which those that had to wait were woken."""

    def __init__(self, admission: Admission) -> None:
        self.admission = admission
        self.woken: list[Place] = []

    def place(self, tenant: str = "", *, fits: Callable[[], bool] = lambda: True) -> Place:
        def free() -> int | None:
            return None if fits() else 0

        place = Place(tenant.encode(), fits, free, lambda: self.woken.append(place))
        return place

    def enter(self, tenant: str = "", *, fits: Callable[[], bool] = lambda: True) -> Place:
        place = self.place(tenant, fits=fits)
        self.admission.enter(place)
        return place


def has_room(admission: Admission, key: str, limit: int | None) -> bool:
    return admission.room(key, limit) != 0


def turns_of(**limits: int) -> Turns:
    return Turns(Admission(AdmissionLimits(**{"turns": 1, "waiting": 100, **limits})))


def test_a_turn_runs_at_once_where_there_is_a_place() -> None:
    turns = turns_of(turns=2)
    place = turns.place()
    assert turns.admission.enter(place)
    assert (turns.admission.running, turns.admission.waiting) == (1, 0)
    assert turns.woken == []


def test_the_one_that_leaves_lets_the_next_one_run() -> None:
    turns = turns_of()
    first, second, third = (turns.enter() for _ in range(3))
    assert [first.admitted, second.admitted, third.admitted] == [True, False, False]
    turns.admission.leave(first)
    assert turns.woken == [second]
    assert (turns.admission.running, turns.admission.waiting) == (1, 1)


def test_the_queue_is_bounded() -> None:
    turns = turns_of(waiting=1)
    turns.enter()
    turns.enter()
    with pytest.raises(Full) as refused:
        turns.enter()
    assert not isinstance(refused.value, TenantFull)
    assert turns.admission.waiting == 1


def test_a_tenant_has_no_more_than_its_share_running_or_waiting() -> None:
    turns = turns_of(turns=10, tenant_turns=2)
    first = turns.enter("a")
    turns.enter("a")
    with pytest.raises(TenantFull):
        turns.enter("a")
    assert turns.enter("b").admitted
    turns.admission.leave(first)
    assert turns.enter("a").admitted


def test_a_free_place_goes_round_the_tenants() -> None:
    turns = turns_of()
    running = turns.enter("a")
    names = {turns.enter(tenant): tenant for tenant in ("a", "a", "a", "b", "c", "b")}
    for _ in range(len(names)):
        turns.admission.leave(running)
        running = turns.woken[-1]
    assert "".join(names[place] for place in turns.woken) == "abcaba"


def test_who_does_not_fit_holds_nobody_up() -> None:
    turns = turns_of(turns=2)
    room = False
    blocked = turns.enter(fits=lambda: room)
    assert not blocked.admitted
    assert turns.enter().admitted
    room = True
    turns.admission.look()
    assert turns.woken == [blocked]


def test_one_who_comes_later_does_not_overtake() -> None:
    turns = turns_of()
    first, second = turns.enter(), turns.enter()
    third = turns.place()
    turns.admission.leave(first)
    assert second.admitted
    assert not turns.admission.enter(third)


def test_a_node_has_room_until_its_limit() -> None:
    turns = turns_of(turns=10, node_turns=2)
    admission = turns.admission
    one, two = turns.enter(), turns.enter()
    admission.move(one, {"p", "d"})
    assert has_room(admission, "d", None)
    admission.move(two, {"p", "d"})
    assert not has_room(admission, "d", None)
    assert has_room(admission, "d", 3)
    assert not has_room(admission, "d", 1)
    admission.move(one, {"d"})
    assert has_room(admission, "p", None)
    admission.leave(one)
    assert has_room(admission, "d", None)


def test_room_on_a_node_wakes_who_waits_for_it() -> None:
    turns = turns_of(turns=10, node_turns=1)
    admission = turns.admission
    running = turns.enter()
    admission.move(running, {"p", "d"})
    waits_for_p = turns.enter(fits=lambda: has_room(admission, "p", None))
    assert not waits_for_p.admitted
    admission.move(running, {"d"})  # the prefill leg has ended
    assert turns.woken == [waits_for_p]


def test_one_who_gives_up_waiting_takes_nothing_with_it() -> None:
    turns = turns_of()
    first, second, third = (turns.enter() for _ in range(3))
    turns.admission.leave(second)
    turns.admission.leave(second)
    turns.admission.leave(first)
    assert turns.woken == [third]


def test_leaving_twice_counts_once() -> None:
    turns = turns_of(turns=3)
    first, second = turns.enter(), turns.enter()
    turns.admission.leave(first)
    turns.admission.leave(first)
    assert turns.admission.running == 1
    turns.admission.leave(second)
    assert turns.admission.running == 0


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("pq"), st.integers(0, 30)), max_size=60),
    st.integers(1, 4),
    st.integers(1, 3),
)
def test_limits_hold_and_nobody_waits_for_nothing(
    asks: list[tuple[str, str, int]], most: int, per_node: int
) -> None:
    admission = Admission(AdmissionLimits(turns=most, node_turns=per_node, waiting=1000))
    open_places: list[tuple[Place, str]] = []

    def ask(tenant: str, node: str) -> None:
        def take() -> None:
            admission.move(place, {node})

        place = Place(tenant.encode(), node, lambda: admission.room(node, None), take)
        if admission.enter(place) and not place.nodes:
            take()
        open_places.append((place, node))

    for tenant, node, leaves in asks:
        ask(tenant, node)
        if open_places and leaves < 20:
            place, _ = open_places.pop(leaves % len(open_places))
            admission.leave(place)
        running = [(place, at) for place, at in open_places if place.admitted]
        on_node = Counter(at for _, at in running)
        assert len(running) == admission.running <= most
        assert all(count <= per_node for count in on_node.values())
        assert admission.waiting == len(open_places) - len(running)
        if len(running) < most:
            assert all(on_node[at] == per_node for place, at in open_places if not place.admitted)
    while open_places:
        admission.leave(open_places.pop()[0])
    assert (admission.running, admission.waiting) == (0, 0)
    assert has_room(admission, "p", 1)
    assert has_room(admission, "q", 1)


def test_turns_that_have_named_no_node_yet_count_against_all() -> None:
    """A freed slot is one turn's, not that of all who wait: until it has planned, nobody else is let in."""
    turns = turns_of(turns=100, node_turns=1)
    admission = turns.admission

    def enter() -> Place:
        place = Place(b"", "model", lambda: admission.room("d", None), lambda: turns.woken.append(place))
        admission.enter(place)
        return place

    first, *others = (enter() for _ in range(5))
    assert [place.admitted for place in others] == [False] * 4
    admission.move(first, {"d"})
    assert turns.woken == []
    admission.leave(first)
    assert turns.woken == others[:1]
    admission.move(others[0], {"d"})
    assert turns.woken == others[:1]


def test_a_look_that_is_asked_for_in_the_midst_of_one_comes_after_it() -> None:
    """Asking for free nodes can change them, and whoever is told of that looks again."""
    turns = turns_of(turns=1)
    admission = turns.admission
    nested = 0

    def free() -> int | None:
        nonlocal nested
        nested += 1
        if nested < 20:
            admission.look()
        return None

    def enter() -> Place:
        place = Place(b"", "model", free, lambda: turns.woken.append(place))
        admission.enter(place)
        return place

    places = [enter() for _ in range(4)]
    for place in places:
        admission.leave(place)
    assert (admission.running, admission.waiting) == (0, 0)
    assert turns.woken == places[1:]


def test_a_look_asks_once_for_each_kind() -> None:
    turns = turns_of(turns=10)
    asked = 0

    def free() -> int | None:
        nonlocal asked
        asked += 1
        return 0

    for _ in range(100):
        turns.admission.enter(Place(b"", "model", free, lambda: None))
    asked = 0
    turns.admission.look()
    assert asked == 1
