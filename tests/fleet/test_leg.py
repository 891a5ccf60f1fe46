"""What legs tell of nodes."""

import pytest

from router.engines.upstream import (
    Broken,
    Exhausted,
    NeverSent,
    Stale,
    TimedOut,
    TooLarge,
    Unsendable,
    UpstreamError,
)
from router.fleet.breaker import Verdict
from router.fleet.leg import Leg, busy_s, verdict_of, verdict_of_error

OK, BUSY, FAULT = Verdict


@pytest.mark.parametrize(
    ("status", "plain", "with_handle"),
    [
        (200, OK, OK),
        (400, OK, OK),
        (404, OK, OK),
        (429, BUSY, BUSY),
        (499, OK, OK),
        (500, FAULT, None),
        (501, OK, OK),
        (502, FAULT, None),
        (503, BUSY, BUSY),
        (504, FAULT, None),
    ],
)
def test_statuses(status: int, plain: Verdict, with_handle: Verdict | None) -> None:
    assert verdict_of(status, with_handle=False) is plain
    assert verdict_of(status, with_handle=True) is with_handle


@pytest.mark.parametrize(
    ("error", "plain", "with_handle"),
    [
        (NeverSent("refused"), FAULT, FAULT),
        (TimedOut("connect", 1.0), FAULT, FAULT),
        (TimedOut("answer", 1.0), FAULT, None),
        (Broken("reset"), FAULT, FAULT),
        (TooLarge("too large"), FAULT, FAULT),
        (Stale("closed"), None, None),
        (Exhausted("no files"), None, None),
        (Unsendable("a line break"), None, None),
    ],
)
def test_errors(error: UpstreamError, plain: Verdict | None, with_handle: Verdict | None) -> None:
    assert verdict_of_error(error, with_handle=False) is plain
    assert verdict_of_error(error, with_handle=True) is with_handle


@pytest.mark.parametrize(
    ("told", "expected"),
    [("", 1.0), ("0", 1.0), ("7", 7.0), (" 7 ", 7.0), ("86400", 60.0), ("9" * 30, 1.0), ("²", 1.0),
     ("-3", 1.0), ("Wed, 21 Oct 2026 07:28:00 GMT", 1.0)],
)  # fmt: skip
def test_retry_after_is_bounded(told: str, expected: float) -> None:
    assert busy_s([("content-type", "x"), ("retry-after", told)] if told else []) == expected


class Heard:
    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []

    def tell(
        self, key: str, verdict: Verdict, why: str = "", *, peer: str = "", on_trial: bool = False
    ) -> None:
        self.told.append((verdict, why, on_trial) if not peer else (key, verdict, why, peer, on_trial))

    def busy(self, key: str, for_s: float = 1.0) -> None:
        self.told.append(("busy", for_s))

    def untried(self, key: str) -> None:
        self.told.append(("untried",))


def leg(*, on_trial: bool = False) -> tuple[Leg, list[tuple[object, ...]]]:
    heard = Heard()
    return Leg(heard, "d:a:1", with_handle=False, on_trial=on_trial), heard.told


def test_the_first_verdict_counts_and_a_fault_that_comes_after_it() -> None:
    one, told = leg()
    one.answered(200)
    one.answered(200)
    one.failed("broke off")
    one.failed("and again")
    one.end()
    assert told == [(OK, "", False), (FAULT, "broke off", False)]


def test_nothing_makes_good_for_a_fault() -> None:
    one, told = leg()
    one.broke(Broken("reset"))
    one.answered(200)
    assert told == [(FAULT, "reset", False)]


def test_busy_is_for_as_long_as_the_engine_says() -> None:
    one, told = leg()
    one.answered(429, [("retry-after", "5")])
    assert told == [("busy", 5.0), (BUSY, "status 429", False)]


def test_a_leg_on_trial_decides_once_and_gives_its_place_back_without_a_verdict() -> None:
    one, told = leg(on_trial=True)
    one.answered(200)
    one.failed("later")
    one.end()
    assert told == [(OK, "", True), (FAULT, "later", False)]
    for error in (None, Stale("closed")):
        one, told = leg(on_trial=True)
        if error is not None:
            one.broke(error)
        one.end()
        assert told == [("untried",)]


def test_what_a_decode_leg_read_from_may_be_to_blame() -> None:
    heard = Heard()
    one = Leg(heard, "d", with_handle=False, on_trial=True, peer="p")
    one.answered(500)
    assert heard.told == [
        ("d", FAULT, "status 500", "p", True),
        ("p", FAULT, "d read from it: status 500", "d", False),
    ]


@pytest.mark.parametrize(
    ("error", "shared"),
    [(TimedOut("answer", 1.0), True), (TimedOut("connect", 1.0), False), (Broken("reset"), False)],
)
def test_a_connection_is_the_nodes_own(error: UpstreamError, shared: bool) -> None:
    heard = Heard()
    Leg(heard, "d", with_handle=False, on_trial=False, peer="p").broke(error)
    assert len(heard.told) == (2 if shared else 1)


def test_a_busy_node_says_nothing_of_its_peer() -> None:
    heard = Heard()
    Leg(heard, "d", with_handle=False, on_trial=False, peer="p").answered(503)
    assert heard.told == [("busy", 1.0), ("d", BUSY, "status 503", "p", False)]
