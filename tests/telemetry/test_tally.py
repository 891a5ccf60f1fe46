"""What is added up until the metrics are read is what would have been told at once."""

from dataclasses import replace

from prometheus_client import CollectorRegistry, generate_latest

from router.telemetry.facts import EndedBy, Fact, HandleFact, Outcome, Parted
from router.telemetry.metrics import Metrics
from router.telemetry.tally import MOST_TURNS, Tally
from tests.telemetry.test_metrics import TURN, read

TURNS: list[Fact] = [
    TURN,
    replace(TURN, first_byte_s=3.0, total_s=70.0),
    replace(TURN, plan="cold", reason="first_turn", prompt_tokens=None, completion_tokens=None),
    replace(TURN, stream=False, verify_s=None, prefill_s=None, waited_s=0.5),
    replace(TURN, reused_tokens=None, moved_tokens=None, ended_by=EndedBy.CLIENT, status=499),
    replace(TURN, gap_s=None, decode_s=None, first_byte_s=None, estimate_s=None),
]
HANDLES: list[Fact] = [
    HandleFact(Outcome.STORED, "d1", 100),
    HandleFact(Outcome.CUT, "d1", 50, "router", Parted.ANSWER),
    HandleFact(Outcome.CUT, "d2", 70, "router", Parted.ANSWER),
    HandleFact(Outcome.CUT, "d2", 70, "router"),
]


def test_told_at_the_end_or_at_once_it_comes_to_the_same() -> None:
    late, soon = CollectorRegistry(), CollectorRegistry()
    at_the_end, at_once = Metrics(late), Metrics(soon)
    for fact in (*TURNS, *HANDLES, *TURNS, *HANDLES):
        at_the_end(fact)
        at_once(fact)
        at_once.pour()
    assert read(late) == read(soon)
    assert read(late)["boomerang_handle_tokens_total", (("outcome", "cut"),)] == 380.0


def test_nothing_is_told_twice() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    metrics(TURN)
    first = read(registry)
    assert read(registry) == first


def test_what_nothing_was_counted_of_has_no_series() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    metrics(replace(TURN, prompt_tokens=None, completion_tokens=None, first_byte_s=None, estimate_s=None))
    text = generate_latest(registry).decode()
    for name in ("prompt_tokens", "completion_tokens", "time_to_first_byte_seconds", "estimate_ratio"):
        assert f'boomerang_{name}_total{{plan="pull"' not in text
        assert f'boomerang_{name}_count{{plan="pull"' not in text
    assert 'boomerang_turn_seconds_count{plan="pull"} 1.0' in text


def test_turns_that_nobody_looks_at_are_told_in_time() -> None:
    tally = Tally()
    told = [tally.turn(TURN) for _ in range(MOST_TURNS)]
    assert told == [False] * (MOST_TURNS - 1) + [True]
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    for _ in range(10 * MOST_TURNS):
        metrics(TURN)
        assert sum(len(turns) for turns in metrics._tally.turns.values()) < MOST_TURNS
    counted = read(registry)
    labels = (("ended_by", "engine"), ("plan", "pull"), ("reason", "extension"))
    assert counted["boomerang_turns_total", labels] == 10 * MOST_TURNS
