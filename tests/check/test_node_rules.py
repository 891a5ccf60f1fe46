from dataclasses import replace

import pytest

from router.check import node_rules
from router.check.findings import Verdict
from router.check.observed import Assumed
from router.fleet.node import Engine, Role, State
from tests.check.values import node

OK, WARNING, ERROR, SKIPPED = Verdict.OK, Verdict.WARNING, Verdict.ERROR, Verdict.SKIPPED
P = node(Role.PREFILL)


@pytest.mark.parametrize(
    ("version", "verdict", "told"),
    [
        ("0.33.0", OK, "streams carry the handle"),
        ("0.34.1rc1.dev5+g0123", OK, "streams carry the handle"),
        ("1.0", OK, "streams carry the handle"),
        ("0.32.0", OK, "without the plugin"),
        ("0.26.0", OK, "without the plugin"),
        ("0.25.1", WARNING, "do not say when they end"),
        ("0.20.0", WARNING, "0.20.0"),
        ("0.0.0+unknown", WARNING, "0.0.0"),
        ("nightly", WARNING, "nightly"),
        (None, WARNING, "not told"),
    ],
)
def test_versions_say_what_they_can_do(version: str | None, verdict: Verdict, told: str) -> None:
    found = node_rules.version(node(Role.DECODE, version=version), Assumed())
    assert found.verdict is verdict
    assert told in found.seen
    assert bool(found.advice) == (verdict is WARNING)


def test_an_explicit_ttl_settles_an_old_version() -> None:
    old = node(Role.DECODE, version="0.25.1")
    assert node_rules.version(old, Assumed(ttl_is_set=True)).verdict is OK


def test_of_a_dead_node_only_that_is_said() -> None:
    dead = replace(P, state=State.STARTING, reason="connection refused", engine=Engine())
    (found,) = node_rules.judge_node(dead, Assumed())
    assert (found.check, found.verdict) == ("reachable", ERROR)
    assert "connection refused" in found.seen
    assert [each.check for each in node_rules.judge_node(P, Assumed())] == list(node_rules.NODE_RULES)


def test_an_address_is_told_once() -> None:
    dead = replace(P, state=State.EJECTED, reason=f"{P.origin}: connection refused", engine=Engine())
    (found,) = node_rules.judge_node(dead, Assumed())
    assert found.seen == dead.reason


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict"),
    [
        (("m",), ("m",), OK),
        (("m", "lora"), ("m",), WARNING),
        (("m",), ("n",), ERROR),
        ((), ("m",), ERROR),
    ],
)
def test_both_sides_serve_the_same_models(
    ours: tuple[str, ...], theirs: tuple[str, ...], verdict: Verdict
) -> None:
    found = node_rules.models(node(Role.PREFILL, models=ours), node(Role.DECODE, models=theirs))
    assert found.verdict is verdict


@pytest.mark.parametrize(
    ("theirs", "prefix_cache", "verdict"),
    [(16, True, OK), (32, True, ERROR), (32, None, ERROR), (32, False, WARNING), (None, True, SKIPPED)],
)
def test_block_sizes_have_to_be_equal(
    theirs: int | None, prefix_cache: bool | None, verdict: Verdict
) -> None:
    found = node_rules.block_sizes(
        node(Role.PREFILL, prefix_cache=prefix_cache), node(Role.DECODE, block_size=theirs)
    )
    assert found.verdict is verdict


def test_different_versions_are_a_warning() -> None:
    assert node_rules.versions_equal(P, node(Role.DECODE, version="0.32.0")).verdict is WARNING
    assert node_rules.versions_equal(P, node(Role.DECODE, version=None)).verdict is SKIPPED
    assert node_rules.versions_equal(P, node(Role.DECODE)).verdict is OK
