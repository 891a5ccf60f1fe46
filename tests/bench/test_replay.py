import pytest

from router.bench.published import REQUESTS, held_tokens, prompt_lengths
from router.bench.replay import TRANSFERS, converse, pools, text_of, wrong_kv
from router.sim.tokens import encode


@pytest.mark.parametrize("tokens", [1, 149, 5_000])
def test_text_has_as_many_tokens_as_are_asked_for(tokens: int) -> None:
    text = text_of("a seed", tokens)
    assert len(encode(text)) == tokens
    assert text == text_of("a seed", tokens)
    assert tokens < 10 or text != text_of("another", tokens)


def test_a_conversation_through_the_router_on_both_sides() -> None:
    """Over sockets, six processes; the engines take no time, so that only what is reused can differ."""
    with pools("instant", plugin=True) as legs:
        played = {
            transfer: list(converse(legs[transfer].router, transfer, 2_000, 0, REQUESTS))
            for transfer in TRANSFERS
        }
        assert wrong_kv(list(legs.values())) == 0
    for transfer in TRANSFERS:
        assert [request.prompt_tokens for request in played[transfer]] == list(prompt_lengths(2_000))
        assert all(request.first_token_ms > 0 for request in played[transfer])
    assert [request.plan for request in played["off"]] == ["cold"] * 5
    assert [request.reused_tokens for request in played["off"]] == [0] * 5
    assert [request.plan for request in played["on"]] == ["cold", "pull", "pull", "pull", "pull"]
    reused = [request.reused_tokens for request in played["on"]]
    assert reused == [0, *(held_tokens(tokens) for tokens in prompt_lengths(2_000)[1:])]
