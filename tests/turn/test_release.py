"""Handles that nobody will use: how they are counted, and with whom they may ride."""

from dataclasses import replace

import pytest

from router.fleet.node import Engine, Node, Role, State, node_of
from router.fleet.snapshot import Pool
from router.ledger.store import Handle, Leaving
from router.turn import release
from router.turn.release import Cause, Due, Releases, pairs

TTL_S = 100.0


class Clock:
    now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


def node(role: Role, host: str, **engine: object) -> Node:
    engine = {"models": ("m",), "engine_id": f"e-{host}", **engine}
    known = replace(Engine(), **engine)  # type: ignore[arg-type]
    return replace(node_of(f"http://{host}:8000", role), state=State.READY, reachable=True, engine=known)


P, D = node(Role.PREFILL, "p"), node(Role.DECODE, "d")
POOL = Pool.of((P, D))


def handle(tokens: int = 100, decode: Node = D, *, ends_s: float = 1_000.0 + TTL_S) -> Handle:
    return Handle(b"{}", decode.key, decode.engine.engine_id or "", tokens, tokens, ends_s)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def releases(clock: Clock) -> Releases:
    return Releases(clock)


def take(releases: Releases) -> Due:
    due = next(releases.waiting())
    releases.take(due)
    return due


def test_what_waits_counts_until_it_is_released(releases: Releases) -> None:
    releases.add(handle(100), Cause.ENDED)
    releases.add(handle(50), Cause.BUDGET)
    assert releases.changed.is_set()
    assert (len(releases), releases.pinned_tokens(D.key), releases.lost_tokens(D.key)) == (2, 150, 0)
    due = take(releases)
    assert (due.handle.tokens, due.cause) == (100, Cause.ENDED)
    assert (len(releases), releases.pinned_tokens(D.key), releases.lost_tokens(D.key)) == (1, 150, 0)
    releases.released(due)
    assert releases.pinned_tokens(D.key) == 50


def test_what_failed_counts_until_its_deadline(releases: Releases, clock: Clock) -> None:
    releases.add(handle(100), Cause.ENDED)
    releases.failed(take(releases))
    releases.lost(handle(30, ends_s=1_050.0))
    assert releases.pinned_tokens(D.key) == releases.lost_tokens(D.key) == 130
    clock.now_s = 1_050.0
    releases.pass_time()
    assert releases.pinned_tokens(D.key) == releases.lost_tokens(D.key) == 100
    clock.now_s += TTL_S
    releases.pass_time()
    assert releases.pinned_tokens(D.key) == 0


def test_what_waits_too_long_is_gone_by_itself(releases: Releases, clock: Clock) -> None:
    releases.add(handle(), Cause.ENDED)
    clock.now_s += TTL_S
    releases.pass_time()
    assert (len(releases), releases.pinned_tokens(D.key)) == (0, 0)


def test_what_comes_back_is_the_next_one(releases: Releases) -> None:
    releases.add(handle(1), Cause.ENDED)
    releases.add(handle(2), Cause.ENDED)
    first = take(releases)
    releases.back(first)
    assert next(releases.waiting()) is first


def test_what_cannot_go_yet_lets_others_pass(releases: Releases) -> None:
    releases.add(handle(1), Cause.ENDED)
    releases.add(handle(2), Cause.ENDED)
    releases.last(next(releases.waiting()))
    assert [due.handle.tokens for due in releases.waiting()] == [2, 1]


def test_one_look_takes_in_a_bounded_number(releases: Releases, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release, "MAX_SEEN", 3)
    for tokens in range(1, 6):
        releases.add(handle(tokens), Cause.ENDED)
    assert [due.handle.tokens for due in releases.waiting()] == [1, 2, 3]


def test_the_queue_is_bounded(releases: Releases, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release, "MAX_QUEUED", 3)
    for tokens in range(1, 6):
        releases.add(handle(tokens), Cause.ENDED)
    assert [due.handle.tokens for due in releases.waiting()] == [3, 4, 5]
    assert releases.pinned_tokens(D.key) == 15, "what is left to expire is pinned all the same"


@pytest.mark.parametrize("leaving", list(Leaving))
def test_what_leaves_the_ledger_by_itself_is_released_or_counted(
    releases: Releases, leaving: Leaving
) -> None:
    releases.left(handle(100), leaving)
    assert releases.pinned_tokens(D.key) == 100
    is_lost = leaving is Leaving.UNSURE
    assert [due.cause for due in releases.waiting()] == ([] if is_lost else [Cause(leaving)])
    assert releases.lost_tokens(D.key) == (100 if is_lost else 0)


def test_the_nodes_that_are_known_to_cope_are_bounded(
    releases: Releases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release, "MAX_PROVEN", 2)
    for key in (P.key, "another", P.key, "a third"):
        releases.prove(key, "e-p")
    releases.add(handle(), Cause.ENDED)
    assert releases.along(replace(P, key="another"), POOL, ()) is None
    assert releases.along(P, POOL, ()) is not None


# Riding along


def test_a_node_that_never_took_a_handle_takes_no_strangers(releases: Releases) -> None:
    releases.add(handle(), Cause.ENDED)
    assert releases.along(P, POOL, ()) is None
    releases.prove(P.key, "e-p")
    due = releases.along(P, POOL, ())
    assert due is not None
    assert (len(releases), releases.along(P, POOL, ())) == (0, None)


def test_a_new_process_has_to_show_it_again(releases: Releases) -> None:
    releases.add(handle(), Cause.ENDED)
    releases.prove(P.key, "another")
    assert releases.along(P, POOL, ()) is None


@pytest.mark.parametrize(
    ("decode", "cooling"),
    [
        (D, {(P.key, D.key)}),
        (replace(D, reachable=False), ()),
        (node(Role.DECODE, "d", engine_id="e-restarted"), ()),
        (node(Role.DECODE, "d", models=("other",)), ()),
        (None, ()),
    ],
    ids=["cooling", "unreachable", "restarted", "other model", "gone"],
)
def test_whom_it_does_not_ride_with(
    releases: Releases, decode: Node | None, cooling: set[tuple[str, str]]
) -> None:
    releases.prove(P.key, "e-p")
    releases.add(handle(), Cause.ENDED)
    pool = Pool.of((P, decode) if decode is not None else (P,))
    assert releases.along(P, pool, cooling) is None
    assert len(releases) == 1


def test_one_that_cannot_ride_does_not_keep_the_next_from_it(releases: Releases) -> None:
    away = node(Role.DECODE, "away")
    releases.prove(P.key, "e-p")
    releases.add(handle(1, away), Cause.ENDED)
    releases.add(handle(2), Cause.ENDED)
    due = releases.along(P, POOL, ())
    assert due is not None
    assert due.handle.tokens == 2


def test_pairs_serve_a_model_in_common() -> None:
    assert pairs(P, D)
    assert pairs(node(Role.PREFILL, "p", models=()), D), "unknown"
    assert pairs(node(Role.PREFILL, "p", models=("m", "lora")), D)
    assert not pairs(node(Role.PREFILL, "p", models=("other",)), D)
