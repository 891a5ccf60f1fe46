import msgspec

from router.check import prompts
from router.sim.ask import chat_prompt, completion_prompts
from router.sim.config import EngineConfig
from router.turn.members import join
from router.turn.request import Endpoint


def test_the_first_prompt_is_long_enough_and_begins_with_the_nonce() -> None:
    wanted = prompts.wanted_tokens(64, 16)
    assert wanted == 64 + 16 + prompts.MARGIN_TOKENS
    assert prompts.wanted_tokens(64, None) == 64 + prompts.UNKNOWN_BLOCK_TOKENS + prompts.MARGIN_TOKENS
    for endpoint in (Endpoint.CHAT, Endpoint.COMPLETIONS):
        request = prompts.opening(endpoint, "sim-qwen3", nonce="n0nce", tokens=wanted, max_tokens=8)
        body = msgspec.json.decode(join(request.members))
        text = body["messages"][0]["content"] if endpoint is Endpoint.CHAT else body["prompt"]
        assert text.startswith("n0nce ")
        ids = (
            chat_prompt(body, EngineConfig()) if endpoint is Endpoint.CHAT else completion_prompts(body)[0]
        ).ids
        assert len(ids) >= wanted


def test_two_prompts_of_one_run_and_turn_share_all_but_the_limit() -> None:
    one, other = (
        prompts.opening(Endpoint.CHAT, "m", nonce="n", tokens=9, max_tokens=limit) for limit in (8, 100)
    )
    differing = {name for name in one.members if bytes(one.members[name]) != bytes(other.members[name])}
    assert differing == {"max_tokens"}


def test_a_bare_request_has_no_params() -> None:
    assert b"kv_transfer_params" not in prompts.bare("m", 5)
    request = prompts.by_ids("m", [1, 2], max_tokens=3, logprobs=2)
    assert msgspec.json.decode(request.members["prompt"]) == [1, 2]
    assert bytes(request.members["return_tokens_as_token_ids"]) == b"true"
