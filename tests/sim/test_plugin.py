"""Engine mode: whatever hand-over a router does, nothing wrong is pulled."""

from typing import Any

import pytest

from router.sim.config import EngineConfig
from router.sim.plugin import stamp, verify
from router.sim.tokens import encode
from router.turn.digest import STAMP_FIELD, Digests, chain, root
from tests.sim.pool import Message, Pool, system, user


def verified(answer: dict[str, Any]) -> int:
    report = answer["kv_transfer_params"][STAMP_FIELD]
    assert report["v"] == 1
    tokens: int = report["verified_tokens"]
    return tokens


async def test_a_stamp_is_of_the_tokens_that_are_held() -> None:
    pool = Pool(plugin=True)
    params = (await pool.prefill([system(), user()]))["kv_transfer_params"]
    body = {"messages": [system(), user()], "kv_transfer_params": params, "return_token_ids": True}
    answer = await pool.ask("d", body)
    held = answer["prompt_token_ids"] + answer["choices"][0]["token_ids"][:-1]
    digests = Digests.from_wire(answer["kv_transfer_params"][STAMP_FIELD])
    assert digests == chain(held, start=root())


async def test_a_matching_handle_is_used_whole() -> None:
    pool = Pool(plugin=True, prefill={"prefix_cache": False})
    said, handle = await pool.turn([system(), user()])
    messages = [system(), user(), {"role": "assistant", **said}, user()]
    first = await pool.prefill(messages, handle)
    assert verified(first) == pool.reused(first) == handle["remote_num_tokens"]
    assert pool.kinds() == set()


@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize(
    "decode", [{"retokenise": 1.0}, {"reasoning": True}, {"overcount_tokens": 40}, {"kv_groups": 2}]
)
async def test_naive_hand_overs_are_cut_and_clean(prefix_cache: bool, decode: dict[str, Any]) -> None:
    options = {"plugin": True, "prefix_cache": prefix_cache, "recompute_threshold": 1}
    pool = Pool(**options, decode=decode, prefill={"kv_groups": decode.get("kv_groups", 1)})
    messages: list[Message] = [system(), user()]
    handle = None
    for index in range(3):
        message, handle = await pool.turn(messages, handle)
        assert message["content"] == (await pool.direct(messages))["content"]
        kept = {"content": message["content"], "reasoning": message["reasoning"]}
        messages = [*messages, {"role": "assistant", **kept}, user(f"{index} " * 80)]
    await pool.turn([system(), user("an edited beginning")], handle)
    assert pool.kinds() == set()


async def test_an_edited_history_keeps_its_common_part_less_a_stride() -> None:
    pool = Pool(plugin=True, prefill={"prefix_cache": False})
    _, handle = await pool.turn([system(), user("river " * 200)])
    first = await pool.prefill([system(), user("stone " * 200)], handle)
    shared = len(encode("<|im_start|>system\n" + system()["content"]))
    assert shared - 128 - 16 < pool.reused(first) <= shared + 16
    assert pool.kinds() == set()


async def test_another_image_is_not_verified() -> None:
    def seen(url: str) -> Message:
        return {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}

    pool = Pool(plugin=True, prefill={"prefix_cache": False})
    _, handle = await pool.turn([seen("one"), system()])
    first = await pool.prefill([seen("two"), system(), user()], handle)
    assert verified(first) == pool.reused(first) == 0
    assert pool.kinds() == set()


@pytest.mark.parametrize(("refuse", "reused"), [(True, False), (False, True)])
async def test_a_handle_without_a_stamp(refuse: bool, reused: bool) -> None:
    pool = Pool(prefill={"prefix_cache": False, "plugin": True, "plugin_refuse_unstamped": refuse})
    said, handle = await pool.turn([system(), user()])
    messages = [system(), user(), {"role": "assistant", **said}, user()]
    first = await pool.prefill(messages, handle)
    assert (pool.reused(first) > 0) is reused
    assert pool.d.pins.by_request == {}, "also a handle that is refused frees its blocks"


@pytest.mark.parametrize("mark", [None, 7, {}, {"v": 9}, {"v": 1, "kind": "tokens", "tokens": -1}])
def test_a_broken_stamp_proves_nothing(mark: object) -> None:
    held = encode("bright " * 100)
    params = {"remote_num_tokens": len(held), "remote_block_ids": [[1] * 7], STAMP_FIELD: mark}
    checked = verify(params, held, "", EngineConfig(plugin=True))
    assert (checked.tokens, checked.params["remote_block_ids"]) == (0, [[]])


def test_a_stamp_of_another_adapter_proves_nothing() -> None:
    held = encode("bright " * 200)
    blocks = [list(range(-(-len(held) // 16)))]
    params = {"remote_num_tokens": len(held), "remote_block_ids": blocks}
    config = EngineConfig(plugin=True)
    own = verify({**params, STAMP_FIELD: stamp(held, "")}, held, "", config)
    other = verify({**params, STAMP_FIELD: stamp(held, "adapter")}, held, "", config)
    assert (own.tokens, other.tokens) == (len(held), 0)


STAYS = {"vllm_xargs": {"boomerang_stay": 1}}


async def test_a_turn_that_stays_leaves_a_stamped_handle_that_ends() -> None:
    pool = Pool(plugin=True)
    answer = await pool.ask("d", {"messages": [system(), user()], "return_token_ids": True, **STAYS})
    handle = answer["kv_transfer_params"]
    held = answer["prompt_token_ids"] + answer["choices"][0]["token_ids"][:-1]
    assert Digests.from_wire(handle[STAMP_FIELD]) == chain(held, start=root())
    assert handle["do_remote_decode"] is True
    (pin,) = pool.d.pins.by_request.values()
    assert pin.deadline_s is not None
    message = {"role": "assistant", "content": answer["choices"][0]["message"]["content"]}
    first = await pool.prefill([system(), user(), message, user()], handle)
    assert verified(first) == handle["remote_num_tokens"]
    assert pool.kinds() == set()


@pytest.mark.parametrize("members", [{}, {"vllm_xargs": {"boomerang_stay": 0}}, {"vllm_xargs": None}])
async def test_a_turn_that_does_not_ask_for_a_handle_leaves_none(members: dict[str, Any]) -> None:
    pool = Pool(plugin=True)
    answer = await pool.ask("d", {"messages": [system(), user()], **members})
    assert answer["kv_transfer_params"] is None
    assert not pool.d.pins.by_request


async def test_a_stock_engine_does_not_know_the_wish() -> None:
    pool = Pool()
    answer = await pool.ask("d", {"messages": [system(), user()], **STAYS})
    assert answer["kv_transfer_params"] is None
    assert not pool.d.pins.by_request
