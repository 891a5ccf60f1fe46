"""Facts reach every subscriber, and no subscriber disturbs a turn."""

import dataclasses
import typing

import pytest

from router.telemetry import facts as module
from router.telemetry.facts import (
    DiscoveryFailed,
    Fact,
    Facts,
    HandleFact,
    LedgerFailed,
    LegFailed,
    LegSpan,
    NodeChanged,
    NodesListed,
    Outcome,
    PromptMismatch,
    RequestRefused,
    SpanEvent,
    TaskFailed,
)

ALL: list[Fact] = [
    RequestRefused("brg-1", "c", "chat", 400, "bad_request"),
    HandleFact(Outcome.USED, "d1", 128),
    PromptMismatch("m", "p1", 128),
    LegFailed("brg-1", "prefill", "p1", "broken", with_handle=True, action="cold_retry"),
    LedgerFailed("find", "down"),
    NodeChanged("p1", "prefill", "ready", "probed"),
    NodesListed("dns://e:1", 2),
    DiscoveryFailed("dns://e:1", "x"),
    TaskFailed("sweep", "boom"),
]


def test_every_subscriber_hears_every_fact_in_order() -> None:
    facts = Facts()
    heard: list[tuple[str, Fact]] = []
    facts.subscribe(lambda fact: heard.append(("one", fact)))
    facts.subscribe(lambda fact: heard.append(("two", fact)))
    for fact in ALL:
        facts.publish(fact)
    assert heard == [(name, fact) for fact in ALL for name in ("one", "two")]


def test_who_asks_for_some_kinds_hears_no_others() -> None:
    facts = Facts()
    heard: list[tuple[str, Fact]] = []
    facts.publish(ALL[0])
    facts.subscribe(lambda fact: heard.append(("some", fact)), NodeChanged, HandleFact)
    facts.subscribe(lambda fact: heard.append(("all", fact)))
    for fact in ALL:
        facts.publish(fact)
    assert [fact for who, fact in heard if who == "all"] == ALL
    some = [fact for fact in ALL if isinstance(fact, NodeChanged | HandleFact)]
    assert [fact for who, fact in heard if who == "some"] == some
    late: list[Fact] = []
    facts.subscribe(late.append, HandleFact)
    facts.publish(ALL[1])
    facts.publish(ALL[0])
    assert late == ALL[1:2]


def test_nobody_need_listen() -> None:
    Facts().publish(ALL[0])


def test_a_subscriber_that_raises_is_told_of_and_the_others_still_hear() -> None:
    errors: list[Exception] = []
    heard: list[Fact] = []
    facts = Facts(on_error=errors.append)
    boom = ValueError("boom")

    def raises(_: Fact) -> None:
        raise boom

    facts.subscribe(raises)
    facts.subscribe(heard.append)
    facts.publish(ALL[0])
    facts.publish(ALL[1])
    assert heard == ALL[:2]
    assert errors == [boom, boom]


@pytest.mark.parametrize("reporter", [None, lambda error: 1 / 0])
def test_publishing_never_raises_even_if_nobody_can_be_told(reporter: typing.Any) -> None:
    facts, heard = Facts(on_error=reporter), []  # type: tuple[Facts, list[Fact]]

    def raises(_: Fact) -> None:
        raise ValueError("boom")

    facts.subscribe(raises)
    facts.subscribe(heard.append)
    facts.publish(ALL[0])
    assert heard == ALL[:1]


def test_a_cancelled_turn_is_not_held_up() -> None:
    """What is no Exception (a cancellation, an interrupt) is not a subscriber's fault to swallow."""
    facts = Facts()

    def interrupted(_: Fact) -> None:
        raise KeyboardInterrupt

    facts.subscribe(interrupted)
    with pytest.raises(KeyboardInterrupt):
        facts.publish(ALL[0])


@pytest.mark.parametrize("fact", [fact for fact in ALL if not isinstance(fact, HandleFact)])
def test_facts_are_frozen_but_for_those_of_every_turn(fact: typing.Any) -> None:
    name = dataclasses.fields(fact)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(fact, name, "other")


def test_the_union_of_facts_names_every_fact_class() -> None:
    defined = {
        value
        for value in vars(module).values()
        if isinstance(value, type) and dataclasses.is_dataclass(value) and value.__module__ == module.__name__
    }
    parts = {LegSpan, SpanEvent}
    assert defined - parts == set(typing.get_args(Fact))
