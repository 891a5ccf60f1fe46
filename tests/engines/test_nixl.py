"""Params of the NIXL connector: read whatever comes, replace two members, keep every other byte."""

import json
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.engines.nixl import COLD_PARAMS, NotParams, Params, cut, reachable, read, released
from router.turn.digest import STAMP_FIELD, chain

# As vLLM 0.32.0 sends them: D's of a finished turn, and P's of a prefill leg that read D's blocks.
FROM_DECODE = (
    b'{"do_remote_prefill":false,"do_remote_decode":true,"remote_block_ids":[[7,6,5,4,3,2,1]],'
    b'"remote_engine_id":"c36c7df5-13db-426c-8c8a-40c5d0b142ee",'
    b'"remote_request_id":"chatcmpl-9b645c5d31ac351f-a1ff7d9b","remote_host":"127.0.0.1","remote_port":5601,'
    b'"tp_size":1,"dcp_size":1,"pp_size":1,"remote_num_tokens":788,'
    b'"remote_blocks_expiry_time":1162.278588753,"transfer_mode":"pull"}'
)
FROM_PREFILL = (
    b'{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[7,6,5,4,3,2,1]],'
    b'"remote_engine_id":"6378c86c-8795-4980-adb2-8ed9c30b35be",'
    b'"remote_request_id":"chatcmpl-866c24575b256ecc-b9f6aaad","remote_host":"127.0.0.1","remote_port":5600,'
    b'"tp_size":1,"dcp_size":1,"pp_size":1,"remote_num_tokens":821,"remote_blocks_expiry_time":null,'
    b'"transfer_mode":"pull","remote_prefill_cached_tokens":768}'
)
PARAMS: dict[str, Any] = json.loads(FROM_DECODE)


def encoded(**changes: Any) -> bytes:
    return json.dumps({**PARAMS, **changes}).encode()


def lacking(name: str) -> bytes:
    return json.dumps({key: value for key, value in PARAMS.items() if key != name}).encode()


def test_a_decode_nodes_params_are_a_handle() -> None:
    params = read(FROM_DECODE)
    assert params == Params(
        do_remote_decode=True,
        do_remote_prefill=False,
        addressed=True,
        engine_id="c36c7df5-13db-426c-8c8a-40c5d0b142ee",
        tokens=788,
        block_counts=(7,),
        dcp_size=1,
        expires=True,
        push_mode=False,
        reused_tokens=None,
        stamped=False,
        verified_tokens=None,
    )
    assert params.is_handle


def test_a_prefill_nodes_params_say_what_it_did_not_compute_and_are_no_handle() -> None:
    params = read(FROM_PREFILL)
    assert (params.reused_tokens, params.tokens, params.expires) == (768, 821, False)
    assert params.do_remote_prefill
    assert not params.is_handle


def test_what_a_cold_leg_carries_asks_for_blocks_and_names_none() -> None:
    assert json.loads(COLD_PARAMS) == {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_engine_id": None,
        "remote_block_ids": None,
        "remote_host": None,
        "remote_port": None,
    }
    assert not read(COLD_PARAMS).is_handle


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"null",
        b"[]",
        b'"{}"',
        b"1",
        b"true",
        b"{",
        b'{"a"}',
        b"{} {}",
        b'{"a":NaN}',
        b'{"remote_host":"\xff"}',
        b'{"\xff":1}',
        b'{"remote_engine_id":"\\ud800"}',
        b'{"remote_num_tokens":1e999}',
        b'{"boomerang":{"tail":"\xff"}}',
        b'{"remote_block_ids":[[1e999]]}',
        b'{"remote_block_ids":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
        b'{"unknown":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    ],
)
def test_what_is_no_object_or_cannot_be_read_is_refused(raw: bytes) -> None:
    with pytest.raises(NotParams):
        read(raw)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(-1e9, 1e9) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from([*PARAMS, "remote_prefill_cached_tokens", STAMP_FIELD])


@given(st.dictionaries(NAMES, JSON, max_size=6))
def test_members_of_any_type_are_read_and_make_no_handle_without_an_address(
    odd: dict[str, Any],
) -> None:
    params = read(encoded(**odd))
    assert params.tokens >= 0
    assert params.dcp_size >= 0
    assert all(count >= 0 for count in params.block_counts)
    if params.is_handle:
        merged = {**PARAMS, **odd}
        assert merged["do_remote_decode"] is True
        assert merged["remote_block_ids"]
        assert merged["remote_host"] not in (None, "")


@given(st.binary(max_size=60) | st.text(alphabet='{}[]":,\\u0e1 ', max_size=60).map(str.encode))
def test_bytes_of_any_kind_are_params_or_refused(raw: bytes) -> None:
    try:
        read(raw)
    except NotParams:
        return
    assert isinstance(json.loads(raw), dict)


@pytest.mark.parametrize(
    "name", ["remote_engine_id", "remote_request_id", "remote_host", "remote_port", "remote_block_ids"]
)
@pytest.mark.parametrize("missing", [lacking, lambda name: encoded(**{name: None})], ids=["absent", "null"])
def test_a_handle_needs_every_part_of_its_address(name: str, missing: Any) -> None:
    assert not read(missing(name)).is_handle


@pytest.mark.parametrize("name", ["remote_engine_id", "remote_request_id", "remote_host"])
def test_an_empty_part_of_an_address_is_none(name: str) -> None:
    assert not read(encoded(**{name: ""})).is_handle


@pytest.mark.parametrize(
    ("decode", "prefill", "handle"),
    [
        (True, False, True),
        (True, True, False),
        (False, True, False),
        (False, False, False),
        ("true", False, False),
    ],
)
def test_a_handle_has_one_direction(decode: Any, prefill: Any, handle: bool) -> None:
    assert read(encoded(do_remote_decode=decode, do_remote_prefill=prefill)).is_handle is handle


@pytest.mark.parametrize(
    ("blocks", "counts", "handle"),
    [
        ([[1, 2, 3]], (3,), True),
        ([1, 2, 3], (3,), True),
        ([[1, 2], [3]], (2, 1), True),
        ([[1, 2], []], (2, 0), True),
        ([[]], (0,), False),
        ([[], []], (0, 0), False),
        ([], (), False),
        (None, (), False),
        ("abc", (), False),
        (7, (), False),
        ({"0": [1]}, (), False),
        ([[1], 2], (), False),
        ([1, [2]], (), False),
        (["a"], (), False),
        ([None, None], (), False),
        ([True], (), False),
    ],
)
def test_block_lists_of_new_and_old_connectors(blocks: Any, counts: tuple[int, ...], handle: bool) -> None:
    params = read(encoded(remote_block_ids=blocks))
    assert params.block_counts == counts
    assert params.is_handle is handle


@pytest.mark.parametrize(
    ("value", "tokens"), [(0, 0), (1, 1), (-1, 0), (None, 0), (3.0, 0), ("7", 0), (True, 0), ([7], 0)]
)
def test_a_token_count_is_a_whole_number_or_nothing(value: Any, tokens: int) -> None:
    assert read(encoded(remote_num_tokens=value)).tokens == tokens


@pytest.mark.parametrize(
    ("value", "size"), [(1, 1), (2, 2), (None, 1), (0, 0), ("1", 0), (2.5, 0), (True, 0), ([], 0), (-1, 0)]
)
def test_context_parallelism_that_is_not_understood_is_not_taken_for_one_rank(value: Any, size: int) -> None:
    assert read(encoded(dcp_size=value)).dcp_size == size


def test_connectors_without_context_parallelism_have_one_rank() -> None:
    assert read(lacking("dcp_size")).dcp_size == 1


@pytest.mark.parametrize(
    ("value", "expires"),
    [(1162.5, True), (0, True), (None, False), (False, False), ("soon", False), ([], False)],
)
def test_an_expiry_is_a_number(value: Any, expires: bool) -> None:
    assert read(encoded(remote_blocks_expiry_time=value)).expires is expires
    assert not read(lacking("remote_blocks_expiry_time")).expires


@pytest.mark.parametrize(
    ("mode", "push"), [("push", True), ("pull", False), (None, False), (["push"], False)]
)
def test_push_mode_is_seen(mode: Any, push: bool) -> None:
    assert read(encoded(transfer_mode=mode)).push_mode is push
    assert not read(lacking("transfer_mode")).push_mode


@pytest.mark.parametrize(
    ("value", "reused"), [(0, 0), (768, 768), (None, None), (-1, None), (1.5, None), ("3", None)]
)
def test_reused_tokens_are_a_count_or_not_told(value: Any, reused: int | None) -> None:
    assert read(encoded(remote_prefill_cached_tokens=value)).reused_tokens == reused


@pytest.mark.parametrize(
    ("stamp", "stamped", "verified"),
    [
        (chain(range(300)).to_wire(), True, None),
        ({"v": 1, "verified_tokens": 256}, False, 256),
        ({"v": 1, "verified_tokens": 0}, False, 0),
        ({"v": 1, "verified_tokens": -1}, False, None),
        ({"v": 1, "verified_tokens": True}, False, None),
        ({"v": 1, "verified_tokens": "256"}, False, None),
        ({}, False, None),
        (None, False, None),
        ("digests", False, None),
        (["digests", "verified_tokens"], False, None),
    ],
)
def test_what_the_plugin_adds(stamp: Any, stamped: bool, verified: int | None) -> None:
    params = read(encoded(**{STAMP_FIELD: stamp}))
    assert (params.stamped, params.verified_tokens) == (stamped, verified)


# Everything that a rewriting parser would change: spaces, a number's form, escapes, an unknown member.
ODD = (
    b'{ "remote_block_ids" : [ [7, 6,5,4,3,2,1] ] , "future": { "a" : [1.0, 1E2, 12345678901234567890123]},\n'
    b' "remote_num_tokens":788, "remote_blocks_expiry_time": 1162.2785887530000, "remote_host": "\\u0068ost",'
    b' "weight": -0.0, "nothing": null }'
)


def raws(raw: bytes) -> dict[str, bytes]:
    members: dict[str, msgspec.Raw] = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    return {key: bytes(value) for key, value in members.items()}


def test_a_cut_changes_tokens_and_blocks_and_no_other_byte() -> None:
    before, after = raws(ODD), raws(cut(ODD, tokens=384, block_size=128))
    assert list(after) == list(before)
    assert after["remote_num_tokens"] == b"384"
    assert json.loads(after["remote_block_ids"]) == [[7, 6, 5]], "the first blocks, in the order of D"
    for name in before.keys() - {"remote_num_tokens", "remote_block_ids"}:
        assert after[name] == before[name]


def test_a_cut_keeps_the_shape_of_an_older_connectors_list() -> None:
    flat = encoded(remote_block_ids=[9, 4, 8, 1, 2, 3, 5])
    assert json.loads(cut(flat, tokens=256, block_size=128))["remote_block_ids"] == [9, 4]


def test_a_cut_handle_is_what_the_engine_took() -> None:
    """The very change that was seen to work: 788 tokens in 7 blocks, cut to 768 in 6."""
    expected = re.sub(rb"\[\[7,6,5,4,3,2,1\]\]", b"[[7,6,5,4,3,2]]", FROM_DECODE).replace(b":788,", b":768,")
    assert cut(FROM_DECODE, tokens=768, block_size=128) == expected


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=40), st.data())
def test_a_cut_keeps_as_many_first_blocks_as_its_tokens_fill(blocks: list[int], data: st.DataObject) -> None:
    size = data.draw(st.sampled_from([1, 16, 128]))
    held = len(blocks) * size - data.draw(st.integers(0, size - 1))
    whole = held // size
    raw = encoded(remote_block_ids=[blocks], remote_num_tokens=held)
    for keep in range(1, whole + 1):
        after = read(cut(raw, tokens=keep * size, block_size=size))
        assert (after.tokens, after.block_counts) == (keep * size, (keep,))
        assert json.loads(cut(raw, tokens=keep * size, block_size=size))["remote_block_ids"] == [
            blocks[:keep]
        ]
    for tokens in (0, (whole + 1) * size, -size):
        with pytest.raises(ValueError, match="cannot cut"):
            cut(raw, tokens=tokens, block_size=size)


@pytest.mark.parametrize(
    ("raw", "tokens"),
    [
        pytest.param(FROM_DECODE, 100, id="part of a block"),
        pytest.param(FROM_DECODE, 0, id="nothing"),
        pytest.param(FROM_DECODE, -128, id="less than nothing"),
        pytest.param(FROM_DECODE, 896, id="all blocks, but not all of the last one is held"),
        pytest.param(FROM_DECODE, 1024, id="more blocks than there are"),
        pytest.param(encoded(remote_block_ids=[[1, 2], [3, 4]]), 128, id="several groups"),
        pytest.param(encoded(remote_block_ids=None), 128, id="no list of blocks"),
        pytest.param(lacking("remote_block_ids"), 128, id="no member for blocks"),
        pytest.param(lacking("remote_num_tokens"), 128, id="no member for tokens"),
        pytest.param(encoded(remote_block_ids=[[1], 2]), 128, id="a list of both kinds"),
        pytest.param(b"[]", 128, id="no object"),
    ],
)
def test_what_cannot_be_cut_is_refused(raw: bytes, tokens: int) -> None:
    with pytest.raises(ValueError, match=r"cannot cut|not a JSON object"):
        cut(raw, tokens=tokens, block_size=128)


def test_a_release_is_truthy_for_the_engine_and_reads_nothing() -> None:
    before, after = raws(ODD), raws(released(ODD))
    assert after["remote_num_tokens"] == b"0"
    assert json.loads(after["remote_block_ids"]) == [[]]
    assert list(after) == list(before)
    for name in before.keys() - {"remote_num_tokens", "remote_block_ids"}:
        assert after[name] == before[name]


def test_a_release_still_finds_its_decode_node() -> None:
    params = read(released(FROM_DECODE))
    assert params.addressed
    assert params.do_remote_decode
    assert params.tokens == 0
    assert not params.is_handle, "it may not be stored and sent again"


def test_a_release_of_nothing_is_refused() -> None:
    with pytest.raises(NotParams):
        released(b"null")


def test_of_members_that_are_there_twice_the_last_one_counts() -> None:
    """As Python's parser has it, which is what reads them in the engine; and only one is sent on."""
    raw = FROM_DECODE[:-1] + b',"remote_num_tokens":256,"do_remote_decode":true}'
    assert read(raw).tokens == 256
    names = [name for name, _ in json.loads(cut(raw, tokens=256, block_size=128), object_pairs_hook=list)]
    assert sorted(names) == sorted(PARAMS)


def test_escaped_names_are_the_same_names() -> None:
    raw = FROM_DECODE.replace(b'"remote_num_tokens"', b'"remote_num_\\u0074okens"')
    assert read(raw).tokens == 788
    assert json.loads(cut(raw, tokens=768, block_size=128))["remote_num_tokens"] == 768


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "localhost", "::1", "[::1]", "0.0.0.0"])  # noqa: S104
def test_a_side_channel_on_the_engines_own_loopback_is_looked_for_where_the_engine_is(host: str) -> None:
    before, after = (
        raws(encoded(remote_host=host)),
        raws(reachable(encoded(remote_host=host), origin="http://d7:8200")),
    )
    assert after == {**before, "remote_host": b'"d7"'}
    assert list(after) == list(before)


@pytest.mark.parametrize("origin", ["http://[2001:db8::7]:8200", "https://[2001:db8::7]"])
def test_an_address_of_an_engine_may_be_one_of_version_6(origin: str) -> None:
    assert json.loads(reachable(FROM_DECODE, origin=origin))["remote_host"] == "2001:db8::7"


@pytest.mark.parametrize(
    "host", ["10.0.0.7", "d7", "localhost.example.org", "::1234", "", None, 127, ["localhost"]]
)
def test_any_other_side_channel_is_left_alone(host: Any) -> None:
    raw = encoded(remote_host=host)
    assert reachable(raw, origin="http://d7:8200") is raw
    without = lacking("remote_host")
    assert reachable(without, origin="http://d7:8200") is without


@pytest.mark.parametrize("raw", [b"null", b"[]", b'{"remote_host":"\xff"}', b'{"remote_host":1e999}'])
def test_a_side_channel_that_cannot_be_read_is_refused(raw: bytes) -> None:
    with pytest.raises(NotParams):
        reachable(raw, origin="http://d7:8200")
