import re
from dataclasses import replace
from pathlib import Path

from router.check import judge
from router.check.findings import Verdict
from router.check.node_rules import PROBED_PAIR_RULES
from router.check.observed import Assumed, PairSeen, PoolSeen
from router.fleet.node import Role, State
from tests.check.values import good_pair, node

DOCS = Path(__file__).parents[2] / "docs" / "check.md"


def test_a_good_pool_has_one_row_of_each_kind_and_all_are_ok() -> None:
    pair = good_pair()
    findings = judge.judge(PoolSeen((pair.prefill, pair.decode), (pair,)), Assumed())
    assert {each.check for each in findings} == set(judge.CHECKS)
    assert {each.verdict for each in findings} == {Verdict.OK}
    assert [each.check for each in findings if each.subject == pair.subject] == [
        *PROBED_PAIR_RULES,
        *judge.PLAYED_RULES,
    ]


def test_what_was_not_reached_is_skipped_and_says_why() -> None:
    pair = replace(good_pair(), second=None, reference=None, release=None, stopped="no handle")
    rows = {each.check: each for each in judge.judge_pair(pair, Assumed())}
    assert rows["reuse"].verdict is Verdict.SKIPPED
    assert rows["reuse"].seen == "no handle"
    assert rows["connector"].verdict is Verdict.OK


def test_a_pair_with_a_dead_node_has_one_row() -> None:
    dead = replace(node(Role.PREFILL), state=State.STARTING)
    (row,) = judge.judge_pair(PairSeen(dead, node(Role.DECODE), stopped="p cannot be reached"), Assumed())
    assert (row.check, row.verdict) == ("connector", Verdict.SKIPPED)


def test_engine_ids_are_compared_over_the_pool() -> None:
    pair = good_pair()
    twin = replace(pair, prefill=node(Role.PREFILL, "10.0.0.7"))
    found = judge.engine_ids([pair, twin])
    assert found is not None
    assert found.verdict is Verdict.ERROR
    assert "10.0.0.1:8000 and http://10.0.0.7:8000" in found.seen
    assert judge.engine_ids([replace(pair, first=None)]) is None


def test_every_row_is_documented_once_and_none_that_does_not_exist() -> None:
    documented = re.findall(r"^\| `([a-z_]+)` \|", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    assert documented == list(judge.CHECKS)
