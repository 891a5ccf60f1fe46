"""The tap: bytes through, private members out, and nothing depends on how the stream was split."""

import json
from array import array
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.turn.splice import drop, put
from router.turn.sse import EventTooLarge
from router.turn.tap import Tap, TapEnd, TapSettings, error_event, lift

PLAIN = TapSettings()
IDS = TapSettings(lift_token_ids=True, hide_token_ids=True)
EXPOSED = TapSettings(expose_params=True)

HANDLE = (
    b'{"remote_host":"10.0.0.7","remote_block_ids":[[1,2,3]],"note":"\\u0041, \\"}","future_key":{"a":[]}}'
)
DONE = b"data: [DONE]\n\n"
SECRETS = (b"remote_host", b"10.0.0.7")


def compact(document: object) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def event(document: object) -> bytes:
    return b"data: " + (document if isinstance(document, bytes) else compact(document)) + b"\n\n"


def chunk(content: str | None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": {} if content is None else {"content": content}, "logprobs": None}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [{**choice, "finish_reason": finish, **more}],
    }


def with_handle(document: dict[str, Any], handle: bytes = HANDLE) -> bytes:
    return event(compact(document)[:-1] + b',"kv_transfer_params":' + handle + b"}")


ROLE = event(
    {
        "id": "chatcmpl-1",
        "model": "m",
        "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}],
    }
)
USAGE = {
    "id": "chatcmpl-1",
    "model": "m",
    "choices": [],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2},
}
BARE = {"id": "chatcmpl-1", "model": "m", "choices": []}


def run(stream: bytes | list[bytes], settings: TapSettings = PLAIN) -> tuple[bytes, TapEnd]:
    tap = Tap(settings)
    chunks = [stream] if isinstance(stream, bytes) else stream
    forwarded = b"".join([tap.feed(part) for part in chunks])
    return forwarded, tap.finish()


# ---- what a client gets, and what the router gets ------------------------------------------------


def test_a_stream_without_anything_of_ours_passes_untouched() -> None:
    stream = ROLE + event(chunk("汉字 😀 \u2028")) + event(chunk("b", "stop")) + event(USAGE) + DONE
    forwarded, end = run(stream)
    assert forwarded == stream
    assert end.complete
    assert end.answer.params is None
    assert end.answer.finish_reasons == ("stop",)
    assert end.answer.usage is not None
    assert end.answer.usage.completion_tokens == 2
    assert end.dropped_bytes == 0


@pytest.mark.parametrize("place", ["role", "content", "finish", "bare", "usage"])
def test_the_handle_is_found_in_any_chunk_and_cut_out(place: str) -> None:
    documents: dict[str, dict[str, Any]] = {
        "role": chunk(""),
        "content": chunk("汉字"),
        "finish": chunk(None, "stop"),
        "bare": BARE,
        "usage": USAGE,
    }
    stream, expected = b"", b""
    for name, document in documents.items():
        here = name == place
        stream += with_handle(document) if here else event(document)
        expected += b"" if here and name == "bare" else event(document)
    forwarded, end = run(stream + DONE)
    assert forwarded == expected + DONE
    assert end.answer.params == HANDLE
    assert end.complete
    for cut in range(len(stream)):
        assert run([stream[:cut], stream[cut:], DONE]) == (forwarded, end)


def test_other_members_of_the_event_keep_their_bytes() -> None:
    private = b'"kv_transfer_params" : ' + HANDLE
    rest = [
        b'"z" :  1.50e+3',
        b'"choices": [ {"index":0, "delta":{"content":"\\u00e9\xc3\xa9"}} ]',
        b'"z":[ ]',
    ]
    for at in range(len(rest) + 1):
        members = [*rest[:at], private, *rest[at:]]
        stream = event(b"{ " + b" , ".join(members) + b" }")
        forwarded, end = run(stream)
        assert end.answer.params == HANDLE
        left = b" , ".join(rest)
        # The member goes with one comma; only the space around it may differ from never having been there.
        assert b"".join(forwarded.split()) == b"".join(event(b"{ " + left + b" }").split())
        for member in rest:
            assert member in forwarded


def test_the_last_handle_counts_and_null_is_none() -> None:
    later = b'{"remote_host":"later"}'
    stream = (
        with_handle(chunk("a")) + with_handle(chunk("b", "stop"), later) + with_handle(USAGE, b"null") + DONE
    )
    forwarded, end = run(stream)
    assert end.answer.params == later
    # A null tells nothing, and an engine without a handle may send it: it stays.
    assert forwarded == event(chunk("a")) + event(chunk("b", "stop")) + with_handle(USAGE, b"null") + DONE


def test_a_handle_of_several_choices_is_hidden_but_not_used() -> None:
    second = chunk("b", "stop", index=1)
    forwarded, end = run(event(chunk("a", "stop")) + event(second) + with_handle(BARE) + DONE)
    assert forwarded == event(chunk("a", "stop")) + event(second) + DONE
    assert end.answer.several_choices
    assert end.answer.params is None


def test_an_operator_may_expose_the_params() -> None:
    stream = event(chunk("a")) + with_handle(chunk("b", "stop")) + with_handle(BARE) + DONE
    forwarded, end = run(stream, EXPOSED)
    assert forwarded == stream
    assert end.answer.params == HANDLE


def test_the_other_transfer_params_are_private_too() -> None:
    document = compact(chunk("a"))
    stream = event(document[:-1] + b',"ec_transfer_params":{"remote_host":"10.0.0.7"}}')
    forwarded, end = run(stream)
    assert forwarded == event(document)
    assert end.answer.params is None


@pytest.mark.parametrize(
    ("extra", "stays"),
    [
        ({}, False),
        ({"object": "chat.completion.chunk", "created": 1, "system_fingerprint": "f"}, False),
        ({"usage": None, "service_tier": None, "future": None}, False),
        ({"usage": {"prompt_tokens": 1}}, True),
        ({"metrics": {"time_to_first_token_ms": 1}}, True),
        ({"future": 0}, True),
        ({"error": {"message": "boom"}}, True),
    ],
)
def test_an_event_that_is_only_for_the_router_goes_as_a_whole(extra: dict[str, Any], stays: bool) -> None:
    document = {**BARE, **extra}
    forwarded, end = run(event(chunk("a")) + with_handle(document) + DONE)
    assert forwarded == event(chunk("a")) + (event(document) if stays else b"") + DONE
    assert end.answer.params == HANDLE
    assert run(event(chunk("a")) + with_handle(document, b"null"))[0].count(b"data:") == 2


def test_an_engines_own_empty_chunk_stays() -> None:
    stream = event(chunk("a")) + event(BARE) + event(b"{}") + DONE
    assert run(stream)[0] == stream


# ---- no leak -------------------------------------------------------------------------------------


def escapes(name: str) -> list[str]:
    spellings = [
        "".join(f"\\u{ord(char):04x}" for char in name),
        "".join(f"\\u{ord(char):04X}" for char in name),
    ]
    return spellings + [f"{name[:at]}\\u{ord(name[at]):04x}{name[at + 1 :]}" for at in range(len(name))]


@pytest.mark.parametrize(
    "layout", ['{"choices":[],"%s":%s}', '{ "%s"\t: %s ,"choices":[{"delta":{"content":"x"}}]}']
)
@pytest.mark.parametrize("name", ["kv_transfer_params", "ec_transfer_params"])
def test_no_spelling_of_the_name_leaks(name: str, layout: str) -> None:
    for spelled in escapes(name):
        document = (layout % (spelled, HANDLE.decode())).encode()
        for stream in (event(document), event(chunk("a")) + event(document) + DONE):
            forwarded, end = run(stream)
            assert not any(secret in forwarded for secret in SECRETS)
            assert end.answer.params == (HANDLE if name == "kv_transfer_params" else None)
        lifted = lift(document, PLAIN)
        assert not any(secret in lifted.body for secret in SECRETS)
        assert json.loads(lifted.body)[name] is None


@pytest.mark.parametrize(
    "data",
    [
        b'{"choices":[],"kv_transfer_params":{"remote_host":"10.0.0.7"',
        b'{"choices":[],"kv_transfer_params":{"remote_host":"10.0.0.7"}]',
        b'{"choices":[]}{"kv_transfer_params":{"remote_host":"10.0.0.7"}}',
        b'\xef\xbb\xbf{"\\u006bv_transfer_params":{"remote_host":"10.0.0.7"}}',
    ],
)
def test_what_no_one_can_parse_does_not_leak_either(data: bytes) -> None:
    forwarded, end = run(event(chunk("a")) + event(data) + DONE)
    assert forwarded == event(chunk("a")) + DONE
    assert end.answer.params is None
    assert end.answer.unreadable == 1


def test_duplicates_of_the_member_all_go() -> None:
    twice = (
        b'{"kv_transfer_params":{"remote_host":"10.0.0.7"},"choices":[],"x":1,"kv_transfer_params":'
        + HANDLE
        + b"}"
    )
    forwarded, end = run(event(twice))
    assert forwarded == event(b'{"choices":[],"x":1}')
    assert end.answer.params == HANDLE


def test_a_deep_event_is_searched_too() -> None:
    deep = b"[" * 20_000 + b"]" * 20_000
    forwarded, end = run(event(b'{"x":' + deep + b',"kv_transfer_params":' + HANDLE + b"}"))
    assert forwarded == event(b'{"x":' + deep + b"}")
    assert end.answer.params == HANDLE
    assert end.answer.unreadable == 1


_NAMES = st.sampled_from(["id", "model", "error_text", "note", "kv_transfer_param", "ec_transfer_params"])
_TEXTS = st.sampled_from(
    ["", "a", 'say "kv_transfer_params":{}', "é, }", "\\u006bv_transfer_params", "[DONE]"]
)
_MEMBERS = st.dictionaries(_NAMES, st.one_of(st.none(), st.integers(), _TEXTS, st.lists(_TEXTS, max_size=2)))


@pytest.mark.parametrize("choice", [b'"delta" 1', b'"delta":', b"1"])
def test_an_event_with_a_broken_choice_shows_no_params(choice: bytes) -> None:
    """Its own members can be told apart, and those of its choice cannot: that failed the whole turn."""
    tap = Tap(PLAIN)
    assert tap.feed(b'data: {"choices":[{%b}],"kv_transfer_params":%b}\n\n' % (choice, HANDLE)) == b""
    assert tap.feed(event(chunk("a"))) == event(chunk("a"))
    assert tap.feed(DONE) == DONE
    end = tap.finish()
    assert end.answer.params is None
    assert end.answer.unreadable == 1


@given(_MEMBERS, _MEMBERS, st.dictionaries(_TEXTS, _TEXTS), st.sampled_from([(",", ":"), (", ", ": ")]))
def test_the_handle_is_cut_as_splicing_cuts_it(
    before: dict[str, Any], behind: dict[str, Any], params: dict[str, Any], separators: tuple[str, str]
) -> None:
    """Wherever it stands among other members, and whatever those and the handle itself say."""
    choices = {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}]}
    whole = {**before, **choices, "kv_transfer_params": params, **behind}
    document = json.dumps(whole, ensure_ascii=False, separators=separators).encode()
    forwarded, end = run(event(document) + DONE)
    private = [name for name in ("kv_transfer_params", "ec_transfer_params") if whole.get(name) is not None]
    assert forwarded == event(drop(document, private)) + DONE
    assert json.loads(end.answer.params or b"") == params
    lifted = lift(document, PLAIN)
    assert lifted.body == put(document, dict.fromkeys(private, b"null"))
    assert lifted.answer.params == end.answer.params


@pytest.mark.parametrize(
    "text", ["kv_transfer_params", '"kv_transfer_params":{"a":1}', "\x1b[0m <tag>", "[DONE]", "token_ids"]
)
def test_an_answer_may_speak_of_our_names(text: str) -> None:
    for ascii_only in (False, True):
        data = json.dumps(chunk(text), ensure_ascii=ascii_only).encode()
        stream = event(data) + event(data) + event(chunk("c", "stop")) + DONE
        forwarded, end = run(stream, IDS)
        assert forwarded == stream
        assert end.answer.params is None
        assert end.answer.finish_reasons == ("stop",)
        assert end.answer.error is None


def test_inside_other_members_the_name_is_not_ours() -> None:
    document = {
        **chunk("a"),
        "metadata": {"kv_transfer_params": {"a": 1}},
        "list": [{"kv_transfer_params": 2}],
    }
    stream = event(document) + DONE
    assert run(stream)[0] == stream


# ---- token ids -----------------------------------------------------------------------------------


def test_token_ids_that_only_we_asked_for_become_null() -> None:
    first = {**chunk(""), "prompt_token_ids": [1, 2, 3]}
    documents = [first, chunk("a", token_ids=[10, 11]), chunk("b", "stop", stop_reason=None, token_ids=[12])]
    forwarded, end = run(b"".join(map(event, documents)) + with_handle(USAGE) + DONE, IDS)
    seen = [
        {**first, "prompt_token_ids": None},
        chunk("a", token_ids=None),
        chunk("b", "stop", stop_reason=None, token_ids=None),
        USAGE,
    ]
    assert forwarded == b"".join(map(event, seen)) + DONE
    assert end.answer.prompt_token_ids == array("I", [1, 2, 3])
    assert end.answer.answer_token_ids == array("I", [10, 11, 12])
    assert end.answer.params == HANDLE


def test_completions_carry_prompt_ids_in_the_choice() -> None:
    def text(prompt: list[int] | None, ids: list[int] | None) -> dict[str, Any]:
        choice = {
            "index": 0,
            "text": "a",
            "prompt_token_ids": prompt,
            "token_ids": ids,
            "finish_reason": None,
        }
        return {"id": "cmpl-1", "object": "text_completion", "choices": [choice]}

    forwarded, end = run(event(text([1, 2], [3])) + event(text(None, [4])), IDS)
    assert forwarded == event(text(None, None)) * 2
    assert end.answer.prompt_token_ids == array("I", [1, 2])
    assert end.answer.answer_token_ids == array("I", [3, 4])


def test_a_client_that_asked_for_token_ids_gets_them() -> None:
    stream = event({**chunk("a", token_ids=[1]), "prompt_token_ids": [5]}) + DONE
    forwarded, end = run(stream, TapSettings(lift_token_ids=True))
    assert forwarded == stream
    assert end.answer.answer_token_ids == array("I", [1])
    assert run(stream)[0] == stream


@pytest.mark.parametrize(
    ("document", "stays"),
    [
        (chunk(None, token_ids=[7]), False),
        (chunk(None, token_ids=[]), False),
        (chunk(None, "stop", token_ids=[7]), True),
        (chunk("", token_ids=[7]), True),
        ({**chunk(None, token_ids=[7]), "usage": {"prompt_tokens": 1}}, True),
        (chunk(None, token_ids=None), True),
        ({"choices": [{"index": 0, "text": "", "token_ids": [7]}]}, True),
        ({"choices": [{"index": 0, "delta": {}, "logprobs": {"content": [1]}, "token_ids": [7]}]}, True),
    ],
)
def test_a_chunk_sent_only_for_its_token_ids_goes(document: dict[str, Any], stays: bool) -> None:
    hidden = {**document, "choices": [{**document["choices"][0], "token_ids": None}]}
    stream = event(chunk("a", token_ids=[1])) + event(document)
    assert run(stream, IDS)[0] == event(chunk("a", token_ids=None)) + (event(hidden) if stays else b"")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'"token_ids": [ 1 , 2 ]', b'"token_ids": null'),
        (b'"t\\u006fken_ids":[1,2]', b'"t\\u006fken_ids":null'),
        (b'"token_ids":[1,2],"token_ids":[3]', b'"token_ids":null,"token_ids":null'),
        (b'"x":{"token_ids":[9]},"token_ids":[1]', b'"x":{"token_ids":[9]},"token_ids":null'),
        (b'"x":{"token_ids":[9]},"token_ids":[ 1 ]', b'"x":{"token_ids":[9]},"token_ids":null'),
    ],
)
def test_token_ids_are_hidden_in_every_spelling_and_only_where_they_belong(
    before: bytes, after: bytes
) -> None:
    for content in (b"a", b'\\"token_ids\\":[1]'):
        event_of = b'data: {"choices":[{"delta":{"content":"' + content + b'"},%s}]}\n\n'
        forwarded, _ = run(event_of % before, IDS)
        assert forwarded == event_of % after


# ---- how a stream ends ---------------------------------------------------------------------------


def test_a_stream_without_done_is_not_complete_and_its_tail_is_dropped() -> None:
    stream = ROLE + event(chunk("a")) + event(chunk("b", "stop"))
    for tail in (b"", b"data: {", b"data: [DON", b"data: [DONE]", b"data: [DONE]\n", b": comment"):
        forwarded, end = run(stream + tail)
        assert forwarded == stream
        assert not end.done
        assert not end.complete
        assert end.dropped_bytes == len(tail)


def test_an_error_in_the_stream_passes_and_counts() -> None:
    error = (
        b'data: {"error": {"message": "boom", "type": "InternalServerError", "param": null, "code": 500}}\n\n'
    )
    for before in (b"", ROLE, event(chunk("a"))):
        forwarded, end = run(before + error + DONE)
        assert forwarded == before + error + DONE
        assert end.answer.error == error[len(b'data: {"error": ') : -len(b"}\n\n")]
        assert end.done
        assert not end.complete


def test_null_errors_are_none() -> None:
    assert run(event({**chunk("a"), "error": None}) * 2 + DONE)[1].complete


def test_the_error_event_is_what_an_openai_client_reads() -> None:
    ours = error_event('broken "off"\n', "server_error", 502, "/v1/chat/completions")
    forwarded, end = run(event(chunk("a")) + ours)
    assert forwarded == event(chunk("a")) + ours
    assert ours.endswith(b"\n\n" + DONE)
    assert end.answer.error is not None
    assert json.loads(end.answer.error) == {
        "message": 'broken "off"\n',
        "type": "server_error",
        "param": None,
        "code": 502,
    }


def test_the_error_event_has_a_name_where_clients_go_by_names() -> None:
    name, data = error_event('broken "off"\n', "server_error", 502, "/v1/messages").split(b"\n", 1)
    assert name == b"event: error"
    assert data.endswith(b"}\n\n")
    told = {"type": "api_error", "message": 'broken "off"\n'}
    assert json.loads(data.removeprefix(b"data: ")) == {"type": "error", "error": told}


def test_half_an_event_is_never_glued_to_the_error_event() -> None:
    stream = event(chunk("汉字")) + event(chunk("😀"))
    for cut in range(len(stream)):
        forwarded, end = run(stream[:cut])
        assert not end.complete
        told = forwarded + error_event("x", "server_error", 502, "/v1/completions")
        assert [json.loads(part[6:]) for part in told.split(b"\n\n")[:-2]][-1]["error"]["message"] == "x"


def test_done_and_content_are_known_at_once() -> None:
    tap = Tap(PLAIN)
    told = []
    for part in (ROLE, event(chunk("a")), with_handle(chunk("b", "stop")) + DONE):
        tap.feed(part)
        told.append((tap.saw_content, tap.done))
    assert told == [(False, False), (True, False), (True, True)]
    assert tap.answer() == tap.finish().answer
    assert tap.answer().params == HANDLE


# ---- bytes through -------------------------------------------------------------------------------


def test_events_go_on_as_soon_as_they_are_complete() -> None:
    tap = Tap(PLAIN)
    first, second = event(chunk("a")), event(chunk("b"))
    assert tap.feed(first[:-1]) == b""
    assert tap.feed(first[-1:] + second[:9]) == first
    assert tap.feed(second[9:]) == second
    assert tap.feed(b"") == b""
    assert tap.feed(first) is first


SAMPLE = (
    b"\xef\xbb\xbf"
    + ROLE
    + b": keep-alive\n\n"
    + event(chunk("汉字😀"))
    + event(chunk("crlf")).replace(b"\n", b"\r\n")
    + event(chunk("cr")).replace(b"\n", b"\r")
    + b'event: x\ndata:{"choices":[{"index":0,\ndata: "delta":{"content":"two lines"}}],\ndata\n'
    + b'data: "kv_transfer_params":{"a":1,\nid: 7\ndata: "b":2},\ndata: "z":1}\n\n'
    + with_handle(BARE).replace(b"\n", b"\r\n")
    + with_handle(BARE).replace(b"\n", b"\r")
    + b"\n"
    + with_handle(chunk(None, "tool_calls"))
    + event(USAGE)
    + DONE
)
SAMPLE_FORWARDED = (
    b"\xef\xbb\xbf"
    + ROLE
    + b": keep-alive\n\n"
    + event(chunk("汉字😀"))
    + event(chunk("crlf")).replace(b"\n", b"\r\n")
    + event(chunk("cr")).replace(b"\n", b"\r")
    + b'event: x\ndata:{"choices":[{"index":0,\ndata: "delta":{"content":"two lines"}}],\ndata\n'
    + b'data: \nid: 7\ndata: \ndata: "z":1}\n\n'
    + event(chunk(None, "tool_calls"))
    + event(USAGE)
    + DONE
)


@pytest.mark.parametrize("settings", [PLAIN, IDS, EXPOSED])
def test_every_split_of_a_sample(settings: TapSettings) -> None:
    forwarded, end = run(SAMPLE, settings)
    assert forwarded == (SAMPLE if settings is EXPOSED else SAMPLE_FORWARDED)
    assert end.answer.params == HANDLE
    assert end.answer.finish_reasons == ("tool_calls",)
    assert end.complete
    for cut in range(len(SAMPLE) + 1):
        assert run([SAMPLE[:cut], SAMPLE[cut:]], settings) == (forwarded, end)
    for size in (1, 2, 3, 5, 64):
        chunks = [SAMPLE[at : at + size] for at in range(0, len(SAMPLE), size)]
        assert run(chunks, settings) == (forwarded, end)


def test_the_params_may_lie_on_several_lines() -> None:
    _, end = run(b'data: {"choices":[],"kv_transfer_params":{"a":\ndata:1},"z":1}\n\n')
    assert end.answer.params == b'{"a":\n1}'


SPACE = st.sampled_from(["", "", "", " ", "\t", "  "])
MEMBERS = st.sampled_from(
    [
        ('"id"', '"x"'),
        ('"kv_transfer_params"', '{"secret":[1,{"b":"}"}]}'),
        ('"kv_\\u0074ransfer_params"', '{"secret":2}'),
        ('"ec_transfer_params"', '"secret"'),
        ('"kv_transfer_params"', "null"),
        ('"z"', '"kv_transfer_params 汉 \\u2028 \\" "'),
        ('"usage"', '{"prompt_tokens":1}'),
        ('"usage"', "null"),
        ('"error"', "null"),
        ('"w"', "[ 1 , [2] ]"),
    ]
)
PRIVATE_NAMES = {"kv_transfer_params", "ec_transfer_params"}


@st.composite
def documents(draw: st.DrawFn) -> tuple[str, str]:
    """A chunk's JSON, and the same without its private members, put together independently of the code."""
    content = draw(st.text(max_size=5))
    choices = compact(
        [{"index": 0, "delta": {"content": content}, "finish_reason": draw(st.sampled_from([None, "stop"]))}]
    )
    rows = [('"choices"', choices.decode()), *draw(st.lists(MEMBERS, max_size=4))]
    rows = draw(st.permutations(rows))
    parts = [(draw(SPACE), key + draw(SPACE) + ":" + draw(SPACE) + value, draw(SPACE)) for key, value in rows]
    keep = [json.loads(key) not in PRIVATE_NAMES or value == "null" for key, value in rows]
    last_kept = max(index for index, kept in enumerate(keep) if kept)
    edited = ""
    for index, (before, member, after) in enumerate(parts):
        comma = "," if index < last_kept else ""
        if keep[index]:
            edited += before + member + after + comma
        elif index < last_kept:
            edited += before
    if last_kept < len(parts) - 1:
        edited += parts[-1][2]
    return "{" + ",".join("".join(part) for part in parts) + "}", "{" + edited + "}"


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, bytes]:
    stream, expected = b"", b""
    for _ in range(draw(st.integers(0, 6))):
        end = draw(st.sampled_from([b"\n", b"\n", b"\r\n", b"\r"]))
        kind = draw(st.sampled_from(["json", "json", "json", "comment", "blank", "text", "done"]))
        if kind == "json":
            document, edited = draw(documents())
            field = draw(st.sampled_from([b"data: ", b"data:", b"id: 1" + end + b"data:"]))
            stream += field + document.encode() + end + end
            expected += field + edited.encode() + end + end
        else:
            raw = {
                "comment": b": kv_transfer_params" + end + end,
                "blank": end,
                "text": b"data: ping" + end + end,
                "done": b"data: [DONE]" + end + end,
            }[kind]
            # A lone CR and a blank LF line after it would be one CRLF: keep the pieces apart.
            if stream.endswith(b"\r") and raw.startswith(b"\n"):
                raw = b":" + end + raw
            stream += raw
            expected += raw
    return stream, expected


@settings(max_examples=400, deadline=None)
@given(streams(), st.data())
def test_random_streams_are_edited_alike_in_any_chunks(
    pair: tuple[bytes, bytes], data: st.DataObject
) -> None:
    stream, expected = pair
    forwarded, end = run(stream)
    assert forwarded == expected
    assert b"secret" not in forwarded
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    chunks = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert run(chunks) == (forwarded, end)
    assert run([bytes([byte]) for byte in stream]) == (forwarded, end)
    hidden, with_ids = run(chunks, IDS)
    assert hidden == forwarded
    assert with_ids.answer.params == end.answer.params
    assert run(stream, EXPOSED) == (stream, end)


def test_memory_is_bounded() -> None:
    tap = Tap(TapSettings(max_event_bytes=1000))
    for _ in range(100):
        assert tap.feed(event(chunk("a")))
    with pytest.raises(EventTooLarge):
        tap.feed(b"data: " + b"x" * 1000)
    for chunks in ([b"data: " + b"x" * 1000 + b"\n\n"], [b"x" * 600, b"x" * 600]):
        tap = Tap(TapSettings(max_event_bytes=1000))
        tap.feed(event(chunk("a")))
        with pytest.raises(EventTooLarge):
            run_all(tap, chunks)


def run_all(tap: Tap, chunks: list[bytes]) -> None:
    for part in chunks:
        tap.feed(part)


# ---- whole bodies --------------------------------------------------------------------------------


def body(params: bytes = b"null", ids: bytes = b"null", prompt: bytes = b"null") -> bytes:
    return (
        b'{"id":"chatcmpl-1","choices":[{"index":0,"message":{"role":"assistant",'
        b'"content":"\xe6\xb1\x89 kv_transfer_params","tool_calls":[]},"finish_reason":"stop",'
        b'"token_ids":%s}],"usage":{"prompt_tokens":5,"completion_tokens":2,'
        b'"prompt_tokens_details":{"cached_tokens":4}},"prompt_token_ids":%s , "kv_transfer_params": %s}\n'
    ) % (ids, prompt, params)


def test_a_whole_answer_loses_what_is_private_and_nothing_else() -> None:
    lifted = lift(body(HANDLE, b"[8, 9]", b"[1,2,3,4,5]"), IDS)
    assert lifted.body == body()
    answer = lifted.answer
    assert answer.params == HANDLE
    assert answer.prompt_token_ids == array("I", [1, 2, 3, 4, 5])
    assert answer.answer_token_ids == array("I", [8, 9])
    assert answer.finish_reasons == ("stop",)
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.cached_tokens) == (
        5,
        2,
        4,
    )
    assert answer.unreadable == 0


def test_a_whole_answer_without_anything_of_ours_is_the_same_object() -> None:
    source = compact({"choices": [{"index": 0, "text": "a", "finish_reason": "stop"}]})
    assert lift(source, IDS).body is source
    source = body()
    assert lift(source, IDS).body is source


def test_settings_for_whole_answers() -> None:
    source = body(HANDLE, b"[8]", b"[1]")
    assert lift(source, TapSettings(lift_token_ids=True)).body == body(b"null", b"[8]", b"[1]")
    exposed = lift(source, EXPOSED)
    assert exposed.body == source
    assert exposed.answer.params == HANDLE


def test_whole_answers_with_several_choices() -> None:
    choices = [{"index": n, "text": "a", "finish_reason": "stop", "token_ids": [n]} for n in range(2)]
    source = compact({"choices": choices})[:-1] + b',"kv_transfer_params":' + HANDLE + b"}"
    lifted = lift(source, IDS)
    hidden = compact({"choices": [{**choice, "token_ids": None} for choice in choices]})
    assert lifted.body == hidden[:-1] + b',"kv_transfer_params":null}'
    assert lifted.answer.params is None
    assert lifted.answer.finish_reasons == ("stop", "stop")


def test_an_error_under_status_200_is_seen() -> None:
    assert lift(b'{"error":{"message":"boom"}}', PLAIN).answer.error == b'{"message":"boom"}'


@pytest.mark.parametrize("source", [b"", b"<html>", b"[]", b"null", b'{"kv_transfer_params":{', b'{"a":1}x'])
def test_what_is_no_object_is_refused(source: bytes) -> None:
    with pytest.raises(ValueError, match="JSON"):
        lift(source, PLAIN)


def test_an_answer_of_another_shape_passes_and_says_so() -> None:
    source = b'{"choices":{"0":"odd"},"kv_transfer_params":' + HANDLE + b"}"
    lifted = lift(source, PLAIN)
    assert lifted.body == b'{"choices":{"0":"odd"},"kv_transfer_params":null}'
    assert lifted.answer.params == HANDLE
    assert lifted.answer.unreadable == 1
