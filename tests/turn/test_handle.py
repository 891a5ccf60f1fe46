"""What may be done with a handle: one test for each condition, and properties that hold for all of them."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.engines import nixl
from router.ledger.store import Handle
from router.turn.digest import chain
from router.turn.handle import Finish, Lifetime, Sendable, Uncut, Unusable, accept, fit

BLOCK = 128
HELD = 788
PARAMS: dict[str, Any] = {
    "do_remote_prefill": False,
    "do_remote_decode": True,
    "remote_block_ids": [[7, 6, 5, 4, 3, 2, 1]],
    "remote_engine_id": "c36c7df5-13db-426c-8c8a-40c5d0b142ee",
    "remote_request_id": "chatcmpl-9b645c5d31ac351f-a1ff7d9b",
    "remote_host": "127.0.0.1",
    "remote_port": 5601,
    "tp_size": 1,
    "dcp_size": 1,
    "remote_num_tokens": HELD,
    "remote_blocks_expiry_time": 1162.278588753,
    "transfer_mode": "pull",
}
LIFETIME = Lifetime(ttl_s=480.0, margin_s=15.0)


def raw(**changes: Any) -> bytes:
    return json.dumps({**PARAMS, **changes}).encode()


def lacking(name: str) -> bytes:
    return json.dumps({key: value for key, value in PARAMS.items() if key != name}).encode()


def finish(params: bytes | None, **changes: Any) -> Finish:
    plain = Finish(
        params=params,
        decode="decode-1",
        sent_at_s=1000.0,
        waited_from_s=1030.0,
        prompt_tokens=769,
        held=chain(range(788)),
        media_depth=2,
    )
    return replace(plain, **changes)


def test_a_finished_turn_leaves_a_handle() -> None:
    params = raw()
    assert accept(finish(params), LIFETIME, 64) == Handle(
        params=params,
        decode="decode-1",
        engine_id="c36c7df5-13db-426c-8c8a-40c5d0b142ee",
        tokens=HELD,
        prompt_tokens=769,
        deadline_s=1030.0 + 480.0 - 15.0,
        stamped=False,
        held=chain(range(788)),
        media_depth=2,
    )


@pytest.mark.parametrize(
    ("params", "why"),
    [
        (None, Unusable.NO_PARAMS),
        (b"null", Unusable.NOT_A_HANDLE),
        (b"[1]", Unusable.NOT_A_HANDLE),
        (b'{"remote_host":"\xff"}', Unusable.NOT_A_HANDLE),
        (nixl.COLD_PARAMS, Unusable.NOT_A_HANDLE),
        (raw(do_remote_decode=False, do_remote_prefill=True), Unusable.NOT_A_HANDLE),
        (raw(remote_block_ids=[[]]), Unusable.NOT_A_HANDLE),
        (lacking("remote_request_id"), Unusable.NOT_A_HANDLE),
        (lacking("remote_engine_id"), Unusable.NOT_A_HANDLE),
        (raw(transfer_mode="push"), Unusable.PUSH_MODE),
        (raw(transfer_mode="push", remote_block_ids=[[]]), Unusable.PUSH_MODE),
        (raw(remote_blocks_expiry_time=None), Unusable.NO_EXPIRY),
        (lacking("remote_blocks_expiry_time"), Unusable.NO_EXPIRY),
        (raw(remote_num_tokens=63, remote_block_ids=[[1]]), Unusable.TOO_SHORT),
        (lacking("remote_num_tokens"), Unusable.TOO_SHORT),
        (raw(remote_num_tokens="788"), Unusable.TOO_SHORT),
    ],
)
def test_what_is_not_kept_and_why(params: bytes | None, why: Unusable) -> None:
    assert accept(finish(params), LIFETIME, 64) is why


def test_the_threshold_itself_is_long_enough() -> None:
    params = raw(remote_num_tokens=64, remote_block_ids=[[1]])
    assert isinstance(accept(finish(params), LIFETIME, 64), Handle)


def test_a_handle_of_an_unknown_length_is_never_kept() -> None:
    """Without a token count P would read as much as its prompt has, whatever D holds."""
    assert accept(finish(lacking("remote_num_tokens")), LIFETIME, 0) is Unusable.TOO_SHORT


@pytest.mark.parametrize("explicit", [False, True])
def test_an_engine_that_expires_handles_itself_is_waited_for_from_the_end(explicit: bool) -> None:
    handle = accept(finish(raw()), Lifetime(480.0, 15.0, explicit=explicit), 64)
    assert isinstance(handle, Handle)
    assert handle.deadline_s == 1030.0 + 465.0


@pytest.mark.parametrize(
    "params", [raw(remote_blocks_expiry_time=None), lacking("remote_blocks_expiry_time")]
)
def test_an_engine_that_would_read_freed_blocks_gets_the_earliest_deadline_there_is(params: bytes) -> None:
    handle = accept(finish(params), Lifetime(60.0, 5.0, explicit=True), 64)
    assert isinstance(handle, Handle)
    assert handle.deadline_s == 1000.0 + 55.0, (
        "counted from when the leg was sent: D cannot have pinned before"
    )


def test_no_more_of_the_held_tokens_are_prompt_than_are_held() -> None:
    handle = accept(finish(raw(), prompt_tokens=900), LIFETIME, 64)
    assert isinstance(handle, Handle)
    assert handle.prompt_tokens == HELD


def test_a_stamp_is_noticed() -> None:
    handle = accept(finish(raw(boomerang=chain(range(788)).to_wire()), held=None), LIFETIME, 64)
    assert isinstance(handle, Handle)
    assert handle.stamped
    assert handle.held is None


def a_handle(params: bytes | None = None, tokens: int = HELD) -> Handle:
    return Handle(
        params=raw() if params is None else params,
        decode="decode-1",
        engine_id="c36c7df5",
        tokens=tokens,
        prompt_tokens=min(769, tokens),
        deadline_s=2000.0,
    )


def fitted(
    handle: Handle,
    proven: int,
    prompt: int,
    *,
    prefill_block: int | None = BLOCK,
    decode_block: int | None = BLOCK,
    threshold: int = 64,
) -> Sendable | Uncut:
    return fit(
        handle,
        proven_tokens=proven,
        prompt_tokens=prompt,
        prefill_block=prefill_block,
        decode_block=decode_block,
        threshold_tokens=threshold,
    )


def test_a_handle_that_is_proven_as_a_whole_goes_as_it_came() -> None:
    handle = a_handle()
    assert fitted(handle, HELD, 821) == Sendable(handle.params, HELD, whole=True)


@pytest.mark.parametrize(
    ("proven", "prompt", "tokens"),
    [
        pytest.param(768, 821, 768, id="the answer's last stride is not proven"),
        pytest.param(770, 821, 768, id="cut to whole blocks"),
        pytest.param(HELD, HELD, 768, id="the same prompt again: P keeps one token to compute"),
        pytest.param(HELD, 769, 768, id="regenerated: the prompt is shorter than what is held"),
        pytest.param(
            HELD, 768, 640, id="the prompt ends with a block, and one token of it is P's to compute"
        ),
        pytest.param(384, 888, 384, id="edited"),
        pytest.param(HELD, 300, 256, id="the history was cut short"),
        pytest.param(128, 129, 128, id="one block"),
    ],
)
def test_a_handle_is_cut_to_what_is_proven(proven: int, prompt: int, tokens: int) -> None:
    sendable = fitted(a_handle(), proven, prompt)
    assert isinstance(sendable, Sendable)
    assert (sendable.tokens, sendable.whole) == (tokens, False)
    cut = json.loads(sendable.params)
    assert cut["remote_num_tokens"] == tokens
    assert cut["remote_block_ids"] == [[7, 6, 5, 4, 3, 2, 1][: tokens // BLOCK]]
    assert {**cut, "remote_num_tokens": HELD, "remote_block_ids": PARAMS["remote_block_ids"]} == PARAMS


@pytest.mark.parametrize(
    ("proven", "prompt", "threshold"),
    [
        pytest.param(0, 821, 64, id="nothing in common"),
        pytest.param(63, 821, 64, id="less than the threshold"),
        pytest.param(127, 821, 64, id="enough for the threshold, and not for a block"),
        pytest.param(200, 821, 150, id="over the threshold before the cut and under it after"),
        pytest.param(0, 821, 0, id="nothing in common, and no threshold"),
        pytest.param(100, 821, 0, id="no whole block, and no threshold"),
        pytest.param(HELD, 128, 64, id="a prompt of one block: one token is P's to compute"),
        pytest.param(HELD, 1, 0, id="a prompt of one token"),
        pytest.param(HELD, 0, 0, id="an empty prompt"),
    ],
)
def test_too_little_in_common(proven: int, prompt: int, threshold: int) -> None:
    assert fitted(a_handle(), proven, prompt, threshold=threshold) is Uncut.DIVERGED


@pytest.mark.parametrize(
    ("params", "why"),
    [
        (raw(remote_block_ids=[[1, 2, 3, 4, 5, 6, 7], [8, 9]]), Uncut.GROUPS),
        (raw(remote_block_ids=[[1, 2, 3, 4, 5, 6, 7], []]), Uncut.GROUPS),
        (raw(dcp_size=2), Uncut.CONTEXT_PARALLEL),
        (raw(dcp_size="2"), Uncut.CONTEXT_PARALLEL),
        (raw(remote_block_ids=[[1, 2, 3, 4, 5, 6]]), Uncut.BLOCK_COUNT),
        (raw(remote_block_ids=[[1, 2, 3, 4, 5, 6, 7, 8]]), Uncut.BLOCK_COUNT),
    ],
)
def test_a_handle_that_cannot_be_cut_is_left(params: bytes, why: Uncut) -> None:
    assert fitted(a_handle(params), 768, 821) is why


@pytest.mark.parametrize(
    ("prefill_block", "decode_block"),
    [(None, None), (None, BLOCK), (BLOCK, None), (BLOCK, 64), (16, BLOCK), (0, 0)],
)
def test_no_cut_without_equal_and_known_block_sizes(
    prefill_block: int | None, decode_block: int | None
) -> None:
    uncut = fitted(a_handle(), 768, 821, prefill_block=prefill_block, decode_block=decode_block)
    assert uncut is Uncut.BLOCK_SIZE


def test_blocks_of_an_older_connectors_flat_list_are_cut_too() -> None:
    sendable = fitted(a_handle(raw(remote_block_ids=[7, 6, 5, 4, 3, 2, 1])), 768, 821)
    assert isinstance(sendable, Sendable)
    assert json.loads(sendable.params)["remote_block_ids"] == [7, 6, 5, 4, 3, 2]


@pytest.mark.parametrize(
    "params",
    [
        pytest.param(raw(remote_block_ids=[[1, 2, 3, 4, 5, 6, 7], [8, 9]]), id="groups"),
        pytest.param(raw(dcp_size=2, remote_block_ids=[[1, 2, 3, 4]]), id="context parallel"),
    ],
)
def test_what_cannot_be_cut_may_go_as_a_whole(params: bytes) -> None:
    assert fitted(a_handle(params), HELD, 821) == Sendable(params, HELD, whole=True)


@pytest.mark.parametrize(("prefill_block", "decode_block"), [(None, None), (None, BLOCK), (BLOCK, None)])
def test_a_whole_handle_needs_no_known_block_size(
    prefill_block: int | None, decode_block: int | None
) -> None:
    sendable = fitted(a_handle(), HELD, 821, prefill_block=prefill_block, decode_block=decode_block)
    assert isinstance(sendable, Sendable)
    assert sendable.whole


@pytest.mark.parametrize("blocks", [[1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6, 7, 8]])
def test_a_list_that_is_known_to_be_of_another_length_does_not_even_go_as_a_whole(blocks: list[int]) -> None:
    """P reads the last blocks of a list that is too long, and falls over one that is too short."""
    assert fitted(a_handle(raw(remote_block_ids=[blocks])), HELD, 821) is Uncut.BLOCK_COUNT


def test_positions_past_the_real_tokens_are_cut() -> None:
    """Async scheduling counts positions that hold nothing yet: more is claimed than anybody can prove."""
    params = raw(remote_num_tokens=897, remote_block_ids=[[1, 2, 3, 4, 5, 6, 7, 8]])
    sendable = fitted(a_handle(params, tokens=897), 896, 1000)
    assert isinstance(sendable, Sendable)
    assert (sendable.tokens, sendable.whole) == (896, False)


@given(
    held=st.integers(1, 2000),
    proven=st.integers(0, 2200),
    prompt=st.integers(0, 2200),
    threshold=st.integers(0, 300),
    block=st.sampled_from([16, 64, 128]),
    other=st.sampled_from([None, 16, 64, 128]),
    groups=st.sampled_from([1, 1, 1, 2]),
    miscount=st.sampled_from([0, 0, 0, 1, -1]),
    dcp=st.sampled_from([1, 1, 2]),
)
def test_never_more_than_is_proven_and_only_whole_blocks(
    held: int,
    proven: int,
    prompt: int,
    threshold: int,
    block: int,
    other: int | None,
    groups: int,
    miscount: int,
    dcp: int,
) -> None:
    count = max(1, -(-held // block) + miscount)
    ids = list(range(count, 0, -1))
    params = raw(remote_num_tokens=held, remote_block_ids=[ids] * groups, dcp_size=dcp)
    sendable = fitted(
        a_handle(params, tokens=held),
        proven,
        prompt,
        prefill_block=block,
        decode_block=other,
        threshold=threshold,
    )
    if not isinstance(sendable, Sendable):
        return
    assert 0 < sendable.tokens <= min(proven, prompt - 1, held)
    if sendable.whole:
        assert sendable.params is params
        assert sendable.tokens == held
        assert prompt > held
        return
    assert sendable.tokens >= threshold
    assert sendable.tokens % block == 0
    assert (block, groups, dcp, count) == (other, 1, 1, -(-held // block))
    cut = nixl.read(sendable.params)
    assert (cut.tokens, cut.block_counts) == (sendable.tokens, (sendable.tokens // block,))
    assert json.loads(sendable.params)["remote_block_ids"] == [ids[: sendable.tokens // block]]
    assert cut.is_handle
