import asyncio
import json
from random import Random
from typing import Any

import pytest

from router.engines.upstream import Broken, Call, Limits, TimedOut
from router.sim.engine import SimEngine
from router.sim.profiles import Profile
from tests.sim.pool import CHAT, Pool, system, user


async def until(condition: Any) -> None:
    """Let other tasks run until something is so; fails after many passes of the loop."""
    for _ in range(1_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came to that")


def call(body: bytes, answer_s: float | None = None) -> Call:
    return Call("POST", CHAT, (), body, Limits(answer_s=answer_s))


async def test_the_same_prompt_gets_the_same_answer_anywhere() -> None:
    pool = Pool()
    once = await pool.ask("x", {"messages": [user()]})
    again = await SimEngineAlone().ask([user()])
    assert once["choices"][0]["message"] == again["choices"][0]["message"]
    other = await pool.ask("x", {"messages": [user("what else?")]})
    assert other["choices"][0]["message"] != once["choices"][0]["message"]


class SimEngineAlone:
    async def ask(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        return await Pool().ask("d", {"messages": messages})


async def test_every_finished_turn_is_pinned_for_its_time() -> None:
    pool = Pool()
    await pool.turn([system(), user()])
    assert pool.d.pool.usage > 0
    assert len(pool.p.pins.by_request) == 0, "D's read has freed P's blocks"
    pool.clock.advance(480)
    pool.d.expire()
    assert pool.d.pool.usage == 0
    assert pool.d.counters.kv_expired == 1


async def test_a_lease_that_no_decode_renews_runs_out() -> None:
    pool = Pool(prefix_cache=False)
    first = await pool.prefill([system(), user()])
    pool.clock.advance(31)
    await pool.ask("d", {"messages": [system(), user()], "kv_transfer_params": first["kv_transfer_params"]})
    assert pool.p.counters.kv_expired == 1
    assert pool.kinds() == {"expired_read"}


async def test_heartbeats_keep_a_lease_while_decode_is_full() -> None:
    pool = Pool(decode={"profile": Profile(output_ms_per_token=1_000, concurrency=1)})
    first = await pool.prefill([system(), user()])
    busy = asyncio.ensure_future(
        pool.ask("d", {"prompt": "x", "max_tokens": 60, "ignore_eos": True}, "/v1/completions")
    )
    await until(lambda: pool.d.running)
    body = {"messages": [system(), user()], "kv_transfer_params": first["kv_transfer_params"]}
    await pool.ask("d", body)
    await busy
    assert pool.clock.now() > 1_059
    assert pool.kinds() == set()


async def test_params_without_a_direction_pin_for_ever() -> None:
    pool = Pool()
    nowhere = {"do_remote_prefill": False, "do_remote_decode": False}
    answer = await pool.ask("d", {"messages": [system(), user()], "kv_transfer_params": nowhere})
    assert answer["kv_transfer_params"]["do_remote_decode"] is True
    pool.clock.advance(10_000)
    pool.d.expire()
    assert len(pool.d.pins.by_request) == 1


async def test_no_params_no_pin_and_no_handle() -> None:
    pool = Pool()
    answer = await pool.ask("d", {"messages": [system(), user()]})
    assert answer["kv_transfer_params"] is None
    assert pool.d.pins.by_request == {}
    assert pool.d.pool.usage == 0


async def test_a_decode_engine_without_the_way_back_gives_no_handle() -> None:
    pool = Pool(decode={"bidirectional": False})
    leg: Any = await pool.turn([system(), user()])
    assert leg[1] is None
    assert pool.d.pins.by_request == {}


async def test_a_stop_string_leaves_no_handle() -> None:
    pool = Pool()
    params = (await pool.prefill([system(), user()]))["kv_transfer_params"]
    body = {"messages": [system(), user()], "stop": [" "], "kv_transfer_params": params}
    answer = await pool.ask("d", body)
    assert answer["choices"][0]["stop_reason"] == " "
    assert answer["kv_transfer_params"] is None
    assert pool.d.pins.by_request == {}


async def test_a_handle_hangs_a_prefill_engine_without_the_way_back() -> None:
    pool = Pool(prefill={"bidirectional": False, "prefix_cache": False})
    said, handle = await pool.turn([system(), user()])
    body = {
        "messages": [system(), user(), {"role": "assistant", **said}, user()],
        "kv_transfer_params": handle,
    }
    leg = asyncio.ensure_future(pool.post("p", body))
    await until(lambda: pool.p.running)
    assert (await pool.post("p", {"messages": [user()]}))[0] == 200, "others are served meanwhile"
    leg.cancel()
    await asyncio.wait({leg})
    assert [record.phase for record in pool.p.aborts] == ["prefill"]
    assert pool.p.pool.usage == 0
    assert pool.p.open_requests == {CHAT: 0}


async def test_a_refused_decode_frees_the_blocks_of_its_prefill() -> None:
    pool = Pool()
    params = (await pool.prefill([system(), user()]))["kv_transfer_params"]
    assert len(pool.p.pins.by_request) == 1
    refused = {"messages": [system(), user()], "temperature": -1, "kv_transfer_params": params}
    assert (await pool.post("d", refused))[0] == 400
    assert pool.p.pins.by_request == {}


async def test_a_client_that_leaves_mid_stream_aborts_and_pins_nothing() -> None:
    pool = Pool()
    params = (await pool.prefill([system(), user()]))["kv_transfer_params"]
    body = {"messages": [system(), user()], "stream": True, "kv_transfer_params": params}
    async with pool.upstream.stream("d", call(json.dumps(body).encode())) as stream:
        async for _ in stream.chunks():
            break
    assert [record.phase for record in pool.d.aborts] == ["decode"]
    assert pool.d.pins.by_request == {}
    assert (pool.d.pool.usage, pool.d.open_requests) == (0, {CHAT: 0})


async def test_requests_wait_for_blocks_until_a_pin_expires() -> None:
    pool = Pool(decode={"num_blocks": 100, "ttl_s": 100.0})
    await pool.turn([system(), user()])
    began = pool.clock.now()
    await pool.turn([system(), user("another one")], cache_salt="s")
    assert pool.clock.now() >= began + 100


async def test_eviction_forgets_the_oldest_prefix() -> None:
    pool = Pool(prefill={"num_blocks": 60, "lease_s": 0.0})
    assert pool.reused(await pool.prefill([system(), user()])) == 0
    assert pool.reused(await pool.prefill([system(), user()])) > 800
    await pool.prefill([system(), user()], cache_salt="elsewhere")
    assert pool.reused(await pool.prefill([system(), user()])) < 200


async def test_a_restart_forgets_everything_and_breaks_what_waits() -> None:
    pool = Pool(decode={"profile": Profile(concurrency=1, output_ms_per_token=1e9)})
    before = pool.d.engine_id
    legs = [asyncio.ensure_future(pool.post("d", {"messages": [user()]})) for _ in range(2)]
    await until(lambda: pool.d.waiting)
    pool.d.restart()
    results = await asyncio.gather(*legs, return_exceptions=True)
    assert all(isinstance(result, Broken) for result in results)
    assert pool.d.engine_id != before
    assert not pool.d.running
    assert not pool.d.waiting


async def test_an_overdue_answer_is_a_timeout_and_an_abort() -> None:
    pool = Pool(prefill={"bidirectional": False, "prefix_cache": False})
    said, handle = await pool.turn([system(), user()])
    messages = [system(), user(), {"role": "assistant", **said}, user()]
    body = json.dumps({"messages": messages, "kv_transfer_params": handle}).encode()
    with pytest.raises(TimedOut):
        await pool.upstream.send("p", call(body, answer_s=0.01))
    assert len(pool.p.aborts) == 1
    assert pool.upstream.open_calls() == {}


async def test_prefills_take_turns_and_cost_what_the_profile_says() -> None:
    profile = Profile(prefill_ms=100, prefill_ms_per_token=1)
    pool = Pool(prefill={"profile": profile})
    began = pool.clock.now()
    prompts = [[index] * 200 for index in (1, 2)]
    bodies = [{"prompt": prompt, "max_tokens": 1} for prompt in prompts]
    await asyncio.gather(*(pool.ask("p", body, "/v1/completions") for body in bodies))
    assert pool.clock.now() - began == pytest.approx(0.6)


def test_an_engine_stands_alone() -> None:
    assert SimEngine().config.version == "0.32.0"


async def test_a_decode_that_is_left_while_it_waits_frees_its_prefill() -> None:
    pool = Pool(decode={"profile": Profile(concurrency=1, output_ms_per_token=1e9)})
    params = (await pool.prefill([system(), user()]))["kv_transfer_params"]
    busy = asyncio.ensure_future(pool.post("d", {"messages": [user()]}))
    await until(lambda: pool.d.running)
    body = {"messages": [system(), user()], "kv_transfer_params": params}
    leg = asyncio.ensure_future(pool.post("d", body))
    await until(lambda: pool.d.waiting)
    assert len(pool.p.pins.by_request) == 1
    leg.cancel()
    busy.cancel()
    await asyncio.wait({leg, busy})
    assert [record.phase for record in pool.d.aborts] == ["waiting", "decode"]
    assert pool.p.pins.by_request == {}
    assert (pool.d.pool.usage, pool.p.pool.usage) == (0, 0)


async def test_a_read_that_has_begun_ends_and_frees_also_when_its_client_leaves() -> None:
    pool = Pool(prefill={"prefix_cache": False, "profile": Profile(transfer_ms=1e9)})
    said, handle = await pool.turn([system(), user()])
    messages = [system(), user(), {"role": "assistant", **said}, user()]
    leg = asyncio.ensure_future(pool.post("p", {"messages": messages, "kv_transfer_params": handle}))
    await until(lambda: pool.p.counters.transfers)
    leg.cancel()
    await asyncio.wait({leg})
    assert pool.d.pins.by_request == {}
    assert (pool.p.pool.usage, pool.kinds()) == (0, set())


async def test_random_ends_leave_no_block_behind() -> None:
    pool = Pool(
        num_blocks=400, ttl_s=50.0, decode={"profile": Profile(output_ms_per_token=20, concurrency=4)}
    )
    random = Random(3)

    async def turn(index: int) -> None:
        messages = [system(100 + index % 3), user(f"{index % 5} " * 30)]
        task = asyncio.ensure_future(pool.turn(messages))
        await pool.clock.sleep(random.random() * 2)
        if random.random() < 0.4:
            task.cancel()
        await asyncio.wait({task})

    await asyncio.gather(*(turn(index) for index in range(60)))
    pool.clock.advance(1_000)
    for engine in (pool.p, pool.d):
        engine.expire()
        assert engine.pool.usage == 0
        assert engine.open_requests == {CHAT: 0}
        assert not engine.running
    assert pool.kinds() == set()
    assert pool.d.aborts
