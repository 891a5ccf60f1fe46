"""What is known of a history's beginning: it spares reading, and never changes what is read."""

import json
import random
from array import array
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.turn import history as history_module
from router.turn.lineage import Lineage, lineage_of
from router.turn.members import decode_members
from router.turn.prefixes import Prefixes, Stride
from router.turn.request import Endpoint

Json = Any
STRIDE = 64


def lineage(messages: Json, prefixes: Prefixes | None, *, tenant: bytes = b"t", **written: Any) -> Lineage:
    members = {"model": written.pop("model", "m"), "tools": written.pop("tools", None)}
    body = json.dumps({**members, "messages": messages}, **written).encode()
    return lineage_of(Endpoint.CHAT, decode_members(body), tenant, prefixes)


texts = st.text('ab \n"\\{}[],é', max_size=60)
parts = st.lists(
    st.fixed_dictionaries({"type": st.sampled_from(["text", "image_url"]), "text": texts}), max_size=2
)
messages = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant"])},
    optional={
        "content": texts | parts | st.none(),
        "name": texts,
        "x": st.floats(allow_nan=False, allow_infinity=False),
    },
)
writings = st.sampled_from(
    [{}, {"indent": 1}, {"separators": (",", ":")}, {"separators": (" , ", " : "), "ensure_ascii": False}]
)


@given(st.lists(st.tuples(st.integers(0, 12), st.lists(messages, max_size=5)), max_size=5), writings)
def test_what_is_known_changes_nothing(turns: list[tuple[int, list[Json]]], written: Json) -> None:
    prefixes = Prefixes(stride_bytes=STRIDE)
    history: list[Json] = []
    for kept, new in turns:  # grown, edited, forked, cut
        history = [*history[:kept], *new]
        assert lineage(history, prefixes, **written) == lineage(history, None, **written)
        assert lineage(history, prefixes, **written) == lineage(history, None, **written)


@given(st.lists(messages, min_size=1, max_size=6), st.data())
def test_one_changed_byte_is_read_again(history: list[Json], data: st.DataObject) -> None:
    prefixes = Prefixes(stride_bytes=STRIDE)
    raw = json.dumps(history).encode()
    at = data.draw(st.integers(0, len(raw) - 1))
    changed = raw[:at] + bytes([data.draw(st.sampled_from(b'a0{}[],:" \\'))]) + raw[at + 1 :]

    def of(value: bytes, known: Prefixes | None) -> Lineage:
        return lineage_of(Endpoint.CHAT, decode_members(b'{"messages":' + value + b"}"), b"t", known)

    of(raw, prefixes)
    try:
        decode_members(b'{"messages":' + changed + b"}")
    except ValueError:
        return  # no JSON any more: no turn
    assert of(changed, prefixes) == of(changed, None)


def test_another_scope_knows_nothing() -> None:
    prefixes = Prefixes(stride_bytes=STRIDE)
    history = [{"role": "user", "content": "a" * 40} for _ in range(20)]
    lineage(history, prefixes)
    before = len(prefixes)
    for scope in ({"tenant": b"u"}, {"model": "n"}, {"tools": [{"type": "function"}]}):
        assert lineage(history, prefixes, **scope) == lineage(history, None, **scope)
        assert len(prefixes) == 2 * before
        prefixes = Prefixes(stride_bytes=STRIDE)
        lineage(history, prefixes)


@pytest.mark.parametrize("written", [{}, {"separators": (",", ":")}])
def test_a_next_turn_reads_only_what_is_new(monkeypatch: pytest.MonkeyPatch, written: Json) -> None:
    read: list[int] = []
    add = history_module._Reader._add

    def counting(reader: history_module._Reader, messages: bytes) -> None:
        read[-1] += len(messages)
        add(reader, messages)

    monkeypatch.setattr(history_module._Reader, "_add", counting)
    prefixes, words = Prefixes(), random.Random(1)
    history: list[Json] = []
    for _turn in range(40):
        before = len(json.dumps(history, **written))
        history += [{"role": "user", "content": str(words.random()) * 100} for _ in range(10)]
        read.append(0)
        lineage(history, prefixes, **written)
        longest = 2_000
        new_bytes = len(json.dumps(history, **written)) - before
        assert read[-1] <= new_bytes + prefixes.stride_bytes + longest
    assert sum(read) < 3 * len(json.dumps(history, **written))


def test_a_message_that_grows_over_strides_is_read_from_its_start() -> None:
    prefixes = Prefixes(stride_bytes=STRIDE)
    history = [{"role": "user", "content": "a"}, {"role": "user", "content": "b" * 1_000}]
    for size in range(1_000, 2_000, 90):
        history[1]["content"] = "b" * size
        assert lineage(history, prefixes) == lineage(history, None)


def test_it_stays_within_its_limit_and_keeps_the_newest() -> None:
    prefixes = Prefixes(stride_bytes=STRIDE, limit_bytes=40_000)
    history: list[Json] = []
    for number in range(100):
        history = [{"role": "user", "content": f"{number} {turn}" * 9} for turn in range(9)]
        lineage(history, prefixes)
        assert 0 < prefixes.used_bytes <= 40_000
    last = prefixes.walk(lineage(history, None).scope, memoryview(json.dumps(history).encode()))
    assert len(last.known) == len(last.digests) > 5


def test_a_chain_loses_its_end_before_its_beginning() -> None:
    prefixes = Prefixes(stride_bytes=4, limit_bytes=7_000)
    other, long = memoryview(b"zzzz"), memoryview(b"abcd" * 9)
    stride = Stride(0, b"", array("Q"), 0, 0, ())
    prefixes.learn(prefixes.walk(b"s", long).digests, [stride] * 9)
    assert len(prefixes.walk(b"s", long).known) == 9
    for number in range(7):
        prefixes.learn(prefixes.walk(bytes([number]), other).digests, [stride])
    known = prefixes.walk(b"s", long).known
    assert 0 < len(known) < 9


def test_what_cannot_be_read_is_not_learned() -> None:
    prefixes = Prefixes(stride_bytes=STRIDE)
    for history in ([{"role": "user", "content": "a" * 500}, 17], {"a": "b" * 500}, "c" * 500):
        assert lineage(history, prefixes).keys == ()
    assert len(prefixes) == 0


ODD: dict[str, Json] = {
    "members": lambda number: {"role": "user", f"k{number}": "a" * 20},
    "roles": lambda number: {"role": f"role{number}", "content": "a" * 20},
    "roles that are none": lambda number: {"role": [number] * 9, "content": "a" * 20},
    "long names": lambda number: {"role": "user", f"{number}{'k' * 4_000}": 0},
}


@pytest.mark.parametrize("kind", ODD)
def test_messages_that_are_all_of_another_kind_cost_what_others_cost(kind: str) -> None:
    """Each kind that was kept with all those before it made 30,000 messages tens of gigabytes."""
    prefixes = Prefixes(stride_bytes=STRIDE)
    history: list[Json] = []
    for number in range(120):
        history.append(ODD[kind](number))
        if number % 7 == 0:
            assert lineage(history, prefixes) == lineage(history, None)
    whole = lineage(history, prefixes)
    assert len(whole.keys) == 120
    assert sum(map(len, whole.shape)) < 10_000
    raw = json.dumps(history).encode()
    kept = [kind for stride in prefixes.walk(whole.scope, memoryview(raw)).known for kind in stride.kinds]
    assert len(kept) < 100
    assert max(map(len, kept)) < 100


def test_what_is_kept_of_kinds_counts() -> None:
    used_bytes = []
    for member in ("content", "name"):
        prefixes = Prefixes(stride_bytes=STRIDE)
        lineage([{"role": "user", "content": ""}, *[{"role": "user", member: "a" * 90}] * 3], prefixes)
        used_bytes.append(prefixes.used_bytes)
    assert used_bytes[0] != used_bytes[1]


def test_each_of_many_roles_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """33,000 messages of as many roles in 560 KB held up all other turns for ten seconds."""
    noted = 0
    note = history_module.History._note_kinds

    def count(history: history_module.History, kinds: Iterable[str], depth: int) -> None:
        nonlocal noted
        noted += 1
        note(history, kinds, depth)

    monkeypatch.setattr(history_module.History, "_note_kinds", count)
    whole = lineage([{"role": f"role{number}"} for number in range(20_000)], None)
    assert whole.keys
    assert noted < 100


def test_calls_count_as_values() -> None:
    """A million calls in one message are 64 MB that took more than a second and 400 MB of memory to read."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    per_message = 300
    history = [{"role": "assistant", "tool_calls": [call] * per_message}]
    assert len(lineage(history, None).keys) == 1
    assert lineage(history * (history_module.MAX_VALUES // per_message), None).keys == ()
    # One message, larger than a stride, is counted before it is read.
    one = [{"role": "assistant", "tool_calls": [call] * (history_module.MAX_VALUES // 3)}]
    assert lineage(one, None).keys == ()
