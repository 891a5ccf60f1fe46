"""Row by row what each leg's body carries, and which headers go where."""

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from router.engines.nixl import COLD_PARAMS
from router.turn.legs import (
    client_headers,
    decode_body,
    engine_headers,
    prefill_body,
    stay_body,
    unsplit_body,
)
from router.turn.members import InvalidRequest, join
from router.turn.request import Endpoint, Request, read_request

PARAMS = b'{"do_remote_prefill":true, "remote_block_ids":[[1,2]], "weight":1.0}'
MESSAGES = b'[{"role":"user","content":"caf\\u00e9 \\ud83d\\ude00", "n":1.0}]'


def request_of(members: bytes, endpoint: Endpoint = Endpoint.CHAT) -> Request:
    return read_request(endpoint, "/v1/chat/completions", (), b"{" + members + b"}", turn_id="brg-1")


def raws(body: bytes) -> dict[str, bytes]:
    """Each member's own bytes; fails where a name stands twice."""
    names = [name for name, _ in json.loads(body, object_pairs_hook=list)]
    assert len(names) == len(set(names))
    members: dict[str, msgspec.Raw] = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    return {name: bytes(raw) for name, raw in members.items()}


def legs(members: bytes, **options: Any) -> tuple[dict[str, bytes], dict[str, bytes], dict[str, bytes]]:
    """The bodies of prefill leg, decode leg, and of one node that does both."""
    request = request_of(members)
    return (
        raws(prefill_body(request, COLD_PARAMS, want_token_ids=False, **options)),
        raws(decode_body(request, PARAMS, want_token_ids=False, **options)),
        raws(unsplit_body(request)),
    )


ABSENT = None
Row = tuple[str, bytes, bytes | None, bytes | None, bytes | None]
"""A member, as it was sent, and its value on the prefill leg, on the decode leg, and on one node."""


def same(name: str, value: bytes) -> Row:
    """A member that goes everywhere as it came."""
    return (name, value, value, value, value)


ROWS: list[Row] = [
    ("kv_transfer_params", b'{"do_remote_prefill":true,"remote_host":"evil"}', COLD_PARAMS, PARAMS, ABSENT),
    ("ec_transfer_params", b'{"a":1}', ABSENT, ABSENT, ABSENT),
    ("request_id", b'"mine"', ABSENT, ABSENT, ABSENT),
    ("conversation_id", b'"mine"', ABSENT, ABSENT, ABSENT),
    same("session_id", b'"mine"'),
    ("stream", b"true", b"false", b"true", b"true"),
    ("stream", b"null", b"false", b"null", b"null"),
    ("max_tokens", b"500", b"1", b"500", b"500"),
    ("max_tokens", b"null", b"1", b"null", b"null"),
    ("max_completion_tokens", b"500", b"1", b"500", b"500"),
    (
        "stream_options",
        b'{"include_usage": true}',
        ABSENT,
        b'{"include_usage": true}',
        b'{"include_usage": true}',
    ),
    ("min_tokens", b"5", ABSENT, b"5", b"5"),
    ("stop", b'["\\n"]', ABSENT, b'["\\n"]', b'["\\n"]'),
    ("stop_token_ids", b"[1]", ABSENT, b"[1]", b"[1]"),
    ("include_stop_str_in_output", b"true", ABSENT, b"true", b"true"),
    ("logprobs", b"true", ABSENT, b"true", b"true"),
    ("top_logprobs", b"5", ABSENT, b"5", b"5"),
    ("echo", b"true", ABSENT, b"true", b"true"),
    ("n", b"1", ABSENT, b"1", b"1"),
    ("best_of", b"1", ABSENT, b"1", b"1"),
    ("ignore_eos", b"false", b"true", b"false", b"false"),
    ("return_token_ids", b"true", b"false", b"true", b"true"),
    same("cache_salt", b'"s"'),
    # What shapes the prompt, and what nobody here knows: the very bytes, everywhere.
    same("tools", b'[ {"type":"function"} ]'),
    same("tool_choice", b'"none"'),
    same("chat_template_kwargs", b'{"enable_thinking":false}'),
    same("truncate_prompt_tokens", b"-1"),
    same("add_generation_prompt", b"false"),
    same("response_format", b'{"type":"json_object"}'),
    same("temperature", b"0.10"),
    same("seed", b"12345678901234567890123"),
    same("vllm_xargs", b'{"session_id": "a"}'),
    same("vllm_xargs", b"null"),
    same("vllm_xargs", b"[1]"),
    same("from_the_future", b'{"a" :1E2,"b":"\\u0041"}'),
    same('quo"te\\', b"1"),
]


@pytest.mark.parametrize(
    ("name", "sent", "prefill", "decode", "one"), ROWS, ids=lambda value: str(value)[:30]
)
def test_the_table_row_by_row(
    name: str, sent: bytes, prefill: bytes | None, decode: bytes | None, one: bytes | None
) -> None:
    members = json.dumps(name).encode() + b":" + sent + b',"model":"m","messages":' + MESSAGES
    bodies = legs(members)
    assert tuple(body.get(name) for body in bodies) == (prefill, decode, one)
    for body in bodies:
        assert body["model"] == b'"m"'
        assert body["messages"] == MESSAGES


def test_what_a_plain_request_becomes() -> None:
    prefill, decode, one = legs(b'"model":"m","messages":' + MESSAGES)
    assert prefill == {
        "model": b'"m"',
        "messages": MESSAGES,
        "stream": b"false",
        "max_tokens": b"1",
        "ignore_eos": b"true",
        "return_token_ids": b"false",
        "kv_transfer_params": COLD_PARAMS,
    }
    assert decode == {"model": b'"m"', "messages": MESSAGES, "kv_transfer_params": PARAMS}
    assert one == {"model": b'"m"', "messages": MESSAGES}


@pytest.mark.parametrize(
    "sent", [b"", b',"return_token_ids":true', b',"return_token_ids":false', b',"return_token_ids":null']
)
def test_token_ids_are_asked_for_where_they_are_compared(sent: bytes) -> None:
    request = request_of(b'"model":"m"' + sent)
    assert raws(prefill_body(request, COLD_PARAMS, want_token_ids=True))["return_token_ids"] == b"true"
    assert raws(decode_body(request, PARAMS, want_token_ids=True))["return_token_ids"] == b"true"


def test_a_decode_leg_without_params_carries_none_of_any_kind() -> None:
    """Empty or undirected params would pin blocks that nothing frees."""
    request = request_of(b'"model":"m","kv_transfer_params":{"do_remote_decode":false}')
    assert raws(decode_body(request, None, want_token_ids=False)) == {"model": b'"m"'}


def test_a_salt_of_ours_is_the_same_on_both_legs_and_holds_the_clients() -> None:
    prefill, decode, one = legs(b'"model":"m","cache_salt":"theirs"', salt="ours")
    assert json.loads(prefill["cache_salt"]) == json.loads(decode["cache_salt"]) == 'ours:"theirs"'
    assert one["cache_salt"] == b'"theirs"'
    assert json.loads(legs(b'"model":"m"', salt="ours")[0]["cache_salt"]) == "ours"
    assert "cache_salt" not in legs(b'"model":"m"')[0]


@pytest.mark.parametrize("sent", [b"null", b"5", b'["a"]', b'"\xff"', b'"\\u0000"'])
def test_a_salt_of_ours_is_a_text_whatever_the_clients_is(sent: bytes) -> None:
    request = request_of(b'"cache_salt":' + sent)
    prefill = raws(prefill_body(request, COLD_PARAMS, want_token_ids=False, salt='o"ur"s'))
    decode = raws(decode_body(request, PARAMS, want_token_ids=False, salt='o"ur"s'))
    assert prefill["cache_salt"] == decode["cache_salt"]
    assert json.loads(prefill["cache_salt"]).startswith('o"ur"s:')


STEERING = ["kv_transfer_params", "ec_transfer_params", "request_id"]
SPELLINGS = [
    json.dumps,
    lambda name: json.dumps(name).replace("_", "\\u005f"),
    lambda name: '"' + "".join(f"\\u{ord(char):04x}" for char in name) + '"',
    lambda name: json.dumps(name).replace("r", "\\u0072").replace("t", "\\u0074"),
]


@pytest.mark.parametrize("name", STEERING)
@pytest.mark.parametrize("spell", SPELLINGS)
@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("place", ["top", "xargs", "both"])
def test_what_steers_an_engine_is_not_a_clients_to_set(name: str, spell: Any, times: int, place: str) -> None:
    evil = ",".join(f'{spell(name)}:{{"remote_host":"evil{index}"}}' for index in range(times))
    top = f",{evil}" if place != "xargs" else ""
    inside = f"{evil}," if place != "top" else ""
    members = f'"model":"m","vllm_xargs":{{{inside}"session_id":"a", "x" : 1.0}}{top}'.encode()
    for index, body in enumerate(legs(members)):
        assert b"evil" not in b"".join(body.values())
        if name != "kv_transfer_params" or index == 2:
            assert name not in body
        assert {key: bytes(raw) for key, raw in inner_of(body).items()} == {"session_id": b'"a"', "x": b"1.0"}


def inner_of(body: dict[str, bytes]) -> dict[str, msgspec.Raw]:
    inner: dict[str, msgspec.Raw] = msgspec.json.decode(body["vllm_xargs"], type=dict[str, msgspec.Raw])
    return inner


def test_of_xargs_that_are_there_twice_only_the_clean_ones_go_on() -> None:
    members = b'"vllm_xargs":{"kv_transfer_params":{"a":"evil"}},"vllm_xargs":{"b":1,"request_id":"evil"}'
    for body in legs(members):
        assert body["vllm_xargs"] == b'{"b":1}'


def test_deeper_levels_are_nobodys_parameters() -> None:
    """Only the top level of these arguments reaches a connector; content is never touched."""
    sent = b'{"a":{"kv_transfer_params":1}}'
    for body in legs(b'"vllm_xargs":' + sent + b',"metadata":{"request_id":"x"}'):
        assert body["vllm_xargs"] == sent
        assert body["metadata"] == b'{"request_id":"x"}'


def test_arguments_without_steering_keep_their_very_bytes() -> None:
    request = request_of(b'"vllm_xargs":{ "a" : 1.0 , "b":"\\u0041" }')
    assert bytes(request.members["vllm_xargs"]) == b'{ "a" : 1.0 , "b":"\\u0041" }'


def test_reading_for_one_leg_leaves_the_request_as_it_was() -> None:
    request = request_of(b'"model":"m","vllm_xargs":{"request_id":"x"},"stream":true,"max_tokens":9')
    before = {name: bytes(raw) for name, raw in request.members.items()}
    prefill_body(request, COLD_PARAMS, want_token_ids=True, salt="s")
    decode_body(request, PARAMS, want_token_ids=True, salt="s")
    assert {name: bytes(raw) for name, raw in request.members.items()} == before


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(-1e9, 1e9) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=6,
)
PROMPT_SHAPING = [
    "messages", "prompt", "tools", "tool_choice", "documents", "chat_template", "chat_template_kwargs",
    "add_generation_prompt", "continue_final_message", "add_special_tokens", "truncate_prompt_tokens",
    "reasoning_effort", "response_format", "mm_processor_kwargs", "cache_salt", "unknown",
]  # fmt: skip


@given(
    st.dictionaries(
        st.sampled_from([*PROMPT_SHAPING, *(row[0] for row in ROWS)]) | st.text(max_size=6), VALUES
    ),
    st.booleans(),
)
def test_both_legs_have_the_identical_prompt(sent: dict[str, Any], salted: bool) -> None:
    try:
        request = request_of(json.dumps(sent).encode()[1:-1])
    except InvalidRequest:
        reject()  # a name that came out as `model`, with what is none
    salt = "ours" if salted else None
    prefill = raws(prefill_body(request, COLD_PARAMS, want_token_ids=True, salt=salt))
    decode = raws(decode_body(request, PARAMS, want_token_ids=True, salt=salt))
    changed = {row[0] for row in ROWS if row[2] != row[3]} | {
        "max_tokens",
        "ignore_eos",
        "kv_transfer_params",
    }
    assert {k: v for k, v in prefill.items() if k not in changed} == {
        k: v for k, v in decode.items() if k not in changed
    }
    for name in PROMPT_SHAPING:
        assert (name in decode) == (name in sent or (name == "cache_salt" and salted))


@given(st.dictionaries(st.text(max_size=8), VALUES, max_size=6))
def test_joining_members_is_the_object_again(sent: dict[str, Any]) -> None:
    members = {name: msgspec.Raw(json.dumps(value).encode()) for name, value in sent.items()}
    assert json.loads(join(members)) == sent


def test_headers_of_a_leg() -> None:
    sent = (
        ("host", "router:8000"),
        ("authorization", "Bearer theirs"),
        ("user-agent", "agent/1"),
        ("x-session-id", "s-1"),
        ("traceparent", "00-1-2-03"),
        ("x-tenant", "a"),
        ("x-custom", "one"),
        ("x-custom", "two"),
        ("content-length", "100"),
        ("content-type", "application/json; charset=utf-8"),
        ("accept-encoding", "gzip, br"),
        ("connection", "Keep-Alive, X-Hop ,close"),
        ("x-hop", "for the router alone"),
        ("keep-alive", "timeout=5"),
        ("te", "trailers"),
        ("trailer", "x"),
        ("transfer-encoding", "chunked"),
        ("upgrade", "h2c"),
        ("expect", "100-continue"),
        ("proxy-authorization", "Basic eA=="),
        ("proxy-connection", "close"),
        ("x-request-id", "theirs"),
        ("x-data-parallel-rank", "3"),
    )
    assert sorted(engine_headers(sent, leg_id="brg-1-p1", api_key="ours")) == sorted(
        (
            ("authorization", "Bearer theirs"),
            ("user-agent", "agent/1"),
            ("x-session-id", "s-1"),
            ("traceparent", "00-1-2-03"),
            ("x-tenant", "a"),
            ("x-custom", "one"),
            ("x-custom", "two"),
            ("content-type", "application/json"),
            ("accept-encoding", "identity"),
            ("x-request-id", "brg-1-p1"),
        )
    )


@pytest.mark.parametrize(
    ("sent", "api_key", "authorizations"),
    [
        ((), None, []),
        ((), "ours", ["Bearer ours"]),
        ((("authorization", "Bearer theirs"),), "ours", ["Bearer theirs"]),
        ((("authorization", "Bearer theirs"),), None, ["Bearer theirs"]),
        ((("x-api-key", "theirs"),), "ours", ["Bearer ours"]),
    ],
)
def test_our_key_goes_only_where_the_client_gave_none(
    sent: tuple[tuple[str, str], ...], api_key: str | None, authorizations: list[str]
) -> None:
    headers = engine_headers(sent, leg_id="x", api_key=api_key)
    assert [value for name, value in headers if name == "authorization"] == authorizations


TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLERS = (("traceparent", f"00-{TRACE}-00f067aa0ba902b7-01"), ("tracestate", "vendor=1"), ("baggage", "a=b"))


def traced(headers: Sequence[tuple[str, str]], traceparent: str | None) -> dict[str, str]:
    names = {"traceparent", "tracestate", "baggage"}
    sent = engine_headers(headers, leg_id="x", traceparent=traceparent)
    assert len([name for name, _ in sent if name == "traceparent"]) <= 1
    return {name: value for name, value in sent if name in names}


def test_a_callers_trace_passes_or_goes_on_in_the_legs_own_span() -> None:
    own = f"00-{TRACE}-1111111111111111-01"
    assert traced(CALLERS, None) == dict(CALLERS)
    assert traced(CALLERS, own) == {**dict(CALLERS), "traceparent": own}
    assert traced((), own) == {"traceparent": own}
    assert traced((), None) == {}


def test_the_state_of_a_trace_that_cannot_be_read_does_not_go_on() -> None:
    """W3C Trace Context, 3.4: without a valid ``traceparent`` there is no ``tracestate``."""
    own = f"00-{TRACE}-1111111111111111-01"
    broken = (("traceparent", "what"), *CALLERS[1:])
    assert traced(broken, own) == {"traceparent": own, "baggage": "a=b"}
    assert traced(broken, None) == dict(broken), "whoever does not trace changes nothing"


def test_headers_of_an_answer() -> None:
    given = (
        ("date", "Sun, 29 Nov 2026 14:32:13 GMT"),
        ("server", "uvicorn"),
        ("content-length", "20"),
        ("content-type", "text/event-stream; charset=utf-8"),
        ("transfer-encoding", "chunked"),
        ("connection", "x-hop"),
        ("x-hop", "1"),
        ("x-request-id", "brg-1-d2"),
        ("vary", "Origin"),
        ("retry-after", "3"),
        ("x-custom", "one"),
        ("x-custom", "two"),
    )
    assert client_headers(given) == [
        ("content-type", "text/event-stream; charset=utf-8"),
        ("vary", "Origin"),
        ("retry-after", "3"),
        ("x-custom", "one"),
        ("x-custom", "two"),
    ]


def test_a_turn_that_stays_asks_for_a_handle_beside_the_clients_own_arguments() -> None:
    request = request_of(b'"vllm_xargs":{"mine":[1.0]},"temperature":0.50')
    body = raws(stay_body(request, want_token_ids=True))
    assert body["vllm_xargs"] == b'{"mine":[1.0],"boomerang_stay":1}'
    assert body["return_token_ids"] == b"true"
    assert body["temperature"] == b"0.50"
    assert "kv_transfer_params" not in body
    plain = raws(stay_body(request_of(b'"model":"m"'), want_token_ids=False, salt="s"))
    assert plain["vllm_xargs"] == b'{"boomerang_stay":1}'
    assert plain["cache_salt"] == b'"s"'
    assert "return_token_ids" not in plain


@pytest.mark.parametrize("xargs", [b"null", b"3", b'"text"', b"[1]"])
def test_arguments_that_are_no_object_are_left_to_the_engine(xargs: bytes) -> None:
    request = request_of(b'"vllm_xargs":' + xargs)
    assert raws(stay_body(request, want_token_ids=False))["vllm_xargs"] == xargs


def test_a_leg_says_which_rank_it_is_for_and_a_client_cannot() -> None:
    given = (("x-data-parallel-rank", "7"),)
    assert "x-data-parallel-rank" not in dict(engine_headers(given, leg_id="x"))
    assert dict(engine_headers(given, leg_id="x", rank=0))["x-data-parallel-rank"] == "0"
    assert [k for k, _ in engine_headers(given, leg_id="x", rank=3)].count("x-data-parallel-rank") == 1
