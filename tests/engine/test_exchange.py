"""What the comparison rests on: the pair alone, without the router."""

from tests.engine.conversation import Message, opening
from tests.engine.exchange import ANSWER_TOKENS, Engines, Verdict, chat_body, compare
from tests.engine.pair import Setup

BLOCK_TOKENS = 128
PARAMS = {
    "do_remote_prefill",
    "do_remote_decode",
    "remote_block_ids",
    "remote_engine_id",
    "remote_request_id",
    "remote_host",
    "remote_port",
    "remote_num_tokens",
    "tp_size",
}


def test_the_same_prompt_gives_the_same_reference_under_two_salts(engines: Engines) -> None:
    """Else a difference between a turn and its reference would say nothing."""
    one, two = (engines.reference(opening("kegs", 12)) for _ in range(2))
    assert compare(one.prefill.ids, two.prefill) is Verdict.EQUAL
    assert compare(one.decode.ids, two.decode) is Verdict.EQUAL


def test_a_handle_has_the_members_and_counts_that_a_cut_relies_on(engines: Engines, setup: Setup) -> None:
    answer = engines.two_legs(chat_body(opening("chests", 12))).decode
    handle = answer.params
    assert handle is not None
    assert set(handle) >= PARAMS
    assert ("boomerang" in handle) is (setup is Setup.PLUGIN)
    assert (handle["do_remote_decode"], handle["do_remote_prefill"]) == (True, False)
    assert handle["remote_num_tokens"] == len(answer.prompt_ids) + ANSWER_TOKENS - 1
    (blocks,) = handle["remote_block_ids"]
    assert len(blocks) == -(-handle["remote_num_tokens"] // BLOCK_TOKENS)


def test_a_cut_handle_is_read_as_far_as_it_goes_and_gives_the_same_answer(engines: Engines) -> None:
    first = opening("sacks", 12)
    held = engines.two_legs(chat_body(first)).decode
    assert held.params is not None
    tokens = len(held.prompt_ids) // BLOCK_TOKENS * BLOCK_TOKENS
    (blocks,) = held.params["remote_block_ids"]
    cut = held.params | {
        "remote_num_tokens": tokens,
        "remote_block_ids": [blocks[: tokens // BLOCK_TOKENS]],
    }
    said: Message = {"role": "assistant", "content": held.text}
    longer = [*first, said, {"role": "user", "content": "Go on."}]
    pulled = engines.two_legs(chat_body(longer), cut)
    assert pulled.prefill.cached_tokens == tokens

    reference = engines.reference(longer)
    assert compare(pulled.prefill.ids, reference.prefill) is not Verdict.DIFFERENT
    assert compare(pulled.decode.ids, reference.decode) is not Verdict.DIFFERENT
