"""Lineage: what makes two requests the same history, and what makes them different ones."""

import json
import random
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.turn.canonical import MEDIA_BYTES
from router.turn.history import KEY_BYTES
from router.turn.lineage import (
    MAX_BOUNDARIES,
    PROMPT_NEUTRAL,
    STRIDE_BYTES,
    STRIDE_IDS,
    Lineage,
    lineage_of,
)
from router.turn.members import decode_members
from router.turn.request import Endpoint

Json = Any
BILLING = "x-anthropic-billing-header: cc_version=2.1; cch=%s;"


def of_bytes(body: bytes, *, endpoint: Endpoint = Endpoint.CHAT, tenant: bytes = b"tenant") -> Lineage:
    return lineage_of(endpoint, decode_members(body), tenant)


def of(body: Json, *, endpoint: Endpoint = Endpoint.CHAT, tenant: bytes = b"tenant") -> Lineage:
    return of_bytes(json.dumps(body).encode(), endpoint=endpoint, tenant=tenant)


def chat(*messages: Json, **members: Json) -> Lineage:
    return of({"model": "m", "messages": list(messages), **members})


def prompt(text: Json, **members: Json) -> Lineage:
    return of({"model": "m", "prompt": text, **members}, endpoint=Endpoint.COMPLETIONS)


def user(content: Json) -> Json:
    return {"role": "user", "content": content}


def assistant(content: Json, **members: Json) -> Json:
    return {"role": "assistant", "content": content, **members}


SYSTEM: Json = {"role": "system", "content": "You are terse."}
CALL: Json = {"id": "call_1", "type": "function", "function": {"name": "ls", "arguments": '{"path": "/"}'}}
RESULT: Json = {"role": "tool", "tool_call_id": "call_1", "content": "bin etc"}
TOOLS: Json = [{"type": "function", "function": {"name": "ls", "parameters": {"type": "object"}}}]
HISTORY: list[Json] = [
    SYSTEM,
    user("What is there?"),
    assistant(None, reasoning="I look.", tool_calls=[CALL]),
    RESULT,
    assistant("Two directories."),
    user([{"type": "text", "text": "And here?"}, {"type": "image_url", "image_url": {"url": "data:,x"}}]),
]

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    scalars | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
# Names as clients use them, and others; the content is anything that is not null.
messages = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool", "developer"])},
    optional={
        "content": st.text(st.characters(exclude_categories=["Cs"]))
        | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": st.text(max_size=9)}), max_size=3),
        "reasoning": st.text(max_size=5),
        "tool_calls": st.lists(st.just(CALL), min_size=1, max_size=2),
        "unknown": values.filter(lambda value: value is not None),
    },
)
histories = st.lists(messages, min_size=1, max_size=6)


def shuffled(value: Json, order: random.Random) -> Json:
    """The same value with its objects' keys in another order."""
    if isinstance(value, dict):
        items = [(key, shuffled(item, order)) for key, item in value.items()]
        order.shuffle(items)
        return dict(items)
    return [shuffled(item, order) for item in value] if isinstance(value, list) else value


class TestWhatMakesNoDifference:
    @given(histories, st.randoms(), st.sampled_from([None, 1, "\t"]), st.booleans())
    def test_key_order_whitespace_and_escapes(
        self, history: list[Json], order: random.Random, indent: int | str | None, ascii_only: bool
    ) -> None:
        body = {"model": "m", "tools": TOOLS, "messages": history}
        written = json.dumps(shuffled(body, order), indent=indent, ensure_ascii=ascii_only)
        assert of_bytes(written.encode()) == of(body)

    @given(histories, st.sampled_from(["name", "refusal", "audio", "function_call", "annotations"]))
    def test_null_members_of_messages_parts_and_calls(self, history: list[Json], name: str) -> None:
        with_nulls = deepcopy(history)
        for message in with_nulls:
            message[name] = None
            for part in message.get("content", ()):
                if isinstance(part, dict):
                    part["annotations"] = None
            for call in message.get("tool_calls", ()):
                call["index"] = None
                call["function"]["extra"] = None
        assert chat(*with_nulls) == chat(*history)

    @given(histories)
    def test_cache_marks(self, history: list[Json]) -> None:
        marked = deepcopy(history)
        for message in marked:
            message["cache_control"] = {"type": "ephemeral"}
            for part in message.get("content", ()):
                if isinstance(part, dict):
                    part["cache_control"] = {"type": "ephemeral", "ttl": "1h"}
        assert chat(*marked) == chat(*history)

    @pytest.mark.parametrize("name", sorted(PROMPT_NEUTRAL))
    def test_a_neutral_member(self, name: str) -> None:
        assert chat(*HISTORY, **{name: 1}) == chat(*HISTORY) == chat(*HISTORY, **{name: ["other"]})

    def test_a_null_member_is_an_absent_one(self) -> None:
        assert chat(*HISTORY, tools=None, chat_template=None, never_heard_of=None) == chat(*HISTORY)

    def test_the_session_in_vllm_xargs(self) -> None:
        assert chat(*HISTORY, vllm_xargs={"session_id": "a"}) == chat(*HISTORY)
        one = chat(*HISTORY, vllm_xargs={"session_id": "a", "other": 1})
        assert one == chat(*HISTORY, vllm_xargs={"other": 1})
        assert one.scope != chat(*HISTORY).scope

    @pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "ls"}}])
    def test_how_a_tool_is_chosen(self, choice: Json) -> None:
        assert chat(*HISTORY, tools=TOOLS, tool_choice=choice) == chat(*HISTORY, tools=TOOLS)
        assert chat(*HISTORY, tool_choice="none") == chat(*HISTORY)

    def test_claude_codes_billing_header(self) -> None:
        text = {"type": "text", "text": "You are Claude Code."}
        ways = [
            chat({"role": "system", "content": content}, *HISTORY[1:])
            for cch in ("1f", "2e")
            for content in (
                [{"type": "text", "text": BILLING % cch}, text],
                [BILLING % cch, text],
                [{"type": "text", "text": BILLING % cch, "cache_control": {"type": "ephemeral"}}, text],
                [text],
            )
        ]
        assert len(set(ways)) == 1
        followed = {chat({"role": "system", "content": f"{BILLING % cch}\nYou are."}) for cch in ("1f", "2e")}
        assert followed == {chat({"role": "system", "content": "You are."})}

    def test_only_the_header_line_is_left_out_and_only_of_the_system(self) -> None:
        def lines(text: str) -> Lineage:
            return chat({"role": "system", "content": [{"type": "text", "text": BILLING % "1" + text}]})

        assert lines("\none").keys != lines("\ntwo").keys
        assert chat(user(BILLING % "1")).keys != chat(user(BILLING % "2")).keys
        inner = [chat({"role": "system", "content": "You are.\n" + BILLING % cch}) for cch in "12"]
        assert inner[0].keys != inner[1].keys


class TestWhatMakesADifference:
    @given(st.data())
    def test_any_change_of_a_message(self, data: st.DataObject) -> None:
        history = data.draw(histories)
        at = data.draw(st.integers(0, len(history) - 1))
        changed = deepcopy(history)
        changed[at] = data.draw(messages)
        one, two = chat(*history), chat(*changed)
        assert one.keys[:at] == two.keys[:at]
        same = json.dumps(history[at], sort_keys=True) == json.dumps(changed[at], sort_keys=True)
        for depth in range(at, len(history)):
            assert (one.keys[depth] == two.keys[depth]) is same

    @pytest.mark.parametrize(
        "change",
        [
            lambda history: history[1].update(content="What is there? "),
            lambda history: history[1].update(content=[{"type": "text", "text": "What is there?"}]),
            lambda history: history[1].update(role="developer"),
            lambda history: history[1].update(name="Ann"),
            lambda history: history[2].pop("reasoning"),
            lambda history: history[2].update(reasoning_content=history[2].pop("reasoning")),
            lambda history: history[2].update(content=""),
            lambda history: history[2]["tool_calls"][0].update(id="call_2"),
            lambda history: history[2]["tool_calls"][0]["function"].update(arguments='{"path":"/"}'),
            lambda history: history[2]["tool_calls"].append(CALL),
            lambda history: history[3].update(content="bin etc "),
            lambda history: history[5]["content"][1]["image_url"].update(url="data:,y"),
            lambda history: history[5]["content"].reverse(),
        ],
    )
    def test_known_changes(self, change: Callable[[list[Json]], None]) -> None:
        history = deepcopy(HISTORY)
        change(history)
        assert chat(*history).keys[-1] != chat(*HISTORY).keys[-1]
        assert chat(*history).scope == chat(*HISTORY).scope

    @pytest.mark.parametrize(
        ("one", "two"),
        [(1, 1.0), (1, True), (0, False), (1, "1"), (None, {}), ({"a": None}, {}), ("\u00e9", "e\u0301")],
    )
    def test_values_that_look_alike(self, one: Json, two: Json) -> None:
        assert chat({**SYSTEM, "x": [one]}).keys != chat({**SYSTEM, "x": [two]}).keys

    def test_numbers_keep_their_exactness(self) -> None:
        big = [b'{"messages":[{"x":%d}]}' % (2**80 + end) for end in (0, 1)]
        assert of_bytes(big[0]).keys != of_bytes(big[1]).keys

    @pytest.mark.parametrize(
        "members",
        [
            {"model": "other"},
            {"tools": TOOLS},
            {"functions": []},
            {"documents": [{"title": "a", "text": "b"}]},
            {"chat_template": "{{ messages }}"},
            {"chat_template_kwargs": {"enable_thinking": False}},
            {"reasoning_effort": "low"},
            {"response_format": {"type": "json_object"}},
            {"structured_outputs": {"json": {}}},
            {"cache_salt": "salt"},
            {"mm_processor_kwargs": {"num_crops": 4}},
            {"media_io_kwargs": {"video": {"num_frames": 8}}},
            {"truncate_prompt_tokens": 100},
            {"truncation_side": "left"},
            {"add_special_tokens": True},
            {"echo": True},
            {"vllm_xargs": {"other": 1}},
            {"kv_transfer_params": {"do_remote_decode": True}},
            {"never_heard_of": 0},
        ],
    )
    def test_members_that_can_shape_the_prompt(self, members: Json) -> None:
        there = of({"model": "m", "messages": HISTORY, **members})
        assert there.scope != chat(*HISTORY).scope
        assert not set(there.keys) & set(chat(*HISTORY).keys)

    def test_a_tool_list_that_is_left_out(self) -> None:
        without = chat(*HISTORY, tools=TOOLS, tool_choice="none")
        assert without.scope not in (chat(*HISTORY, tools=TOOLS).scope, chat(*HISTORY).scope)

    def test_changed_tools(self) -> None:
        changed = deepcopy(TOOLS)
        changed[0]["function"]["description"] = "List."
        null = deepcopy(TOOLS)
        null[0]["function"]["parameters"]["default"] = None
        scopes = {chat(*HISTORY, tools=tools).scope for tools in (TOOLS, changed, null, TOOLS * 2)}
        assert len(scopes) == 4

    def test_tenant_and_endpoint(self) -> None:
        body = {"model": "m", "messages": [user("a")], "prompt": "a" * STRIDE_BYTES}
        ways = [
            of(body, tenant=tenant, endpoint=endpoint)
            for tenant in (b"", b"one", b"two")
            for endpoint in (Endpoint.CHAT, Endpoint.COMPLETIONS)
        ]
        assert len({way.scope for way in ways}) == len({way.keys for way in ways}) == 6
        assert len({of({"model": "m"}, endpoint=endpoint).scope for endpoint in Endpoint}) == len(Endpoint)

    @given(values, values)
    def test_unknown_members_differ_where_their_values_do(self, one: Json, two: Json) -> None:
        # To JSON 1 and 1.0 and true are three values; to Python they are one.
        same = json.dumps(one, sort_keys=True) == json.dumps(two, sort_keys=True)
        assert (chat(new=one).scope == chat(new=two).scope) is same


def test_keys_stay_what_they_are() -> None:
    """Shared ledgers hold them: a release that changes one makes every conversation cold."""
    assert [key.hex() for key in chat(*HISTORY).keys] == [
        "e51f90967558944398e7da5376bae7c2",
        "e42df49ec746149529744e6ea051fe1d",
        "547d9f0da4d391c79f749676f50a1c25",
        "c1d71cd559398da6f03149dd26e14de2",
        "dcd79fae4200a6b0cd10b46855d7a4c2",
        "a0c7af17740668eeee2b59a7499bb0da",
    ]
    assert prompt("a" * STRIDE_BYTES).keys[0].hex() == "2080ff82af6c71abf6997826192a5bbe"


class TestShapesOfConversations:
    @given(histories, messages)
    def test_a_history_that_grows_keeps_its_boundaries(self, history: list[Json], message: Json) -> None:
        before, after = chat(*history), chat(*history, message)
        assert after.keys[:-1] == before.keys
        assert after.sizes_bytes[:-1] == before.sizes_bytes
        assert len(set(after.keys)) == len(after.keys) == len(history) + 1
        assert {len(key) for key in (*after.keys, after.scope)} == {KEY_BYTES}

    @given(histories)
    def test_sizes_are_those_of_the_messages(self, history: list[Json]) -> None:
        sizes = chat(*history).sizes_bytes
        assert list(sizes) == sorted(set(sizes))
        written = len(msgspec.json.encode(history))
        assert sizes[-1] <= written <= sizes[-1] + 2 + len(history)

    def test_tools_and_documents_count_before_the_history(self) -> None:
        tools, documents = TOOLS * 20, [{"title": "t", "text": "x" * 1000}]
        shown = len(msgspec.json.encode(tools)) + len(msgspec.json.encode(documents))
        more = chat(*HISTORY, tools=tools, documents=documents, chat_template="x" * 9999)
        assert more.sizes_bytes == tuple(size + shown for size in chat(*HISTORY).sizes_bytes)

    def test_regenerate_edit_compaction_and_side_request(self) -> None:
        main = chat(*HISTORY)
        assert chat(*HISTORY).keys == main.keys
        edited = chat(*HISTORY[:-1], user("Something else?"))
        assert common(main, edited) == 5
        compacted = chat(SYSTEM, user("Summary of what was: ..."), user("And here?"))
        assert common(main, compacted) == 1
        side = chat({"role": "system", "content": "Make a title."}, user("What is there?"))
        assert common(main, side) == 0
        sub_agent = chat(SYSTEM, user("Look at /etc."))
        assert (common(main, sub_agent), sub_agent.own_depth) == (1, 2)

    def test_a_prefix_to_continue_keeps_the_boundaries_before_it(self) -> None:
        plain = chat(*HISTORY[:2])
        continued = chat(
            *HISTORY[:2], assistant("Two"), continue_final_message=True, add_generation_prompt=False
        )
        assert continued.keys[:2] == plain.keys

    @pytest.mark.parametrize(
        ("history", "own_depth"),
        [
            ([], 1),
            ([SYSTEM], 1),
            ([user("a")], 1),
            ([SYSTEM, user("a")], 2),
            ([SYSTEM, {"role": "developer", "content": "b"}, user("a"), user("c")], 3),
            ([SYSTEM, assistant("a")], 1),
        ],
    )
    def test_where_a_history_begins_to_be_its_own(self, history: list[Json], own_depth: int) -> None:
        assert chat(*history).own_depth == own_depth


def common(one: Lineage, two: Lineage) -> int:
    """The longest boundary both have."""
    return max((depth for depth, key in enumerate(one.keys, 1) if key in two.keys), default=0)


class TestMedia:
    @pytest.mark.parametrize(
        "part",
        [
            {"type": "image_url", "image_url": {"url": "data:,x"}},
            {"type": "input_audio", "input_audio": {"data": "x", "format": "wav"}},
            {"type": "video_url", "video_url": {"url": "https://example.com/v"}},
            {"type": "file", "file": {"file_id": "f"}},
            {"type": "image_embeds", "image_embeds": "x"},
            {"type": "prompt_embeds", "data": "x"},
            {"type": "never_heard_of", "text": "x"},
            {"type": ["text"], "text": "x"},
            {"image_url": "data:,x"},
            {"type": "text", "text": "x", "uuid": "1", "image_url": "data:,x"},
            17,
        ],
    )
    def test_the_last_message_with_media(self, part: Json) -> None:
        text = user([{"type": "text", "text": "x"}])
        assert chat(text, user([{"type": "text", "text": "x"}, part]), text).media_depth == 2
        assert chat(user([part]), text, user(["x", part]), text, text).media_depth == 3

    def test_text_is_no_media(self) -> None:
        kinds = ("text", "input_text", "output_text", "refusal", "thinking", "tool_reference")
        parts: list[Json] = [{"type": kind, "text": "x"} for kind in kinds]
        assert (
            chat(SYSTEM, user([*parts, "plain"]), assistant(None, tool_calls=[CALL]), RESULT).media_depth == 0
        )

    def test_media_outside_of_parts(self) -> None:
        assert chat(user("a"), assistant(None, audio={"id": "audio_1"})).media_depth == 2
        assert chat(user({"image": "x"})).media_depth == 1
        assert chat(assistant("a", audio=None)).media_depth == 0

    def test_media_count_little(self) -> None:
        def picture(size: int) -> Lineage:
            url = "data:image/png;base64," + "A" * size
            return chat(user([{"type": "image_url", "image_url": {"url": url}}]), user("and?"))

        small, large = picture(10 * MEDIA_BYTES), picture(1_000 * MEDIA_BYTES)
        assert small.sizes_bytes == large.sizes_bytes
        assert MEDIA_BYTES < small.sizes_bytes[0] < 2 * MEDIA_BYTES
        assert small.keys[0] != large.keys[0]
        long_text = chat(user([{"type": "text", "text": "A" * 10 * MEDIA_BYTES}]))
        assert long_text.sizes_bytes[0] > 10 * MEDIA_BYTES


class TestPlainPrompts:
    @given(st.integers(0, 4 * STRIDE_BYTES), st.integers(0, 3 * STRIDE_BYTES))
    def test_text_grows_by_whole_strides(self, length: int, more: int) -> None:
        text = "".join(random.Random(7).choices("abc \né", k=length + more))
        before, after = prompt(text[:length]), prompt(text)
        assert len(after.keys) == len(text.encode()) // STRIDE_BYTES
        assert after.keys[: len(before.keys)] == before.keys
        assert after.sizes_bytes == tuple(STRIDE_BYTES * depth for depth in range(1, len(after.keys) + 1))
        assert (after.own_depth, after.media_depth) == (1, 0)

    @given(st.integers(0, 4 * STRIDE_IDS), st.integers(0, 3 * STRIDE_IDS))
    def test_ids_grow_by_whole_strides(self, length: int, more: int) -> None:
        ids = random.Random(7).choices(range(2**32), k=length + more)
        before, after = prompt(ids[:length]), prompt(ids)
        assert len(after.keys) == len(ids) // STRIDE_IDS
        assert after.keys[: len(before.keys)] == before.keys

    @given(st.integers(0, 3 * STRIDE_IDS - 1))
    def test_a_changed_token_changes_its_stride_and_all_after(self, at: int) -> None:
        ids = list(range(3 * STRIDE_IDS))
        one = prompt(ids)
        ids[at] += 1
        two = prompt(ids)
        assert [a == b for a, b in zip(one.keys, two.keys, strict=True)] == [
            depth < at // STRIDE_IDS for depth in range(3)
        ]

    def test_a_changed_character_changes_its_stride_and_all_after(self) -> None:
        one = prompt("a" * 3 * STRIDE_BYTES)
        two = prompt("a" * STRIDE_BYTES + "b" + "a" * (2 * STRIDE_BYTES - 1))
        assert [a == b for a, b in zip(one.keys, two.keys, strict=True)] == [True, False, False]

    def test_text_and_ids_never_meet(self) -> None:
        zeros = prompt("\0" * 4 * STRIDE_IDS)
        assert zeros.keys
        assert not set(zeros.keys) & set(prompt([0] * STRIDE_IDS).keys)

    def test_what_can_shape_the_prompt(self) -> None:
        text = "a" * STRIDE_BYTES
        for members in ({"suffix": "x"}, {"prompt_embeds": "x"}, {"add_special_tokens": False}):
            assert prompt(text, **members).scope != prompt(text).scope
        assert prompt(text, max_tokens=7, logprobs=1, best_of=1) == prompt(text)

    @pytest.mark.parametrize(
        "shape",
        [
            None,
            17,
            {},
            [],
            ["a" * STRIDE_BYTES],
            [[1] * STRIDE_IDS],
            [True] * STRIDE_IDS,
            [1.0] * STRIDE_IDS,
            [-1] * STRIDE_IDS,
            [2**32] * STRIDE_IDS,
            [2**80] * STRIDE_IDS,
        ],
    )
    def test_other_shapes_have_no_boundaries(self, shape: Json) -> None:
        there = prompt(shape)
        assert (there.keys, there.sizes_bytes, there.own_depth, there.media_depth) == ((), (), 1, 0)


class TestBounds:
    def test_of_a_long_history_the_newest_boundaries_stay(self) -> None:
        history = [SYSTEM, *(user(str(index)) for index in range(MAX_BOUNDARIES + 9))]
        whole, one_less = chat(*history[:MAX_BOUNDARIES]), chat(*history)
        assert len(whole.keys) == len(one_less.keys) == len(one_less.sizes_bytes) == MAX_BOUNDARIES
        assert one_less.keys[: MAX_BOUNDARIES - 10] == whole.keys[10:]
        assert one_less.sizes_bytes[: MAX_BOUNDARIES - 10] == whole.sizes_bytes[10:]
        assert (whole.own_depth, one_less.own_depth) == (2, 1)

    def test_a_late_first_user_message_counts_from_the_first_boundary_kept(self) -> None:
        history = [assistant("a")] * MAX_BOUNDARIES + [user("b"), assistant("c")]
        there = chat(*history)
        assert there.own_depth == MAX_BOUNDARIES - 1
        assert there.keys[there.own_depth - 1] == chat(*history[:-1]).keys[-1]

    def test_no_boundary_covers_media_where_some_were_dropped(self) -> None:
        picture = user([{"type": "image_url", "image_url": {"url": "data:,x"}}])
        assert chat(picture, *[user("a")] * (MAX_BOUNDARIES - 1)).media_depth == 1
        assert chat(picture, *[user("a")] * MAX_BOUNDARIES).media_depth > MAX_BOUNDARIES
        assert chat(*[user("a")] * 2 * MAX_BOUNDARIES).media_depth == 0

    def test_a_long_prompt(self) -> None:
        text = "".join(map(str, range(STRIDE_BYTES * MAX_BOUNDARIES // 5)))
        shorter = prompt(text[: STRIDE_BYTES * MAX_BOUNDARIES])
        longer = prompt(text[: STRIDE_BYTES * (MAX_BOUNDARIES + 2)])
        assert len(shorter.keys) == len(longer.keys) == len(longer.sizes_bytes) == MAX_BOUNDARIES
        assert longer.keys[:-2] == shorter.keys[2:]
        assert longer.sizes_bytes[:-2] == shorter.sizes_bytes[2:]


class TestWhatCannotBeRead:
    @pytest.mark.parametrize(
        "history", [None, 17, "a", {}, {"role": "user"}, [[]], ["a"], [SYSTEM, None], [SYSTEM, 17]]
    )
    def test_other_shapes_have_no_boundaries(self, history: Json) -> None:
        there = of({"model": "m", "messages": history})
        assert (there.keys, there.sizes_bytes, there.own_depth, there.media_depth) == ((), (), 1, 0)
        assert there.scope == chat().scope

    @settings(max_examples=50)
    @given(
        values
        | st.lists(values, max_size=4)
        | st.lists(st.dictionaries(st.text(max_size=9), values, max_size=3), max_size=3)
    )
    def test_nothing_raises(self, history: Json) -> None:
        for endpoint in Endpoint:
            there = of({"messages": history, "prompt": history, "x": history}, endpoint=endpoint)
            assert len(there.keys) == len(there.sizes_bytes)

    @settings(max_examples=50)
    @given(
        st.lists(
            st.fixed_dictionaries(
                {
                    "role": values,
                    "content": values | st.lists(st.dictionaries(st.just("type"), values), max_size=2),
                },
                optional={
                    "tool_calls": values | st.lists(st.dictionaries(st.just("function"), values), max_size=2)
                },
            ),
            max_size=3,
        )
    )
    def test_no_message_raises(self, history: list[Json]) -> None:
        assert len(chat(*history).keys) == len(history)

    @pytest.mark.parametrize("raw", [b"1e400", b'"\\ud800"', b"[" * 3000 + b"]" * 3000])
    def test_values_beyond_the_parser(self, raw: bytes) -> None:
        def lineage(name: bytes, value: bytes) -> Lineage:
            members = {"model": msgspec.Raw(b'"m"'), name.decode(): msgspec.Raw(value)}
            return lineage_of(Endpoint.CHAT, members, b"")

        assert lineage(b"messages", b'[{"role":"user","content":' + raw + b"}]").keys == ()
        # In the scope they stand as they were written.
        assert lineage(b"x", raw) == lineage(b"x", raw)
        assert lineage(b"x", raw).scope != lineage(b"x", b" " + raw).scope

    def test_the_last_of_equal_names_counts(self) -> None:
        twice = of_bytes(
            b'{"model":"a","model":"m","messages":[{"role":"user","content":"x","content":"y"}]}'
        )
        assert twice == chat(user("y"))

    def test_an_endpoint_without_a_history_has_no_boundaries(self) -> None:
        there = of({"model": "m", "messages": HISTORY, "prompt": "a" * 999}, endpoint=Endpoint.OTHER)
        assert there.keys == ()


class TestShape:
    """Requests of one shape are rendered by the same parts of a template; anything else is another shape."""

    @staticmethod
    def shape(body: dict[str, Any]) -> frozenset[str]:
        return lineage_of(Endpoint.CHAT, decode_members(json.dumps(body).encode()), b"tenant").shape

    def test_more_of_the_same_is_the_same(self) -> None:
        asks = {"role": "user", "content": "a"}
        says = {"role": "assistant", "content": "b"}
        short = self.shape({"model": "m", "messages": [asks, says, asks]})
        assert short == self.shape({"model": "m", "messages": [asks, says, asks, says, asks], "seed": 1})

    @pytest.mark.parametrize(
        "change",
        [
            {"tools": []},
            {"chat_template_kwargs": {"a": 1}},
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]},
            {"messages": [{"role": "user", "content": "a", "name": "n"}]},
            {"messages": [{"role": "tool", "content": "a"}]},
        ],
    )
    def test_what_else_a_template_can_see_is_another(self, change: dict[str, Any]) -> None:
        plain: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "a"}]}
        assert self.shape(plain) != self.shape(plain | change)
