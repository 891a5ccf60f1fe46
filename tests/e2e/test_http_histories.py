"""Histories as agents really resend them, verified in each way and with each store: the right answers."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from router.sim.config import EngineConfig
from tests.e2e.http_pool import (
    NO_CACHE_P,
    STOCK_33,
    Body,
    HttpPool,
    Message,
    alone,
    carries_handle,
    comparable,
    continued,
    events,
    fault,
    http_pool,
    legs,
    opening,
    second_turn,
    until,
    user,
)
from tests.ledger import servers

THINKING = replace(STOCK_33, reasoning=True, retokenise=0.3, prefix_cache=False)
"""Its template strips reasoning, and its answers are tokenised otherwise when they come back."""
KINDS = {"router": THINKING, "engine": replace(THINKING, plugin=True)}


@pytest.fixture(params=["memory", "redis"])
def store(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """The settings of a ledger."""
    if request.param == "memory":
        yield {}
        return
    servers.needed()
    with servers.server() as one:
        yield {"store": one.url, "store_timeout_s": 5.0, "store_connect_timeout_s": 5.0}


async def ask(pool: HttpPool, config: EngineConfig, body: Body, *reasons: str) -> Message:
    """A turn that is planned for one of these reasons, and answers what an engine alone does; its message."""
    answer = await pool.chat(body)
    assert answer.headers["x-boomerang-reason"] in reasons
    assert comparable(answer.content) == await alone(body, config)
    if not body["stream"]:
        message: Message = answer.json()["choices"][0]["message"]
        return message
    said: Message = {"content": "", "reasoning": ""}
    for event in events(answer.content):
        for choice in event["choices"] if event != "[DONE]" else ():
            for name in said:
                said[name] += choice["delta"].get(name) or ""
    return said


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", KINDS)
async def test_what_agents_do_to_their_histories(kind: str, stream: bool, store: dict[str, Any]) -> None:
    config = KINDS[kind]
    async with http_pool(config, **store) as pool:
        body = opening("first question", stream=stream)
        start = body["messages"]

        def after(messages: list[Message], text: str, **said: str) -> Body:
            return {**body, "messages": [*messages, {"role": "assistant", **said}, user(text)]}

        first = await ask(pool, config, body, "first_turn")
        second = after(start, "second", content=first["content"])  # without its reasoning
        said = await ask(pool, config, second, "extension")
        # As clients of older engines call it.
        renamed = {"content": said["content"], "reasoning_content": said["reasoning"]}
        third = after(second["messages"], "third", **renamed)
        said = await ask(pool, config, third, "extension")
        await ask(pool, config, third, "regenerated")
        edited = {**second, "messages": [*second["messages"][:-1], user("second, edited")]}
        await ask(pool, config, edited, "no_handle")  # the main line has it by now
        side = {**third, "messages": [*third["messages"], user("a title, please")]}
        await ask(pool, config, side, "extension")
        main = after(third["messages"], "fourth", content=said["content"], reasoning=said["reasoning"])
        await ask(pool, config, main, "fork")
        reminded = [start[0], user("first question <reminder>it is late</reminder>"), *main["messages"][2:]]
        await ask(pool, config, {**main, "messages": reminded}, "small_gain", "no_handle")
        assert await pool.metric("reused_tokens_total") > 1500
        await pool.idle()
        pool.sound()


@pytest.mark.parametrize("kind", KINDS)
async def test_of_equal_requests_at_once_one_carries_the_handle(kind: str, store: dict[str, Any]) -> None:
    """All with one id of the client's, too: none of them meets another at an engine."""
    async with http_pool(replace(KINDS[kind], retokenise=0.0), **store) as pool:
        body = opening()
        body = continued(body, await pool.turn(body))
        answers = await asyncio.gather(*(pool.chat(body, x_request_id="same") for _ in range(6)))
        assert {(answer.status_code, comparable(answer.content)) for answer in answers} == {
            (200, comparable(answers[0].content))
        }
        assert sum(map(carries_handle, legs(pool.p))) == 1
        sent = [*legs(pool.p), *legs(pool.d)]
        assert len({one.headers["x-request-id"] for one in sent}) == len(sent)
        read = [one.body["kv_transfer_params"]["remote_request_id"] for one in legs(pool.d)]
        assert len(set(read)) == len(read), "what P left serves one decode leg"
        pool.sound()


@pytest.mark.parametrize("header", ["", "x_claude_code_agent_id"])
async def test_sub_agents_of_one_session_at_once(header: str, store: dict[str, Any]) -> None:
    async with http_pool(NO_CACHE_P, **store) as pool:
        bodies = [opening(f"agent {number}") for number in range(5)]
        for turn in range(3):
            asked = [
                pool.chat(
                    body, x_claude_code_session_id="one", **({header: str(at)} if header and at else {})
                )
                for at, body in enumerate(bodies)
            ]
            answers = await asyncio.gather(*asked)
            plans = {answer.headers["x-boomerang-plan"] for answer in answers}
            assert plans == ({"pull"} if turn else {"cold"})
            bodies = [continued(body, answer.json()) for body, answer in zip(bodies, answers, strict=True)]
        pool.sound()


async def test_a_handle_is_given_up_before_its_engine_does() -> None:
    async with http_pool(NO_CACHE_P, decode_ttl_s=0.3, deadline_margin_s=0.299) as pool:
        second = await second_turn(pool)
        await asyncio.sleep(0.01)
        answer = await pool.chat(second)
        assert answer.headers["x-boomerang-reason"] == "expired"
        assert not any(map(carries_handle, legs(pool.p)))


async def test_who_finds_no_place_to_decode_is_not_prefilled() -> None:
    """P's blocks would wait for D under a lease, and D read others."""
    async with http_pool(max_turns_per_node=1) as pool:
        fault(pool.d, leg="decode", hang=True)
        holds = asyncio.create_task(pool.chat(opening("one")))
        await until(lambda: bool(legs(pool.d)), "its decode leg")
        waits = asyncio.create_task(pool.chat(opening("two")))
        await until(lambda: pool.router.context.admission.waiting == 1, "a turn that waits")
        assert len(legs(pool.p)) == 1
        holds.cancel()
        assert (await waits).status_code == 200
        await pool.idle()
