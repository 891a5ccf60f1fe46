"""Reading a client's request: what decisions need of it, and that no body ever makes reading fail."""

import json
from array import array
from collections.abc import Mapping
from typing import Any

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.turn.members import InvalidRequest, decode_members, flag, small
from router.turn.request import Endpoint, Request, Unsplit, conversation_hint, read_request

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
PATHS = {
    Endpoint.CHAT: "/v1/chat/completions",
    Endpoint.COMPLETIONS: "/v1/completions",
    Endpoint.OTHER: "/v1/responses",
}


def read(
    body: bytes | Mapping[str, Any],
    endpoint: Endpoint = Endpoint.CHAT,
    headers: tuple[tuple[str, str], ...] = (),
) -> Request:
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()
    return read_request(endpoint, PATHS[endpoint], headers, sent, turn_id="brg-1")


def chat(**members: Any) -> Request:
    return read({**CHAT, **members})


def completions(**members: Any) -> Request:
    return read({"model": "m", "prompt": "hi", **members}, Endpoint.COMPLETIONS)


def test_a_plain_request() -> None:
    headers = (("x-request-id", "mine"), ("authorization", "Bearer key"))
    request = read({**CHAT, "stream": True, "return_token_ids": True}, headers=headers)
    assert (request.endpoint, request.path, request.headers) == (Endpoint.CHAT, PATHS[Endpoint.CHAT], headers)
    assert (request.model, request.stream, request.wants_token_ids) == ("m", True, True)
    assert (request.unsplit, request.conversation) == (None, "")
    assert (request.turn_id, request.client_id) == ("brg-1", "mine")


def test_every_member_keeps_its_own_bytes() -> None:
    body = b'{"a": 1.0 ,"b":[1, 2],"c":"\\u0041","d" : 12345678901234567890123, "model":"m"}'
    members = {name: bytes(raw) for name, raw in read(body).members.items()}
    assert members == {
        "a": b"1.0",
        "b": b"[1, 2]",
        "c": b'"\\u0041"',
        "d": b"12345678901234567890123",
        "model": b'"m"',
    }


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"null",
        b"[]",
        b'[{"model":"m"}]',
        b'"text"',
        b"1",
        b"{",
        b'{"model":"m"',
        b'{"model":"m"} {}',
        b"{'model':'m'}",
        b'{"model":"m",}',
        b'{"a":NaN}',
        b'{"a":01}',
        b'{"\xff":1}',
        b'{"a":"\x01"}',
        b"\xef\xbb\xbf{}",
        "{}".encode("utf-16"),
        b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"a":' * 100_000,
    ],
)
def test_what_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest, match="not a JSON object") as refused:
        read(body)
    assert refused.value.param is None


@pytest.mark.parametrize("model", [1, 1.5, True, [], ["m"], {}, {"name": "m"}])
def test_a_model_is_a_text(model: Any) -> None:
    with pytest.raises(InvalidRequest, match="model has to be a string") as refused:
        chat(model=model)
    assert refused.value.param == "model"


def test_a_model_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(InvalidRequest) as refused:
        read(b'{"model":"\xff"}')
    assert refused.value.param == "model"


@pytest.mark.parametrize("body", [b"{}", b'{"model":null}', b'{"model":""}'])
def test_a_request_need_not_name_a_model(body: bytes) -> None:
    assert read(body).model == ""


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=12)
    | st.text(min_size=70, max_size=300),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=10,
)
NAMES = st.sampled_from([
    "model", "messages", "prompt", "n", "best_of", "use_beam_search", "prompt_logprobs", "prompt_embeds",
    "echo", "logprobs", "stream", "return_token_ids", "session_id", "conversation_id", "vllm_xargs",
])  # fmt: skip
ENDPOINTS = st.sampled_from(Endpoint)


@given(ENDPOINTS, st.dictionaries(NAMES | st.text(max_size=5), JSON, max_size=8))
def test_any_object_is_read_or_refused_for_its_model(endpoint: Endpoint, body: dict[str, Any]) -> None:
    if not isinstance(body.get("model"), str | None):
        with pytest.raises(InvalidRequest, match="model has to be a string"):
            read(body, endpoint)
        return
    request = read(body, endpoint)
    said = {name: value for name, value in body.items() if name != "conversation_id"}
    assert {name: json.loads(bytes(raw)) for name, raw in request.members.items()} == said
    assert request.model == (body.get("model") or "")


# Values that pass a scan of the document and fail when they are decoded.
TRAPS = st.sampled_from(
    [b"1e999", b"-1e999", b'"\xff"', b'"\xc3"', b'{"a":1e999}', b'["\xff"]', b'{"session_id":"\xff"}']
)


@given(ENDPOINTS, st.dictionaries(NAMES, TRAPS, min_size=1, max_size=4))
def test_values_that_cannot_be_decoded_are_refused_or_left_to_the_engine(
    endpoint: Endpoint, traps: dict[str, bytes]
) -> None:
    body = b"{" + b",".join(b'"%b":%b' % (name.encode(), raw) for name, raw in traps.items()) + b"}"
    if "model" in traps:
        with pytest.raises(InvalidRequest, match="model has to be a string"):
            read(body, endpoint)
        return
    request = read(body, endpoint)
    said = {name: raw for name, raw in traps.items() if name != "conversation_id"}
    assert {name: bytes(raw) for name, raw in request.members.items()} == said


@given(st.binary(max_size=40) | st.text(alphabet='{}[]":,\\une10 ', max_size=40).map(str.encode))
def test_bytes_of_any_kind_are_a_request_or_refused(body: bytes) -> None:
    try:
        request = read(body)
    except InvalidRequest:
        return
    assert body.strip(b" \t\n\r").startswith(b"{")
    assert isinstance(request.members, dict)


@pytest.mark.parametrize(
    "xargs", [b'{"\xff":1}', b'{"\xff":1,"kv_transfer_params":{}}', b'{"a":1,"\xc3":2}']
)  # fmt: skip
def test_plugin_arguments_that_cannot_be_read_are_refused(xargs: bytes) -> None:
    """Whatever steers an engine could hide in them."""
    with pytest.raises(InvalidRequest) as refused:
        read(b'{"model":"m","vllm_xargs":' + xargs + b"}")
    assert refused.value.param == "vllm_xargs"


def test_to_pin_blocks_is_not_a_clients_to_ask() -> None:
    members = chat(vllm_xargs={"boomerang_stay": 1, "a": 1}).members
    assert json.loads(bytes(members["vllm_xargs"])) == {"a": 1}


@pytest.mark.parametrize("xargs", [None, [], "text", 1, {}, {"a": 1}])
def test_other_plugin_arguments_are_the_engines_to_judge(xargs: Any) -> None:
    assert json.loads(bytes(chat(vllm_xargs=xargs).members["vllm_xargs"])) == xargs


LONG_ONE = b"1." + b"0" * 80
LONG_TWO = b"2." + b"0" * 80


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        (b'"n":1', None),
        (b'"n":1.0', None),
        (b'"n":null', None),
        (b'"n":2', Unsplit.CHOICES),
        (b'"n":2.0', Unsplit.CHOICES),
        (b'"n":0', Unsplit.CHOICES),
        (b'"n":-1', Unsplit.CHOICES),
        (b'"n":false', Unsplit.CHOICES),
        (b'"n":"2"', Unsplit.CHOICES),
        (b'"n":[1]', Unsplit.CHOICES),
        (b'"n":1e999', Unsplit.CHOICES),
        (b'"n":"\xff"', Unsplit.CHOICES),
        (b'"n":' + LONG_TWO, Unsplit.CHOICES),
        (b'"n":' + LONG_ONE, Unsplit.CHOICES),
        (b'"best_of":1', None),
        (b'"best_of":null', None),
        (b'"best_of":3', Unsplit.BEST_OF),
        (b'"best_of":"3"', Unsplit.BEST_OF),
        (b'"best_of":' + LONG_TWO, Unsplit.BEST_OF),
        (b'"use_beam_search":false', None),
        (b'"use_beam_search":null', None),
        (b'"use_beam_search":true', Unsplit.BEAM_SEARCH),
        (b'"use_beam_search":1', Unsplit.BEAM_SEARCH),
        (b'"use_beam_search":"yes"', Unsplit.BEAM_SEARCH),
        (b'"prompt_logprobs":null', None),
        (b'"prompt_logprobs":0', Unsplit.PROMPT_LOGPROBS),
        (b'"prompt_logprobs":5', Unsplit.PROMPT_LOGPROBS),
        (b'"prompt_logprobs":-1', Unsplit.PROMPT_LOGPROBS),
        (b'"prompt_logprobs":' + LONG_TWO, Unsplit.PROMPT_LOGPROBS),
        (b'"prompt_embeds":null', None),
        (b'"prompt_embeds":"' + b"A" * 5000 + b'"', Unsplit.PROMPT_EMBEDS),
        (b'"prompt_embeds":["QUJD"]', Unsplit.PROMPT_EMBEDS),
        (b'"logprobs":5', None),
        (b'"logprobs":true,"top_logprobs":5', None),
        (b'"echo":false,"logprobs":5', None),
        (b'"echo":null,"logprobs":5', None),
        (b'"echo":true,"logprobs":0', Unsplit.ECHO_LOGPROBS),
        (b'"echo":true,"logprobs":0.0', Unsplit.ECHO_LOGPROBS),
        (b'"echo":true,"logprobs":1', Unsplit.ECHO_LOGPROBS),
        (b'"echo":true,"logprobs":true', Unsplit.ECHO_LOGPROBS),
        (b'"echo":"true","logprobs":5', Unsplit.ECHO_LOGPROBS),
        (b'"echo":1,"logprobs":5', Unsplit.ECHO_LOGPROBS),
        (b'"truncate_prompt_tokens":null', None),
        (b'"truncate_prompt_tokens":0', None),
        (b'"truncate_prompt_tokens":500', None),
        (b'"truncate_prompt_tokens":-1', Unsplit.TRUNCATION),
        (b'"truncate_prompt_tokens":-1.0', Unsplit.TRUNCATION),
        (b'"truncate_prompt_tokens":"-1"', Unsplit.TRUNCATION),
        (b'"truncate_prompt_tokens":1e999', Unsplit.TRUNCATION),
        (b'"truncate_prompt_tokens":{}', Unsplit.TRUNCATION),
        (b'"\\u006e":2', Unsplit.CHOICES),
        (b'"n":1,"n":2', Unsplit.CHOICES),
        (b'"n":2,"n":1', None),
        (b'"N":2', None),
        (b'"stop":["a"],"max_tokens":5,"tools":[],"unknown":{"n":2}', None),
    ],
)
@pytest.mark.parametrize("endpoint", [Endpoint.CHAT, Endpoint.COMPLETIONS])
def test_what_cannot_be_split_and_why(endpoint: Endpoint, members: bytes, reason: Unsplit | None) -> None:
    assert read(b'{"model":"m",' + members + b"}", endpoint).unsplit is reason


@pytest.mark.parametrize("more", [b"", b',"logprobs":null', b',"logprobs":false'])
def test_an_echo_asks_for_the_prompts_log_probabilities_in_a_chat(more: bytes) -> None:
    body = b'{"model":"m","echo":true' + more + b"}"
    assert read(body, Endpoint.CHAT).unsplit is Unsplit.ECHO_LOGPROBS
    assert read(body, Endpoint.COMPLETIONS).unsplit is None
    assert read(body.replace(b"true", b"false"), Endpoint.CHAT).unsplit is None


@pytest.mark.parametrize(
    ("prompt", "several"),
    [
        (b'"one"', False),
        (b'""', False),
        (b'"[\\"a\\", \\"b\\"]"', False),
        (b"[1,2,3]", False),
        (b"[ 1, 2 ]", False),
        (b"[\n1]", False),
        (b"[-1]", False),
        (b"[" + b" " * 100 + b"1]", False),
        (b"[]", False),
        (b"[ ]", False),
        (b"null", False),
        (b'["one"]', True),
        (b'["one","two"]', True),
        (b'[ "one" ]', True),
        (b'[\t\r\n"one"]', True),
        (b"[" + b" " * 100 + b'"one","two"]', True),
        (b"[[1,2],[3]]", True),
        (b"[[1,2]]", True),
        (b"[ [ ] ]", True),
        (b'[{"prompt_embeds":"x"}]', True),
        (b"[null]", True),
    ],
)
def test_a_list_of_ids_is_one_prompt_and_any_other_list_is_several(prompt: bytes, several: bool) -> None:
    body = b'{"model":"m","prompt":' + prompt + b"}"
    assert read(body, Endpoint.COMPLETIONS).unsplit is (Unsplit.PROMPT_LIST if several else None)
    assert read(body, Endpoint.CHAT).unsplit is None, "a chat request has no prompt of its own"


def test_a_long_prompt_of_ids_is_one_prompt() -> None:
    assert completions(prompt=list(range(200_000))).unsplit is None


def test_an_endpoint_that_is_not_known_to_split_does_not() -> None:
    assert read(CHAT, Endpoint.OTHER).unsplit is Unsplit.ENDPOINT


@pytest.mark.parametrize(
    "value",
    json.loads(
        '[true, false, null, 0, 1, 2, -1, 1.0, 0.0, 0.5, "true", "True", "TRUE", "t", "1", "on", "On", "yes",'
        '"y", "Y", "false", "0", "off", "no", "n", "f", "", " t", "so", "2", [], [true], {}, {"a": true}]'
    ),
)
def test_flags_are_read_as_vllm_reads_them(value: Any) -> None:
    """vLLM's models are pydantic's lax ones; what they refuse, the decode node refuses."""
    raw = json.dumps(value)
    try:
        expected = pydantic.TypeAdapter(bool | None).validate_json(raw) is True
    except pydantic.ValidationError:
        expected = False
    assert flag({"stream": msgspec.Raw(raw.encode())}, "stream") is expected
    assert chat(stream=value, return_token_ids=value).stream is expected
    assert chat(stream=value, return_token_ids=value).wants_token_ids is expected


def test_small_values_are_decoded_and_all_others_are_none() -> None:
    members = decode_members(
        b'{"number":1.5,"word":"none","flag":true,"null":null,"long":"'
        + b"x" * 80
        + b'","bad":"\xff","huge":1e999}'
    )
    names = ("number", "word", "flag", "null", "long", "bad", "huge", "absent")
    assert [small(members, name) for name in names] == [1.5, "none", True, None, None, None, None, None]


@pytest.mark.parametrize(
    ("headers", "members", "hint"),
    [
        ({}, {}, ""),
        ({"x-session-id": "a"}, {}, "a"),
        ({"x-conversation-id": "a"}, {}, "a"),
        ({"x-claude-code-session-id": "a"}, {}, "a"),
        ({"x-session-affinity": "a"}, {}, "a"),
        ({"x-correlation-id": "a"}, {}, "a"),
        ({"x-correlation-id": "b", "x-session-id": "a"}, {}, "a"),
        ({"x-session-id": "", "x-conversation-id": "b"}, {}, "b"),
        ({"x-session-id": "\x00\x01", "x-conversation-id": "b"}, {}, "b"),
        ({"x-request-id": "a"}, {}, ""),
        ({}, {"session_id": "a"}, "a"),
        ({}, {"conversation_id": "a"}, "a"),
        ({}, {"session_id": "a", "conversation_id": "b"}, "a"),
        ({}, {"session_id": None, "conversation_id": "b"}, "b"),
        ({}, {"session_id": "", "conversation_id": "b"}, "b"),
        ({}, {"session_id": 7, "conversation_id": "b"}, "b"),
        ({}, {"session_id": ["a"], "conversation_id": {"b": 1}}, ""),
        ({}, {"session_id": "x" * 5000, "conversation_id": "b"}, "b"),
        # The order of vLLM: body, header, plugin arguments.
        ({"x-session-id": "b"}, {"session_id": "a"}, "a"),
        ({"x-session-id": "b"}, {"conversation_id": "c"}, "b"),
        ({"x-session-id": "b"}, {"vllm_xargs": {"session_id": "c"}}, "b"),
        ({}, {"vllm_xargs": {"session_id": "c"}}, "c"),
        ({}, {"vllm_xargs": {"session_id": 5}}, ""),
        ({}, {"vllm_xargs": "session_id"}, ""),
        ({}, {"vllm_xargs": None}, ""),
    ],
)
def test_where_a_conversations_id_is_found(
    headers: dict[str, str], members: dict[str, Any], hint: str
) -> None:
    assert conversation_hint(headers, decode_members(json.dumps(members).encode())) == hint
    assert read({**CHAT, **members}, headers=tuple(headers.items())).conversation == hint


@given(st.text(max_size=300), st.sampled_from(["header", "member"]))
def test_a_conversations_id_is_safe_to_print(given_id: str, place: str) -> None:
    headers = {"x-session-id": given_id} if place == "header" else {}
    members = {} if place == "header" else {"session_id": given_id}
    hint = conversation_hint(headers, decode_members(json.dumps(members, ensure_ascii=False).encode()))
    assert hint == "" or (hint.isascii() and hint.isprintable() and len(hint) <= 128)
    assert hint in "".join(c for c in given_id if c.isascii() and c.isprintable())


def test_a_line_break_in_an_id_does_not_survive() -> None:
    request = read(CHAT, headers=(("x-session-id", "a\r\nset-cookie: b"), ("x-request-id", "c\nd\x1b[31m")))
    assert request.conversation == "aset-cookie: b"
    assert request.client_id == "cd[31m"


@pytest.mark.parametrize(
    ("given_id", "client_id"), [("", "brg-1"), ("\n\x00", "brg-1"), ("é", "brg-1"), ("a" * 300, "a" * 256)]
)
def test_a_request_id_of_no_use_is_replaced_by_ours(given_id: str, client_id: str) -> None:
    assert read(CHAT, headers=(("x-request-id", given_id),)).client_id == client_id


def test_a_request_without_an_id_has_ours() -> None:
    assert read(CHAT).client_id == "brg-1"


def test_a_prompt_given_as_ids_is_kept_as_it_came() -> None:
    ids = array("I", range(1000))
    assert json.loads(bytes(completions(prompt=list(ids)).members["prompt"])) == list(ids)


@pytest.mark.parametrize(
    ("query", "target"),
    [("", "/v1/chat/completions"), ("beta=true&a=%20", "/v1/chat/completions?beta=true&a=%20")],
)
def test_a_query_goes_on_to_the_engines(query: str, target: str) -> None:
    body = json.dumps(CHAT).encode()
    path = "/v1/chat/completions"
    assert read_request(Endpoint.CHAT, path, (), body, turn_id="brg-1", query=query).target == target
