"""Stamps of an engine's own hashes: every eighth block of 16, the last full one, and only between equals."""

from hashlib import sha256

import pytest

from boomerang_vllm import blocks
from boomerang_vllm.blocks import LAST_FIELD, Hashing
from boomerang_vllm.digest import NotAStamp, from_wire


def hashes_of(ids: list[int], block: int, first: bytes = b"none") -> list[bytes]:
    made, previous = [], first
    for at in range(0, len(ids) - block + 1, block):
        previous = sha256(previous + repr(ids[at : at + block]).encode()).digest()
        made.append(previous)
    return made


SIXTEEN = Hashing("sha256", b"none", 16)


def prove(held: list[int], count: int, prompt: list[int], hashing: Hashing = SIXTEEN) -> int:
    size = hashing.block_tokens
    stamp, last = blocks.stamp(hashes_of(held, size), count, hashing)
    wire = stamp.to_wire() | {LAST_FIELD: last}
    return blocks.proven(from_wire(wire), wire, hashes_of(prompt, size), len(prompt), hashing)


def test_every_eighth_block_is_stamped() -> None:
    stamp, last = blocks.stamp(hashes_of(list(range(1000)), 16), 999, SIXTEEN)
    assert (stamp.stride, stamp.strides, stamp.tokens, stamp.tail) == (128, 7, 999, b"")
    assert len(last) == 16


@pytest.mark.parametrize(
    ("differs_at", "proven"),
    [(None, 992), (0, 0), (127, 0), (128, 128), (500, 384), (991, 896), (992, 992), (998, 992)],
)
def test_what_is_proven_of_a_prompt_that_goes_on(differs_at: int | None, proven: int) -> None:
    held = list(range(1000))
    prompt = [*held, *range(50)]
    if differs_at is not None:
        prompt[differs_at] += 1
    assert prove(held, 999, prompt) == proven


@pytest.mark.parametrize(("length", "proven"), [(127, 0), (128, 128), (500, 384), (991, 896), (992, 992)])
def test_a_shorter_prompt(length: int, proven: int) -> None:
    held = list(range(1000))
    assert prove(held, 999, held[:length]) == proven


def test_a_token_without_kv_is_not_stamped_though_its_block_is_hashed() -> None:
    held = list(range(1024))
    assert prove(held, 1023, [*held, 1]) == 1008


def test_blocks_of_128_are_stamped_one_by_one() -> None:
    held = list(range(1000))
    assert prove(held, 999, [*held, 1], Hashing("sha256", b"none", 128)) == 896


@pytest.mark.parametrize(
    "other",
    [Hashing("sha256_cbor", b"none", 16), Hashing("sha256", b"other", 16), Hashing("sha256", b"none", 32)],
)
def test_engines_that_hash_otherwise_prove_nothing(other: Hashing) -> None:
    ids = list(range(1000))
    stamp, last = blocks.stamp(hashes_of(ids, 16), 999, SIXTEEN)
    wire = stamp.to_wire() | {LAST_FIELD: last}
    assert blocks.proven(stamp, wire, hashes_of(ids, 16), 1000, other) == 0


def test_too_few_hashes_are_no_stamp() -> None:
    with pytest.raises(NotAStamp):
        blocks.stamp(hashes_of(list(range(100)), 16), 999, SIXTEEN)


def test_a_broken_last_hash_costs_no_more_than_the_rest_of_a_stride() -> None:
    ids = list(range(1000))
    stamp, _ = blocks.stamp(hashes_of(ids, 16), 999, SIXTEEN)
    for last in ("zz", 7, "ab"):
        wire = stamp.to_wire() | {LAST_FIELD: last}
        assert blocks.proven(stamp, wire, hashes_of(ids, 16), 1000, SIXTEEN) == 896
