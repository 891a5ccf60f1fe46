"""The traps of a hand-over, each of which has to be noticed, and the sound ones, which must not be."""

from typing import Any

import pytest

from router.sim.model import TAINT
from router.sim.record import Corruption
from router.sim.template import TemplateOptions
from tests.sim.pool import COLD, Message, Pool, system, user


def cut_handle(handle: dict[str, Any], blocks: int, size: int = 16) -> dict[str, Any]:
    ids = [handle["remote_block_ids"][0][:blocks]]
    return {**handle, "remote_num_tokens": blocks * size, "remote_block_ids": ids}


def grown(messages: list[Message], answer: Message) -> list[Message]:
    return [*messages, {"role": "assistant", "content": answer["content"]}, user("and then?")]


@pytest.mark.parametrize("prefix_cache", [True, False])
async def test_a_growing_conversation_is_clean_and_reuses_all_that_is_held(prefix_cache: bool) -> None:
    pool = Pool(prefix_cache=prefix_cache, recompute_threshold=1)
    messages, handle = [system(), user()], None
    for _ in range(4):
        held = handle["remote_num_tokens"] if handle else 0
        first = await pool.prefill(messages, handle)
        assert pool.reused(first) == held
        body = {"messages": messages, "kv_transfer_params": first["kv_transfer_params"]}
        answer = await pool.ask("d", body)
        message = answer["choices"][0]["message"]
        assert message["content"] == (await pool.direct(messages))["content"]
        messages, handle = grown(messages, message), answer["kv_transfer_params"]
    assert pool.kinds() == set()
    assert len(pool.d.pins.by_request) == 1, "each read frees what the turn before had pinned"


async def test_stripped_reasoning_with_a_naive_hand_over_is_foreign_kv_and_spreads() -> None:
    pool = Pool(recompute_threshold=1, decode={"reasoning": True})
    messages = [system(), user()]
    said, handle = await pool.turn(messages)
    messages = [*messages, {"role": "assistant", **_of(said)}, user("go on " * 60)]
    wrong, _ = await pool.turn(messages, handle)
    assert {record.kind for record in pool.p.corruptions} == {Corruption.FOREIGN_KV}
    assert (await pool.direct(messages))["content"] != wrong["content"]
    assert wrong["content"].startswith(TAINT)
    before = len(pool.p.corruptions)
    again = await pool.prefill(messages)
    assert pool.reused(again) > 0
    assert pool.p.corruptions[before].kind is Corruption.TAINTED_CACHE
    assert again["choices"][0]["message"]["content"].startswith(TAINT)


async def test_a_salt_of_ones_own_gets_around_a_tainted_cache() -> None:
    pool = Pool(recompute_threshold=1, decode={"reasoning": True})
    said, handle = await pool.turn([system(), user()])
    messages = [system(), user(), {"role": "assistant", **_of(said)}, user("go on " * 60)]
    await pool.turn(messages, handle)
    seen = len(pool.p.corruptions) + len(pool.d.corruptions)
    fresh, _ = await pool.turn(messages, cache_salt="another")
    assert fresh["content"] == (await pool.direct(messages))["content"]
    assert len(pool.p.corruptions) + len(pool.d.corruptions) == seen


def _of(message: Message) -> Message:
    return {"content": message["content"], "reasoning": message["reasoning"]}


async def test_reasoning_that_the_template_keeps_does_no_harm() -> None:
    options = TemplateOptions(strip_reasoning=False)
    pool = Pool(template=options, recompute_threshold=1, decode={"reasoning": True})
    said, handle = await pool.turn([system(), user()])
    messages = [system(), user(), {"role": "assistant", **_of(said)}, user("go on " * 60)]
    first = await pool.prefill(messages, handle)
    assert pool.reused(first) == handle["remote_num_tokens"]
    assert pool.kinds() == set()


async def test_a_retokenised_answer_is_foreign_kv() -> None:
    pool = Pool(recompute_threshold=1, decode={"retokenise": 1.0})
    messages = [system(), user()]
    said, handle = await pool.turn(messages)
    await pool.prefill(grown(messages, said), handle)
    assert pool.kinds() == {Corruption.FOREIGN_KV}


async def test_a_handle_cut_to_the_common_prefix_is_clean() -> None:
    pool = Pool(prefill={"prefix_cache": False}, decode={"retokenise": 1.0})
    messages = [system(), user()]
    said, handle = await pool.turn(messages)
    prompt = (await pool.prefill(messages))["usage"]["prompt_tokens"]
    blocks = prompt // 16
    first = await pool.prefill(grown(messages, said), cut_handle(handle, blocks))
    assert pool.reused(first) == blocks * 16
    assert pool.kinds() == set()


async def test_a_cut_is_sound_with_prefix_hits_on_the_prefill_side() -> None:
    pool = Pool()
    await pool.prefill([system(100)])
    said, handle = await pool.turn([system(), user()])
    pool.p.pool.clear()
    await pool.prefill([system(), user("something else")], cut_handle(handle, 20))
    await pool.prefill(grown([system(), user()], said))
    assert pool.kinds() == set()


async def test_a_shorter_prompt_with_the_whole_handle_reads_the_wrong_blocks() -> None:
    pool = Pool(prefill={"prefix_cache": False})
    said, handle = await pool.turn([system(), user("a long question, " * 20)])
    assert said["content"]
    await pool.prefill([system()], handle)
    assert pool.kinds() == {Corruption.BAD_TRIM}


async def test_block_list_and_count_that_do_not_belong_together() -> None:
    pool = Pool(prefill={"prefix_cache": False})
    said, handle = await pool.turn([system(), user()])
    messages = grown([system(), user()], said)
    longer = {**handle, "remote_num_tokens": handle["remote_num_tokens"] - 64}
    await pool.prefill(messages, longer)
    assert pool.kinds() == {Corruption.BAD_TRIM}


async def test_too_few_blocks_take_the_engine_down() -> None:
    pool = Pool(prefill={"prefix_cache": False})
    said, handle = await pool.turn([system(), user()])
    fewer = {**handle, "remote_block_ids": [handle["remote_block_ids"][0][:-1]]}
    body = {"messages": grown([system(), user()], said), "max_tokens": 1, "kv_transfer_params": fewer}
    assert (await pool.post("p", body))[0] == 500
    assert pool.p.dead
    assert pool.kinds() == {Corruption.BAD_TRIM}
    assert (await pool.post("p", {"messages": [user()]}))[0] == 500
    pool.p.restart()
    assert (await pool.post("p", {"messages": [user()]}))[0] == 200


async def test_a_handle_is_good_for_one_read() -> None:
    pool = Pool(prefill={"prefix_cache": False})
    said, handle = await pool.turn([system(), user()])
    messages = grown([system(), user()], said)
    await pool.prefill(messages, handle)
    assert pool.kinds() == set()
    assert (await pool.post("p", {"messages": messages, "kv_transfer_params": handle}))[0] == 200
    assert pool.kinds() == {Corruption.REPLAYED}
    assert pool.d.counters.notifications_after_expiry == 1


async def test_a_second_decode_with_the_same_params_is_a_replay() -> None:
    pool = Pool(prefix_cache=False)
    first = await pool.prefill([system(), user()])
    body = {"messages": [system(), user()], "kv_transfer_params": first["kv_transfer_params"]}
    await pool.ask("d", body)
    await pool.ask("d", body)
    assert pool.kinds() == {Corruption.REPLAYED}


async def test_an_expired_handle_fails_the_prefill() -> None:
    pool = Pool(prefill={"prefix_cache": False})
    said, handle = await pool.turn([system(), user()])
    pool.clock.advance(476)
    body = {"messages": grown([system(), user()], said), "max_tokens": 1, "kv_transfer_params": handle}
    status, answer = await pool.post("p", body)
    assert (status, answer["error"]["type"]) == (500, "InternalServerError")
    assert pool.kinds() == set()
    assert pool.p.counters.kv_expired == 1


async def test_an_expired_handle_is_computed_where_the_policy_says_so() -> None:
    pool = Pool(prefill={"prefix_cache": False, "failure_policy": "recompute"})
    said, handle = await pool.turn([system(), user()])
    pool.clock.advance(480)
    first = await pool.prefill(grown([system(), user()], said), handle)
    assert pool.reused(first) == 0
    assert pool.kinds() == set()


async def test_an_old_version_reads_what_has_expired() -> None:
    pool = Pool(expiry_field=False, prefix_cache=False)
    said, handle = await pool.turn([system(), user()])
    assert "remote_blocks_expiry_time" not in handle
    pool.clock.advance(481)
    await pool.prefill(grown([system(), user()], said), handle)
    assert pool.kinds() == {Corruption.EXPIRED_READ}


async def test_a_restarted_engine_is_another_one() -> None:
    pool = Pool(prefill={"prefix_cache": False})
    said, handle = await pool.turn([system(), user()])
    pool.d.restart()
    body = {"messages": grown([system(), user()], said), "kv_transfer_params": handle}
    assert (await pool.post("p", body))[0] == 500
    assert pool.kinds() == set()


async def test_a_fixed_engine_id_hides_a_restart() -> None:
    pool = Pool(prefill={"prefix_cache": False}, decode={"engine_id": "always-me"})
    said, handle = await pool.turn([system(), user()])
    pool.d.restart()
    await pool.prefill(grown([system(), user()], said), handle)
    assert pool.kinds() == {Corruption.EXPIRED_READ}


async def test_positions_past_the_real_tokens_are_garbage() -> None:
    pool = Pool(prefill={"prefix_cache": False}, decode={"overcount_tokens": 3})
    said, handle = await pool.turn([system(), user()])
    await pool.prefill(grown([system(), user()], said), handle)
    assert pool.kinds() == {Corruption.FOREIGN_KV}


def seen(url: str) -> Message:
    image = {"type": "image_url", "image_url": {"url": url}}
    return {"role": "user", "content": [image, {"type": "text", "text": "?"}]}


async def test_another_image_with_the_same_placeholders_is_foreign_kv() -> None:
    pool = Pool(prefill={"prefix_cache": False})
    first = await pool.prefill([system(), seen("one")], return_token_ids=True)
    said, handle = await pool.turn([system(), seen("one")])
    other = await pool.prefill([system(), seen("two")], return_token_ids=True)
    assert first["prompt_token_ids"] == other["prompt_token_ids"]
    await pool.prefill(grown([system(), seen("two")], said), handle)
    assert pool.kinds() == {Corruption.FOREIGN_KV}


@pytest.mark.parametrize("groups", [{"kv_groups": 2}, {"dcp_size": 2}])
async def test_a_cut_with_more_than_one_group_or_rank_is_not_sound(groups: dict[str, Any]) -> None:
    pool = Pool(prefill={"prefix_cache": False}, **groups)
    said, handle = await pool.turn([system(), user()])
    messages = grown([system(), user()], said)
    ids = [handle["remote_block_ids"][0][:10], *handle["remote_block_ids"][1:]]
    await pool.prefill(messages, {**handle, "remote_num_tokens": 160, "remote_block_ids": ids})
    assert pool.kinds() == {Corruption.BAD_TRIM}


async def test_a_whole_handle_with_more_than_one_group_is_sound() -> None:
    pool = Pool(prefill={"prefix_cache": False}, kv_groups=2)
    said, handle = await pool.turn([system(), user()])
    await pool.prefill(grown([system(), user()], said), handle)
    assert pool.kinds() == set()


@pytest.mark.parametrize(("cut", "kinds"), [(False, set()), (True, {Corruption.BAD_TRIM})])
async def test_blocks_of_another_size_are_sound_only_uncut(cut: bool, kinds: set[Corruption]) -> None:
    pool = Pool(prefill={"prefix_cache": False, "block_size": 32}, decode={"prefix_cache": False})
    said, handle = await pool.turn([system(), user()])
    handed = {**handle, "remote_num_tokens": 500} if cut else handle
    await pool.prefill(grown([system(), user()], said), handed)
    assert pool.kinds() == kinds


async def test_a_few_tokens_are_not_pulled_but_free_the_pin() -> None:
    pool = Pool()
    said, handle = await pool.turn([system(), user()])
    assert said["content"]
    body = {"prompt": [1], "max_tokens": 1, "kv_transfer_params": handle}
    await pool.ask("p", body, "/v1/completions")
    assert pool.d.pins.by_request == {}
    assert pool.p.counters.transfers == 0
    assert pool.kinds() == set()


@pytest.mark.parametrize(("ids", "freed"), [([[]], True), ([], False)])
async def test_a_handle_rides_along(ids: list[Any], freed: bool) -> None:
    pool = Pool()
    _, handle = await pool.turn([system(), user()])
    riding = {**handle, "remote_num_tokens": 0, "remote_block_ids": ids}
    await pool.prefill([user("something else")], riding)
    assert (pool.d.pins.by_request == {}) is freed


async def test_n_above_one_shares_one_params_object_and_reads_twice() -> None:
    pool = Pool(prefix_cache=False)
    first = await pool.prefill([system(), user()])
    await pool.ask(
        "d", {"messages": [system(), user()], "n": 2, "kv_transfer_params": first["kv_transfer_params"]}
    )
    assert Corruption.REPLAYED in pool.kinds()


async def test_cold_params_pull_nothing() -> None:
    pool = Pool()
    first = await pool.prefill([system(), user()], COLD)
    assert pool.p.counters.transfers == 0
    assert first["kv_transfer_params"]["do_remote_prefill"] is True
