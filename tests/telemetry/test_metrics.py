"""Every fact moves the series it should, and no label can grow without bound."""

from dataclasses import replace
from itertools import chain, product
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from router.fleet.node import Node, Role, State
from router.fleet.pool import Pool
from router.ledger.store import Absence, LedgerStats, Relation
from router.telemetry.facts import (
    DiscoveryFailed,
    EndedBy,
    Fact,
    HandleFact,
    LedgerFailed,
    LegFailed,
    LegFault,
    NodeChanged,
    NodesListed,
    Outcome,
    Parted,
    Phase,
    PromptMismatch,
    RequestRefused,
    TaskFailed,
    TurnEnded,
    UsageAfterRelease,
)
from router.telemetry.metrics import (
    CALL_BUCKETS_S,
    GAP_BUCKETS_S,
    RATIO_BUCKETS,
    TTFT_BUCKETS_S,
    TURN_BUCKETS_S,
    Metrics,
    StateCollector,
    build_info,
)
from router.turn.handle import Uncut, Unusable
from router.turn.plan import Kind, Reason
from router.turn.request import Endpoint, Unsplit

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]

TURN = TurnEnded(
    turn_id="brg-1",
    client_id="client-1",
    conversation="conversation-1",
    endpoint="chat",
    model="model-1",
    stream=True,
    plan="pull",
    reason="extension",
    prefill="p1",
    decode="d1",
    status=200,
    ended_by=EndedBy.ENGINE,
    phase=Phase.DONE,
    detail="",
    prompt_tokens=821,
    reused_tokens=768,
    completion_tokens=20,
    finish_reason="stop",
    waited_s=None,
    estimate_s=0.2,
    verify_s=0.004,
    prefill_s=0.13,
    gap_s=0.0007,
    decode_s=1.1,
    moved_tokens=700,
    first_byte_s=0.2,
    total_s=1.5,
)


class Counted:
    """The router's metrics, read as Prometheus reads them."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.metrics = Metrics(self.registry)

    def read(self) -> Series:
        """Every sample of the exposition but for times of creation and what is zero."""
        return read(self.registry)

    def after(self, *facts: Fact) -> Series:
        for fact in facts:
            self.metrics(fact)
        return self.read()


def read(registry: CollectorRegistry) -> Series:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
        if not sample.name.endswith("_created") and sample.value
    }


def series(name: str, value: float = 1.0, **labels: str) -> Series:
    return {(f"boomerang_{name}", tuple(sorted(labels.items()))): value}


def without_histograms(found: Series) -> Series:
    return {key: value for key, value in found.items() if not key[0].endswith(("_bucket", "_sum", "_count"))}


def test_nothing_happened_yet() -> None:
    assert Counted().read() == {}


def test_a_turn_moves_its_counters() -> None:
    assert without_histograms(Counted().after(TURN)) == {
        **series("turns_total", plan="pull", reason="extension", ended_by="engine"),
        **series("answers_total", endpoint="chat", status="200"),
        **series("prompt_tokens_total", 821, plan="pull"),
        **series("reused_tokens_total", 768, plan="pull"),
        **series("moved_tokens_total", 700, plan="pull"),
        **series("completion_tokens_total", 20, plan="pull"),
    }


@pytest.mark.parametrize(
    ("name", "field", "labels", "value", "bounds"),
    [
        (
            "time_to_first_byte_seconds",
            "first_byte_s",
            {"plan": "pull", "stream": "yes"},
            0.2,
            TTFT_BUCKETS_S,
        ),
        ("decode_leg_seconds", "decode_s", {"plan": "pull"}, 1.1, TURN_BUCKETS_S),
        ("prefill_leg_seconds", "prefill_s", {"plan": "pull"}, 0.13, TTFT_BUCKETS_S),
        ("verify_seconds", "verify_s", {}, 0.004, TTFT_BUCKETS_S),
        ("prefill_decode_gap_seconds", "gap_s", {}, 0.0007, GAP_BUCKETS_S),
    ],
)
def test_a_turn_is_seen_in_its_histograms(
    name: str, field: str, labels: dict[str, str], value: float, bounds: tuple[float, ...]
) -> None:
    found = Counted().after(TURN)
    assert found.items() >= series(f"{name}_count", 1.0, **labels).items()
    assert found.items() >= series(f"{name}_sum", value, **labels).items()
    buckets = {key: count for key, count in found.items() if key[0] == f"boomerang_{name}_bucket"}
    assert len(buckets) == len([bound for bound in bounds if bound >= value]) + 1
    unknown: dict[str, Any] = {field: None}
    assert f"boomerang_{name}_count" not in {key[0] for key in Counted().after(replace(TURN, **unknown))}


def test_every_turn_is_timed_from_end_to_end() -> None:
    found = Counted().after(TURN, replace(TURN, total_s=0.5))
    assert found.items() >= series("turn_seconds_sum", 2.0, plan="pull").items()
    assert found.items() >= series("turn_seconds_bucket", 1.0, plan="pull", le="0.5").items()


def test_only_turns_that_waited_are_seen_to_wait() -> None:
    found = Counted().after(TURN, replace(TURN, waited_s=0.05))
    assert found.items() >= series("admission_wait_seconds_sum", 0.05).items()
    assert found.items() >= series("admission_wait_seconds_count").items()


def test_an_answer_that_is_not_streamed_has_no_first_token() -> None:
    found = Counted().after(replace(TURN, stream=False))
    assert found.items() >= series("time_to_first_byte_seconds_count", plan="pull", stream="no").items()


def test_tokens_are_reused_of_prompts_whose_length_is_known() -> None:
    """Else the share of them could be more than all."""
    found = Counted().after(replace(TURN, prompt_tokens=None))
    assert "boomerang_reused_tokens_total" not in {key[0] for key in found}


def test_a_call_of_the_store_is_timed() -> None:
    counted = Counted()
    counted.metrics.ledger_call("find", 0.003)
    found = counted.read()
    assert found.items() >= series("ledger_call_seconds_sum", 0.003, operation="find").items()
    assert found.items() >= series("ledger_call_seconds_bucket", operation="find", le="0.005").items()


@pytest.mark.parametrize(
    ("changes", "ratio"),
    [
        ({}, 1.0),
        ({"first_byte_s": 0.5}, 2.5),
        ({"first_byte_s": 0.5, "waited_s": 0.3}, 1.0),
        ({"stream": False}, None),
        ({"estimate_s": None}, None),
        ({"first_byte_s": None}, None),
    ],
)
def test_how_good_an_estimate_was_is_told_of_streamed_turns(
    changes: dict[str, Any], ratio: float | None
) -> None:
    """From the plan on: for how long a turn waits for its place nobody estimates."""
    turn, counted = replace(TURN, **changes), Counted()
    assert turn.estimate_ratio == (pytest.approx(ratio) if ratio is not None else None)
    counted.metrics(turn)
    assert len(series("estimate_ratio_count", plan="pull").keys() & counted.read().keys()) == (
        ratio is not None
    )


def test_a_turn_that_took_no_time_was_still_measured() -> None:
    found = Counted().after(replace(TURN, verify_s=0.0, gap_s=0.0, prefill_s=0.0, first_byte_s=0.0))
    assert found.items() >= series("verify_seconds_count").items()
    assert found.items() >= series("prefill_leg_seconds_count", plan="pull").items()


@pytest.mark.parametrize("tokens", [None, 0])
def test_tokens_that_are_not_known_are_not_counted(tokens: int | None) -> None:
    names = {key[0] for key in Counted().after(replace(TURN, prompt_tokens=tokens, reused_tokens=tokens))}
    assert "boomerang_prompt_tokens_total" not in names
    assert "boomerang_reused_tokens_total" not in names


@pytest.mark.parametrize("phase", list(Phase))
def test_a_client_that_leaves_is_counted_by_phase(phase: Phase) -> None:
    found = Counted().after(replace(TURN, ended_by=EndedBy.CLIENT, status=499, phase=phase))
    assert found.items() >= series("client_departures_total", phase=phase).items()
    assert found.items() >= series("answers_total", endpoint="chat", status="499").items()


@pytest.mark.parametrize("ended_by", [EndedBy.ENGINE, EndedBy.ROUTER, EndedBy.FAULT])
def test_others_are_no_departures(ended_by: EndedBy) -> None:
    found = Counted().after(replace(TURN, ended_by=ended_by))
    assert "boomerang_client_departures_total" not in {key[0] for key in found}
    assert found.items() >= series("turns_total", plan="pull", reason="extension", ended_by=ended_by).items()


@pytest.mark.parametrize(
    ("fact", "expected"),
    [
        (
            HandleFact(Outcome.CUT, "d1", 768, "router"),
            {
                **series("handles_total", outcome="cut", detail="router"),
                **series("handle_tokens_total", 768, outcome="cut"),
            },
        ),
        (HandleFact(Outcome.LOST, "d1", 0), series("handles_total", outcome="lost", detail="")),
        (
            HandleFact(Outcome.DIVERGED, "d1", 300, "diverged", Parted.HISTORY),
            {
                **series("handles_total", outcome="diverged", detail="diverged"),
                **series("handle_tokens_total", 300, outcome="diverged"),
                **series("divergences_total", parted="history", outcome="diverged"),
            },
        ),
        (
            RequestRefused("brg-1", "c", "chat", 413, "body_too_large"),
            series("refusals_total", code="body_too_large"),
        ),
        (
            LegFailed("brg-1", "prefill", "p1", "status 500", True, "cold_retry", LegFault.STATUS),
            {
                **series(
                    "leg_failures_total", role="prefill", node="p1", action="cold_retry", with_handle="yes"
                ),
                **series("leg_faults_total", role="prefill", fault="status"),
            },
        ),
        (
            LegFailed("brg-1", "decode", "d1", "reset", with_handle=False, action="fail"),
            {
                **series("leg_failures_total", role="decode", node="d1", action="fail", with_handle="no"),
                **series("leg_faults_total", role="decode", fault="broken"),
            },
        ),
        (PromptMismatch("model-1", "p1", 768), series("prompt_mismatches_total", node="p1")),
        (LedgerFailed("find", "time-out"), series("ledger_failures_total", operation="find")),
        (TaskFailed("sweep", "boom"), series("task_failures_total", task="sweep")),
        (
            NodeChanged("p1", "prefill", "ready", "probed"),
            series("node_changes_total", role="prefill", state="ready"),
        ),
        (
            NodeChanged("p1", "prefill", "ejected", "no answer", "probe_timed_out"),
            {
                **series("node_changes_total", role="prefill", state="ejected"),
                **series("node_ejections_total", role="prefill", node="p1", why="probe_timed_out"),
            },
        ),
        (NodesListed("dns://engines:8000", 3), {}),
        (
            DiscoveryFailed("dns://engines:8000", "no answer"),
            series("discovery_failures_total", source="dns://engines:8000"),
        ),
    ],
)  # fmt: skip
def test_each_fact_moves_its_own_series_and_no_other(fact: Fact, expected: Series) -> None:
    counted = Counted()
    assert counted.after(fact) == expected
    assert counted.after(fact) == {key: 2 * value for key, value in expected.items()}


HOSTILE = 'x" y="1"} 9\n# HELP \\ \x00 é'


def test_what_a_client_or_an_engine_says_is_never_a_label() -> None:
    named = "named-by-somebody"
    found = Counted().after(
        replace(
            TURN,
            turn_id=named,
            client_id=named,
            conversation=named,
            model=named,
            detail=named,
            finish_reason=named,
            prefill=named,
            decode=named,
        ),
        HandleFact(Outcome.USED, named, 5),
        LegFailed(named, "prefill", "p1", named, with_handle=False, action="fail"),
        PromptMismatch(named, "p1", 5),
        LedgerFailed("find", named),
        TaskFailed("sweep", named),
        NodeChanged(named, "prefill", "ready", named),
    )
    assert found
    assert not [key for key in found if named in str(key)]


def test_every_plan_and_reason_there_is_makes_a_bounded_number_of_series() -> None:
    reasons = [*Reason, *Absence, *Relation, *Uncut, *Unsplit, *Outcome]
    counted = Counted()
    for _ in range(2):
        for plan, reason in product(Kind, reasons):
            counted.metrics(replace(TURN, plan=plan, reason=reason))
        for outcome, detail in product(Outcome, chain([""], reasons, Unusable)):
            counted.metrics(HandleFact(outcome, "d1", 1, detail))
    found = counted.read()
    assert len([key for key in found if key[0] == "boomerang_turns_total"]) == len(Kind) * len(
        set(map(str, reasons))
    )
    assert len(found) < 2000


def test_values_with_odd_characters_do_not_break_the_exposition() -> None:
    found = Counted().after(LedgerFailed(HOSTILE, ""))
    assert found == series("ledger_failures_total", operation=HOSTILE)


def test_every_family_has_help_and_a_name_of_its_own() -> None:
    counted = Counted()
    counted.registry.register(StateCollector(a_pool, lambda: STATS, lambda: 0, lambda: 0))
    build_info(counted.registry, "1.0", "auto")
    families = list(text_string_to_metric_families(generate_latest(counted.registry).decode()))
    names = [family.name for family in families if not family.name.endswith("_created")]
    assert len(names) == len(set(names)) > 20
    for family in families:
        assert family.name.startswith("boomerang_")
        assert family.documentation.endswith(".")
        assert not family.name.endswith("_total") or family.type == "counter"


def test_buckets_grow() -> None:
    for bounds in (TTFT_BUCKETS_S, TURN_BUCKETS_S, GAP_BUCKETS_S, RATIO_BUCKETS, CALL_BUCKETS_S):
        assert sorted(set(bounds)) == list(bounds)


STATS = LedgerStats(
    branches=1,
    boundaries=2,
    handles=3,
    size_bytes=4,
    expired_handles=5,
    evicted_branches=6,
    evicted_handles=7,
)


def a_pool() -> Pool:
    return Pool.of(
        [
            Node("p1", "http://p1", Role.PREFILL, State.READY, in_flight=2),
            Node("d1", "http://d1", Role.DECODE, State.EJECTED, reason="not in a label"),
        ]
    )


def test_a_scrape_sees_nodes_legs_turns_and_the_ledger() -> None:
    registry = CollectorRegistry()
    servers = {"redis://s:1": True, "redis://s:2": False}
    registry.register(StateCollector(a_pool, lambda: STATS, lambda: 9, lambda: 4, lambda: servers))
    assert read(registry) == {
        **series("node_state", role="prefill", node="p1", state="ready"),
        **series("node_state", role="decode", node="d1", state="ejected"),
        **series("node_breaker", role="prefill", node="p1", circuit="closed"),
        **series("node_breaker", role="decode", node="d1", circuit="closed"),
        **series("open_legs", 2, role="prefill", node="p1"),
        **series("open_turns", 9),
        **series("waiting_turns", 4),
        **series("store_up", server="redis://s:1"),
        **series("ledger_branches", 1),
        **series("ledger_boundaries", 2),
        **series("ledger_handles", 3),
        **series("ledger_bytes", 4),
        **series("ledger_expired_handles_total", 5),
        **series("ledger_evicted_branches_total", 6),
        **series("ledger_evicted_handles_total", 7),
    }


def test_a_scrape_is_of_now() -> None:
    turns = [1]
    registry = CollectorRegistry()
    registry.register(StateCollector(Pool, lambda: STATS, lambda: turns[0], lambda: 0))
    assert read(registry).items() >= series("open_turns", 1).items()
    turns[0] = 0
    assert "boomerang_open_turns" not in {key[0] for key in read(registry)}


def test_two_routers_in_a_process_count_apart() -> None:
    one, other = Counted(), Counted()
    one.metrics(TURN)
    assert other.read() == {}


def test_version_and_mode_are_told() -> None:
    registry = CollectorRegistry()
    build_info(registry, "1.2.3", "router")
    assert read(registry) == series("build_info", version="1.2.3", verify="router")


def test_an_endpoint_of_every_kind_is_counted() -> None:
    found = Counted().after(*(replace(TURN, endpoint=endpoint) for endpoint in Endpoint))
    assert {dict(key[1])["endpoint"] for key in found if key[0] == "boomerang_answers_total"} == {
        "chat",
        "completions",
        "other",
    }


def test_a_node_that_is_gone_leaves_no_series_behind() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    for node in ("p:a:1", "p:b:1"):
        metrics(LegFailed("t", "prefill", node, "reset", with_handle=False, action="fail"))
        metrics(PromptMismatch("m", node, 1))
        metrics(NodeChanged(node, "prefill", "ejected", "reset", "trial"))
        metrics(UsageAfterRelease(node, 1, 0.5, 0.4))
    assert b"p:a:1" in generate_latest(registry)
    metrics(NodeChanged("p:a:1", "prefill", "gone", "not listed any more"))
    text = generate_latest(registry)
    assert b"p:a:1" not in text
    assert text.count(b'node="p:b:1",') + text.count(b'node="p:b:1"}') >= 4
    metrics(PromptMismatch("m", "p:a:1", 1))
    assert b'boomerang_prompt_mismatches_total{node="p:a:1"} 1.0' in generate_latest(registry), (
        "it came again"
    )
