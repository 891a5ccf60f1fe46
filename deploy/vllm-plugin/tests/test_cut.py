"""The arithmetic of a cut, and when there must be none."""

from typing import Any

import pytest

from boomerang_vllm import cut

SIDE = cut.Side(block_tokens=16, groups=1, dcp_size=1)


def held(tokens: int, **changes: Any) -> cut.Claim:
    blocks = list(range(100, 100 - -(-tokens // 16), -1))
    params: dict[str, Any] = {"remote_num_tokens": tokens, "remote_block_ids": [blocks], "dcp_size": 1}
    return cut.claim(params | changes)


def shorten(
    claim: cut.Claim, proven: int, prompt: int, side: cut.Side = SIDE, remote: int | None = 16
) -> int:
    return cut.shorten(claim, side, proven_tokens=proven, prompt_tokens=prompt, remote_block_tokens=remote)


@pytest.mark.parametrize(
    ("proven", "prompt", "kept"),
    [
        (100, 101, 100),
        (100, 100, 96),  # a token is left to compute
        (100, 1000, 100),
        (99, 1000, 96),
        (96, 1000, 96),
        (64, 64, 48),
        (15, 1000, 0),
        (0, 1000, 0),
        (1000, 1000, 100),
        (100, 1, 0),
    ],
)
def test_whole_or_cut_to_whole_blocks(proven: int, prompt: int, kept: int) -> None:
    assert shorten(held(100), proven, prompt) == kept


def test_tokens_and_blocks_are_cut_together_and_the_order_is_kept() -> None:
    claim = held(100)
    assert cut.members(claim, SIDE, 48) == {"remote_num_tokens": 48, "remote_block_ids": [[100, 99, 98]]}
    assert cut.members(claim, SIDE, 100) == {}
    assert cut.members(claim, SIDE, 0) == {"remote_num_tokens": 0, "remote_block_ids": [[]]}


@pytest.mark.parametrize(
    ("side", "remote", "changes"),
    [
        (cut.Side(16, 2, 1), 16, {}),
        (cut.Side(16, 1, 2), 16, {}),
        (cut.Side(16, 1, 1), 32, {}),
        (cut.Side(16, 1, 1), None, {}),
        (SIDE, 16, {"dcp_size": 2}),
        (SIDE, 16, {"remote_block_ids": [[1, 2, 3, 4, 5, 6, 7], [9]]}),
    ],
    ids=["groups here", "dcp here", "block size", "block size unknown", "dcp there", "groups there"],
)
def test_elsewhere_all_or_nothing(side: cut.Side, remote: int | None, changes: dict[str, Any]) -> None:
    claim = held(100, **changes)
    assert shorten(claim, 96, 1000, side, remote) == 0
    assert shorten(claim, 100, 100, side, remote) == 0
    assert shorten(claim, 100, 101, side, remote) == 100


@pytest.mark.parametrize("blocks", [[[1, 2, 3]], [list(range(8))]])
def test_a_list_that_does_not_fit_the_count_is_never_read(blocks: list[list[int]]) -> None:
    claim = held(100, remote_block_ids=blocks)
    assert shorten(claim, 100, 1000) == shorten(claim, 64, 1000) == 0


def test_nothing_keeps_one_list_per_group() -> None:
    assert cut.nothing(held(16, remote_block_ids=[[1], [2]]))["remote_block_ids"] == [[], []]
    assert cut.nothing(None)["remote_block_ids"] == [[]]


@pytest.mark.parametrize(
    "changes",
    [
        {"remote_num_tokens": "100"},
        {"remote_num_tokens": -1},
        {"remote_num_tokens": True},
        {"remote_block_ids": [1, 2]},
        {"remote_block_ids": "[[1]]"},
        {"remote_block_ids": [["1"]]},
        {"remote_block_ids": [[-1]]},
        {"dcp_size": "1"},
    ],
)
def test_what_no_decode_node_returns_is_malformed(changes: dict[str, Any]) -> None:
    with pytest.raises(cut.Malformed):
        held(100, **changes)


@pytest.mark.parametrize(
    ("real", "edits"),
    [
        (100, {}),
        (101, {}),
        (0, {}),
        (99, {"remote_num_tokens": 99}),
        (97, {"remote_num_tokens": 97}),
        (96, {"remote_num_tokens": 96, "remote_block_ids": [[100, 99, 98, 97, 96, 95]]}),
    ],
)
def test_a_handle_is_brought_down_to_its_real_tokens(real: int, edits: dict[str, Any]) -> None:
    assert cut.trim(held(100), real, 16, keeps_states=False) == edits


def test_running_states_belong_to_one_position() -> None:
    assert cut.trim(held(100), 99, 16, keeps_states=True) == {}


def test_the_blocks_of_several_groups_are_not_trimmed() -> None:
    claim = held(97, remote_block_ids=[[1, 2, 3, 4, 5, 6, 7], [1, 2]])
    assert cut.trim(claim, 96, 16, keeps_states=False) == {}
    claim = held(98, remote_block_ids=[[1, 2, 3, 4, 5, 6, 7], [1, 2]])
    assert cut.trim(claim, 97, 16, keeps_states=False) == {"remote_num_tokens": 97}
