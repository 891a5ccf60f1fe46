import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.sim.config import EngineConfig
from router.sim.model import TAINT, Ask, answer
from router.sim.tokens import IM_END, decode, encode

TOOLS = (
    {"name": "look", "parameters": {"properties": {"place": {"type": "string"}, "far": {"type": "boolean"}}}},
    {"name": "wait", "parameters": {"properties": {"days": {"type": "integer"}, "mood": {"enum": ["up"]}}}},
)
SEEDS = st.binary(min_size=8, max_size=8)


def ask(**changes: Any) -> Ask:
    return Ask(**{"chat": True, "max_tokens": 4_000, **changes})


@given(SEEDS, st.floats(0, 1), st.sampled_from(["auto", "required", "none", "wait"]), st.booleans())
def test_the_deltas_of_an_answer_are_its_text(seed: bytes, rate: float, choice: str, thinking: bool) -> None:
    config = EngineConfig(retokenise=rate, tool_rate=0.5)
    plan = answer(seed, ask(tools=TOOLS, tool_choice=choice, thinking=thinking), config, clean=True)
    assert len(plan.ids) == len(plan.deltas)
    shown = "".join(text for deltas in plan.deltas for _, _, text in deltas)
    assert shown == decode(plan.ids)
    assert plan.complete_calls() == list(plan.calls)
    assert bool(plan.text("reasoning")) is thinking
    for call in plan.calls:
        assert json.loads(call.arguments)
    assert plan.ids[-1] == IM_END


@given(SEEDS)
def test_what_is_not_retokenised_encodes_to_itself(seed: bytes) -> None:
    plan = answer(seed, ask(tools=TOOLS, tool_choice="auto", thinking=True), EngineConfig(), clean=True)
    assert encode(decode(plan.ids, skip_specials=False)) == plan.ids


@given(SEEDS, st.integers(1, 40))
def test_a_limit_ends_the_same_answer_early(seed: bytes, limit: int) -> None:
    config = EngineConfig(reasoning=True)
    whole = answer(seed, ask(tools=TOOLS, tool_choice="required"), config, clean=True)
    part = answer(seed, ask(tools=TOOLS, tool_choice="required", max_tokens=limit), config, clean=True)
    assert part.ids == whole.ids[:limit]
    assert (part.finish_reason == "length") is (limit < len(whole.ids))
    assert len(part.complete_calls()) <= len(whole.calls)


@given(SEEDS)
def test_a_tainted_answer_looks_it(seed: bytes) -> None:
    for choice in ("none", "required"):
        plan = answer(seed, ask(tools=TOOLS, tool_choice=choice), EngineConfig(), clean=False)
        assert plan.text("content").startswith(TAINT)
        clean = answer(seed, ask(tools=TOOLS, tool_choice=choice), EngineConfig(), clean=True)
        assert TAINT not in clean.text("content")


@pytest.mark.parametrize("include", [True, False])
@given(seed=SEEDS)
def test_a_stop_string_ends_the_text(seed: bytes, include: bool) -> None:
    whole = answer(seed, ask(), EngineConfig(), clean=True).text("content")
    stop = whole[5:8]
    plan = answer(seed, ask(stop=(stop, "\0"), include_stop=include), EngineConfig(), clean=True)
    assert plan.text("content") == whole[: whole.index(stop) + (len(stop) if include else 0)]
    assert (plan.finish_reason, plan.stop_reason, plan.by_stop_string) == ("stop", stop, True)


@given(SEEDS)
def test_a_stop_token_ends_it_too(seed: bytes) -> None:
    whole = answer(seed, ask(), EngineConfig(), clean=True)
    plan = answer(seed, ask(stop_token_ids=(whole.ids[2],)), EngineConfig(), clean=True)
    assert plan.ids == whole.ids[: list(whole.ids).index(whole.ids[2]) + 1]
    assert (plan.finish_reason, plan.stop_reason, plan.by_stop_string) == ("stop", whole.ids[2], False)


@given(SEEDS)
def test_json_where_it_was_asked_for(seed: bytes) -> None:
    assert json.loads(answer(seed, ask(json_answer=True), EngineConfig(), clean=True).text("content"))
