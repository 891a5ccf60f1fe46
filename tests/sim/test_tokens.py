from random import Random

from hypothesis import given
from hypothesis import strategies as st

from router.sim.tokens import SPECIALS, decode, encode, retokenise, token_bytes


@given(st.text())
def test_every_text_comes_back(text: str) -> None:
    assert decode(encode(text), skip_specials=False) == text


@given(st.text(alphabet=st.characters(codec="utf-8")), st.floats(0, 1), st.integers(0, 99))
def test_other_tokens_of_an_answer_are_the_same_text(text: str, rate: float, seed: int) -> None:
    ids = encode(text)
    assert decode(retokenise(ids, rate, Random(seed)), skip_specials=False) == text


def test_retokenising_makes_other_tokens_at_its_rate() -> None:
    ids = encode("bright silver harbour " * 200)
    some, all_of_them = retokenise(ids, 0.1, Random(1)), retokenise(ids, 1.0, Random(1))
    assert retokenise(ids, 0.0, Random(1)) == ids
    assert len(ids) < len(some) < len(all_of_them)


def test_special_tokens_are_one_token_each_and_split_the_text() -> None:
    ids = encode("a<|im_start|>b</think>")
    assert [token_bytes(token).decode() for token in ids] == ["a", "<|im_start|>", "b", "</think>"]
    assert len(encode("".join(SPECIALS))) == len(SPECIALS)
    assert decode(ids) == "ab"


@given(st.text(max_size=4), st.text(max_size=4))
def test_different_pieces_have_different_ids(one: str, other: str) -> None:
    assert (encode(one) == encode(other)) == (one == other)


def test_ids_fit_where_vllm_keeps_them() -> None:
    assert all(token < 1 << 31 for token in encode("~~~~ \x7f\x7f\x7f\x7f 漢字 😀"))


def test_a_token_of_another_tokenizer_has_no_text() -> None:
    assert decode([900, 1_023]) == ""
