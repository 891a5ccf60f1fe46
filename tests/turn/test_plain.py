"""Messages of texts alone: as they stand they have the form that reading and writing them gives."""

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from router.turn import history as history_module
from router.turn.canonical import canonical, encode
from router.turn.lineage import Lineage, lineage_of
from router.turn.plain import read_plain
from router.turn.prefixes import Prefixes
from router.turn.request import Endpoint

Json = Any
CALL: Json = {"id": "c", "type": "function", "function": {"name": "ls", "arguments": '{"a": "\\u00e9\\n"}'}}

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30) | st.sampled_from(
    [
        "x-anthropic-billing-header: a\nb",
        "a/b",
        "\\u00e9 \\/",
        "\x00\x1f\x7f",
        "\u2028\U0001f600",
        '},{"role":"',
        "}, {",
    ]
)
functions = st.fixed_dictionaries({"name": texts, "arguments": texts}, optional={"strict": st.booleans()})
calls = st.fixed_dictionaries(
    {"id": texts, "function": functions | functions.map(lambda value: {**value, "name": None})},
    optional={"type": st.just("function") | st.none(), "index": st.just(0), "cache_control": st.none()},
)
anything = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts
)
plain_messages = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool"])},
    optional={
        "content": texts | st.none(),
        "name": texts | st.none(),
        "reasoning": texts | st.none(),
        "reasoning_content": texts,
        "refusal": texts | st.none(),
        "tool_call_id": texts,
        "tool_calls": st.lists(calls, max_size=3) | st.none(),
    },
)
messages = plain_messages | st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user"]) | anything},
    optional={
        "content": anything
        | st.lists(
            st.fixed_dictionaries({"type": st.sampled_from(["text", "image_url"]), "text": texts}), max_size=2
        ),
        "audio": anything,
        "cache_control": st.just({"type": "ephemeral"}),
    },
)
writings = st.sampled_from(
    [
        {},
        {"indent": 1},
        {"separators": (",", ":")},
        {"separators": (",", ":"), "ensure_ascii": False},
        {"separators": (" ,\n", "\t: "), "ensure_ascii": False},
    ]
)


def written(history: list[Json], how: Json, *, slashes: bool) -> bytes:
    text = json.dumps(history, **how)
    return (text.replace("/", "\\/") if slashes else text).encode()


@given(st.lists(messages, max_size=5), writings, st.booleans())
def test_a_plain_message_has_its_canonical_form(history: list[Json], how: Json, slashes: bool) -> None:
    found = read_plain(written(history, how, slashes=slashes))
    if found is None:
        return
    assert found[1] == [encode(canonical(message)) for message in history]
    for message, given_message in zip(found[0], history, strict=True):
        assert set(message.names()) == set(canonical(given_message))


def of(raw: bytes, prefixes: Prefixes | None = None) -> Lineage:
    return lineage_of(Endpoint.CHAT, {"messages": msgspec.Raw(raw)}, b"t", prefixes)


@given(st.lists(messages, max_size=8), writings, st.booleans(), st.sampled_from([16, 64, 300]))
@example([{"role": "user", "content": '},{"role":"' * 99}] * 3, {}, False, 16)
@example([{"role": "assistant", "tool_calls": [CALL] * 9}] * 3, {"separators": (",", ":")}, False, 64)
def test_the_way_of_reading_changes_nothing(
    history: list[Json], how: Json, slashes: bool, stride_bytes: int
) -> None:
    raw = written(history, how, slashes=slashes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(history_module, "read_plain", lambda _messages: None)
        expected = of(raw)
    assert len(expected.keys) == len(history)
    assert of(raw) == expected
    prefixes = Prefixes(stride_bytes=stride_bytes)
    assert of(raw, prefixes) == of(raw, prefixes) == expected


@given(st.lists(messages, min_size=1, max_size=4), writings, st.data())
def test_broken_histories_are_broken_either_way(history: list[Json], how: Json, data: st.DataObject) -> None:
    raw = written(history, how, slashes=False)
    at = data.draw(st.integers(0, len(raw) - 1))
    broken = (
        raw[:at]
        + data.draw(st.sampled_from([b"", b"\xff", b"\\", b'"', b"}", b"\x01", b",", b"]"]))
        + raw[at + 1 :]
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(history_module, "read_plain", lambda _messages: None)
        expected = of(broken)
    assert of(broken) == expected
    prefixes = Prefixes(stride_bytes=16)
    assert of(broken, prefixes) == expected


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": "a", "x": 1},
        {"role": "user", "content": ["a"]},
        {"role": "user", "content": 1},
        {"role": 1, "content": "a"},
        {"content": "a"},
        {"role": "assistant", "tool_calls": [{}]},
        {"role": "assistant", "tool_calls": [{**CALL, "function": None}]},
        {"role": "user", "content": "\x00"},
        {"role": "system", "content": "x-anthropic-billing-header: a"},
    ],
)
def test_what_is_not_plain(message: Json) -> None:
    assert read_plain(msgspec.json.encode([{"role": "user", "content": "a"}, message])) is None


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": 'a"\\\n\t/é'},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "", "tool_call_id": "c", "name": "n"},
        {"role": "assistant", "reasoning": "a", "refusal": None},
        {"role": "system", "content": "a"},
    ],
)
def test_what_clients_send_is_plain(message: Json) -> None:
    found = read_plain(msgspec.json.encode([message]))
    assert found is not None
    assert found[1] == [encode(canonical(message))]


@pytest.mark.parametrize(
    "escape", [lambda text: text.replace("a", "\\u0061"), lambda text: text.replace("/", "\\/")]
)
def test_other_spellings_of_a_text_are_the_same_text(escape: Callable[[str], str]) -> None:
    plain = '[{"role":"user","content":"a/b"}]'
    assert of(escape(plain).encode()) == of(plain.encode())
    assert read_plain(escape(plain).encode()) is None


def test_a_text_that_is_no_unicode_makes_no_history() -> None:
    assert of(b'[{"role":"user","content":"\xff"}]').keys == ()
    with pytest.raises(UnicodeDecodeError):
        read_plain(b'[{"role":"user","content":"\xff"}]')


def test_the_last_of_equal_names_counts() -> None:
    twice = (
        b'{"role":"a","content":"x","content":null,"role":"user"},{"content":"y","role":"user","content":"z"}'
    )
    assert of(b"[%b]" % twice) == of(b'[{"role":"user"},{"role":"user","content":"z"}]')
