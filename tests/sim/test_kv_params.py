from typing import Any

import pytest

from router.sim.kv_params import clip_groups, names_remote, remote

NAMED: dict[str, Any] = {
    "remote_block_ids": [[3, 1, 2]],
    "remote_engine_id": "e",
    "remote_request_id": "r",
    "remote_host": "h",
    "remote_port": 5600,
    "remote_num_tokens": 40,
}


def test_a_peer_needs_every_key_and_truthy_blocks() -> None:
    assert names_remote(NAMED)
    for key in ("remote_engine_id", "remote_request_id", "remote_host", "remote_port"):
        assert not names_remote({name: value for name, value in NAMED.items() if name != key})
        assert names_remote({**NAMED, key: None}), "vLLM looks for the key alone"
    assert names_remote({**NAMED, "remote_block_ids": [[]]})
    assert not names_remote({**NAMED, "remote_block_ids": []})


def test_what_params_say_of_a_peer() -> None:
    found = remote({**NAMED, "remote_blocks_expiry_time": 7.5, "future_key": {}})
    assert found is not None
    assert (found.blocks, found.num_tokens, found.expiry_s, found.address) == (
        (3, 1, 2),
        40,
        7.5,
        ("h", 5600),
    )
    bare = remote({key: value for key, value in NAMED.items() if key != "remote_num_tokens"})
    assert bare is not None
    assert (bare.num_tokens, bare.expiry_s) == (0, None)
    assert remote({}) is None


@pytest.mark.parametrize("wrong", [{"remote_block_ids": 7}, {"remote_port": "x"}, {"remote_num_tokens": {1}}])
def test_values_of_a_wrong_type(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="wrong type"):
        remote({**NAMED, **wrong})


def test_sliding_windows_keep_their_tail() -> None:
    assert clip_groups([5, 6, 7], 1) == [[5, 6, 7]]
    assert clip_groups([5, 6, 7], 3) == [[5, 6, 7], [6, 7], [6, 7]]
