"""On a growing conversation every turn after the first reuses all that D holds and the new prompt shares.

Less at most one stride of the token digests; and all of it where nothing is retokenised or stripped.
"""

from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

from router.sim.template import TemplateOptions
from router.sim.tokens import encode
from router.turn.digest import STRIDE_TOKENS
from tests.e2e.asks import CHAT, COMPLETIONS, MODEL, Ask, Body, Message, passage, phrase, tool
from tests.e2e.conversations import Agent, Habits
from tests.e2e.growing import Ids, ids_of, shared
from tests.e2e.setups import Mode, Setup, pair
from tests.e2e.stage import Turn
from tests.e2e.world import World

THRESHOLD_TOKENS = 64
TURNS = 8


@dataclass(frozen=True, slots=True)
class Reused:
    """One turn after the first: what could have been reused, and what was."""

    held: int
    shared: int
    reused: int
    """All three in tokens."""
    plan: str


def grow(setup: Setup, agent: Agent, *, stream: bool, turns: int = TURNS) -> list[Reused]:
    """Let a conversation grow, checking each answer."""
    random, seen = Random(5), list[Reused]()
    before: Ids | None = None
    with World(setup) as world:
        for _ in range(turns):
            messages = list(agent.history)
            if messages[-1]["role"] == "assistant":
                messages.append({"role": "user", "content": phrase(random)})
            body: Body = {"model": MODEL, "messages": messages, "stream": stream}
            if agent.tools:
                body["tools"] = [tool(name) for name in agent.tools]
            turn = world.run(world.turn(Ask(CHAT, body, "acme", "c")))
            before = _note(world, turn, before, seen)
            agent.history = [*messages, *agent.message(turn.spoken.choices[0], random)]
            world.pause(3.0)
    return seen


def _note(world: World, turn: Turn, before: Ids | None, seen: list[Reused]) -> Ids:
    world.run(world.check([turn], disturbed=False))
    assert turn.status == 200
    now = world.run(ids_of(world.reference, turn.ask))
    if before is not None:
        common = shared(before.held, now.prompt)
        seen.append(Reused(len(before.held), common, turn.reused_tokens, turn.plan))
    return now


def agent(*, reasoning: str = "reasoning", tools: tuple[str, ...] = ()) -> Agent:
    habits = Habits(
        "acme", passage(7, 150), tools, reasoning, respaces=False, streams=0.0, names_session="", nulls=False
    )
    made = Agent(habits, "c")
    made.history.append({"role": "user", "content": passage(8, 120)})
    return made


KINDS = [
    pytest.param("engine", True, {"version": "0.32.0"}, id="engine-streamed-0.32"),
    pytest.param("engine", False, {"version": "0.32.0"}, id="engine-whole-0.32"),
    pytest.param("router", True, {"version": "0.33.0"}, id="router-streamed-0.33"),
    pytest.param("router", False, {"version": "0.32.0"}, id="router-whole-0.32"),
    pytest.param("router", False, {"render": "403"}, id="router-by-tokenize"),
    pytest.param("router", True, {"version": "0.33.0", "block_size": 128}, id="router-blocks-of-128"),
    pytest.param("auto", True, {"version": "0.33.0"}, id="auto-without-plugin"),
    pytest.param("auto", False, {"plugin": True}, id="auto-with-plugin"),
]


@pytest.mark.parametrize(("mode", "stream", "engine"), KINDS)
@pytest.mark.parametrize("prefix_cache", [False, True], ids=["no-cache", "prefix-cache"])
@pytest.mark.parametrize(
    "traits",
    [
        pytest.param({"reasoning": True}, id="reasoning-stripped"),
        pytest.param({"retokenise": 0.3}, id="retokenised"),
        pytest.param({"reasoning": True, "retokenise": 0.1, "tool_rate": 1.0}, id="tools"),
    ],
)
def test_reuse_is_within_one_stride_of_what_is_shared(
    mode: Mode, stream: bool, engine: dict[str, Any], prefix_cache: bool, traits: dict[str, Any]
) -> None:
    setup = pair(mode, **engine, **traits, prefix_cache=prefix_cache)
    tools = ("read", "grep") if "tool_rate" in traits else ()
    seen = grow(setup, agent(tools=tools), stream=stream)
    assert len(seen) == TURNS - 1
    block = setup.prefills[0].block_size
    for turn in seen:
        least = turn.shared - STRIDE_TOKENS
        assert turn.shared > STRIDE_TOKENS + THRESHOLD_TOKENS, "too little is shared to tell anything"
        assert turn.reused > least, turn
        assert turn.plan in ("pull", "local"), turn
        if not prefix_cache:
            assert turn.reused <= turn.shared, turn
            assert turn.reused == turn.held or turn.reused % block == 0, turn


@pytest.mark.parametrize(("mode", "stream", "engine"), KINDS)
def test_all_that_is_held_is_reused_where_histories_only_grow(
    mode: Mode, stream: bool, engine: dict[str, Any]
) -> None:
    append_only = {"template": TemplateOptions(strip_reasoning=False), "prefix_cache": False}
    seen = grow(pair(mode, **engine, **append_only), agent(), stream=stream)
    assert [turn.shared for turn in seen] == [turn.held for turn in seen]
    assert [turn.reused for turn in seen] == [turn.held for turn in seen]


@pytest.mark.parametrize("kv_groups", [1, 2])
@pytest.mark.parametrize("mode", ["engine", "router"])
def test_whole_handles_go_where_none_can_be_cut(mode: Mode, kv_groups: int) -> None:
    append_only = {"template": TemplateOptions(strip_reasoning=False), "prefix_cache": False}
    seen = grow(pair(mode, kv_groups=kv_groups, **append_only), agent(), stream=False)
    assert [turn.reused for turn in seen] == [turn.held for turn in seen]


@pytest.mark.parametrize("as_ids", [False, True], ids=["text", "ids"])
@pytest.mark.parametrize("mode", ["engine", "router"])
def test_a_growing_plain_prompt(mode: Mode, as_ids: bool) -> None:
    text, random, seen = passage(9, 300), Random(6), list[Reused]()
    from_ids = list(encode(text)) if as_ids else []
    before: Ids | None = None
    with World(pair(mode, prefix_cache=False)) as world:
        for _ in range(TURNS):
            body: Body = {"model": MODEL, "prompt": from_ids or text, "max_tokens": 20}
            turn = world.run(world.turn(Ask(COMPLETIONS, body, "acme", "c")))
            before = _note(world, turn, before, seen)
            if as_ids:
                from_ids = [*before.held, before.answer[-1], *encode(phrase(random))]
            else:
                text += turn.spoken.choices[0].content + " " + phrase(random)
    for reused in seen:
        assert reused.reused > reused.shared - STRIDE_TOKENS, reused
        if as_ids:
            assert reused.reused == reused.held, reused


def test_what_is_counted_past_the_real_tokens_is_cut() -> None:
    """T9: a handle that claims more than prompt and answer is never sent whole."""
    setup = pair("router", overcount_tokens=5, prefix_cache=False)
    seen = grow(setup, agent(reasoning=""), stream=False)
    for turn in seen:
        assert turn.shared - STRIDE_TOKENS < turn.reused <= turn.shared, turn


def test_conversations_that_share_nothing_reuse_nothing() -> None:
    """Without anything in common there is nothing to reuse, and nothing is reused."""
    with World(pair("router", prefix_cache=False)) as world:
        for number in range(3):
            messages: list[Message] = [{"role": "user", "content": passage(100 + number, 200)}]
            turn = world.run(world.turn(Ask(CHAT, {"model": MODEL, "messages": messages}, "acme", "c")))
            assert (turn.plan, turn.reason, turn.reused_tokens) == ("cold", "first_turn", 0)
