"""Values of the shared store: they come back as they went, stay small, and are never trusted."""

import json
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.ledger.codec import (
    NotAValue,
    decode_handle,
    decode_shared,
    decode_trace,
    encode_handle,
    encode_shared,
    encode_trace,
)
from router.ledger.store import Finish, Handle, Trace
from router.turn.digest import chain

TRACE = Trace(
    "http://p:8100",
    "http://d:8200",
    24_000,
    96_000,
    23_500,
    1_700_000_000.25,
    Finish.STOP,
    "pull",
    "extension",
)
BLOCKS, BLOCK_TOKENS = 1_500, 16


def blocks(kind: str) -> list[int]:
    """Ids as a pool of 60,000 blocks gives them out: fresh, in runs, and long in use."""
    random = Random(1)
    if kind == "fresh":
        return list(range(7_000, 7_000 + BLOCKS))
    if kind == "random":
        return random.sample(range(60_000), BLOCKS)
    ids: list[int] = []
    while len(ids) < BLOCKS:
        start = random.randrange(60_000)
        ids += range(start, start + random.randrange(1, 40))
    return ids[:BLOCKS]


def handle(kind: str = "random") -> Handle:
    """What a decode node of vLLM says of 24,000 tokens, and what the router knows of them."""
    random = Random(2)
    params = {
        "do_remote_prefill": False,
        "do_remote_decode": True,
        "remote_block_ids": [blocks(kind)],
        "remote_engine_id": "0d2e4b1c-76d0-4c5b-9a6b-ff2c3bb0a6c9_dp0",
        "remote_request_id": "chatcmpl-3a1d6bb0f4a04ad59d3ffb2ba9d4c1aa-b5f0a8d1",
        "remote_host": "10.12.3.44",
        "remote_port": 5600,
        "tp_size": 4,
        "remote_num_tokens": BLOCKS * BLOCK_TOKENS,
        "remote_blocks_expiry_time": 123456.789,
        "transfer_mode": "pull",
    }
    return Handle(
        params=json.dumps(params, separators=(",", ":")).encode(),
        decode="http://decode-3.pool:8000",
        engine_id="0d2e4b1c-76d0-4c5b-9a6b-ff2c3bb0a6c9_dp0",
        tokens=BLOCKS * BLOCK_TOKENS,
        prompt_tokens=23_000,
        deadline_s=1_700_000_465.0,
        started_at_s=1_699_000_000.5,
        held=chain([random.randrange(150_000) for _ in range(BLOCKS * BLOCK_TOKENS)]),
        media_depth=2,
    )


@pytest.mark.parametrize("kind", ["fresh", "runs", "random"])
def test_a_long_handle_with_its_digests_is_under_6_kb(kind: str) -> None:
    one = handle(kind)
    raw = encode_handle(one)
    assert len(one.params) > 7_500
    assert len(raw) < 6_000
    assert decode_handle(raw) == one


@given(
    params=st.binary(max_size=2_000),
    text=st.text(max_size=20),
    numbers=st.integers(0, 2**40),
    started_at_s=st.none() | st.floats(allow_nan=False),
    stamped=st.booleans(),
    held_tokens=st.none() | st.integers(0, 400),
)
def test_handles_come_back_as_they_went(
    params: bytes,
    text: str,
    numbers: int,
    started_at_s: float | None,
    stamped: bool,
    held_tokens: int | None,
) -> None:
    one = Handle(
        params=params,
        decode=text,
        engine_id=text[::-1],
        tokens=numbers,
        prompt_tokens=numbers // 2,
        deadline_s=numbers / 7,
        started_at_s=started_at_s,
        stamped=stamped,
        held=None if held_tokens is None else chain(range(held_tokens)),
        media_depth=numbers % 5,
    )
    assert decode_handle(encode_handle(one)) == one


def test_traces_come_back_as_they_went() -> None:
    assert decode_trace(encode_trace(TRACE)) == TRACE
    assert decode_shared(encode_shared("7f-00", 3, TRACE)) == ("7f-00", 3, TRACE)


@given(raw=st.binary(max_size=200), at=st.integers(0, 10_000), other=st.integers(0, 255))
def test_what_is_no_value_is_told_from_one(raw: bytes, at: int, other: int) -> None:
    good = encode_handle(replace(handle("fresh"), held=chain(range(300))))
    changed = bytearray(good)
    changed[at % len(good)] = other
    for broken in (raw, bytes(changed), good[: at % len(good)], good + raw[:1]):
        for decode in (decode_handle, decode_trace, decode_shared):
            try:
                decode(broken)
            except NotAValue:
                continue


def test_a_small_value_does_not_become_a_large_one() -> None:
    bomb = encode_handle(replace(handle("fresh"), params=bytes(20_000_000)))
    assert len(bomb) < 100_000
    with pytest.raises(NotAValue, match="too large"):
        decode_handle(bomb)
