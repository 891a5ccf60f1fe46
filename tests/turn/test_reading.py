"""What is read in an answer's documents, and that reading never fails."""

import json
from array import array
from typing import Any

import pytest

from router.turn.reading import Answer, Reading, Seen, Usage


def read(*documents: object, lift_token_ids: bool = True) -> Answer:
    reading = Reading(lift_token_ids=lift_token_ids)
    for document in documents:
        reading.read(document if isinstance(document, bytes) else json.dumps(document).encode())
    return reading.answer()


def chunk(delta: dict[str, Any], ids: list[int] | None = None, **more: Any) -> dict[str, Any]:
    return {"id": "x", "choices": [{"index": 0, "delta": delta, "token_ids": ids, **more}]}


def test_a_streamed_chat_answer() -> None:
    answer = read(
        {"prompt_token_ids": [1, 2, 3], **chunk({"role": "assistant", "content": ""})},
        chunk({"content": "a"}, [10]),
        chunk({}, [11]),
        chunk({"content": "b"}, [12, 13], finish_reason="stop"),
        {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}},
    )
    assert answer == Answer(
        params=None,
        several_choices=False,
        finish_reasons=("stop",),
        prompt_token_ids=array("I", [1, 2, 3]),
        answer_token_ids=array("I", [10, 11, 12, 13]),
        usage=Usage(3, 4, None),
        error=None,
        unreadable=0,
    )


def test_a_whole_completion() -> None:
    answer = read(
        {
            "choices": [
                {
                    "index": 0,
                    "text": "hi",
                    "finish_reason": "length",
                    "token_ids": [7],
                    "prompt_token_ids": [5, 6],
                }
            ],
            "usage": {
                "prompt_tokens": 2,
                "completion_tokens": 1,
                "prompt_tokens_details": {"cached_tokens": 1},
            },
        }
    )
    assert answer.finish_reasons == ("length",)
    assert answer.prompt_token_ids == array("I", [5, 6])
    assert answer.answer_token_ids == array("I", [7])
    assert answer.usage == Usage(2, 1, 1)


def test_token_ids_are_not_read_unless_wanted() -> None:
    answer = read({"prompt_token_ids": [1], **chunk({"content": "a"}, [2])}, lift_token_ids=False)
    assert answer.prompt_token_ids is None
    assert answer.answer_token_ids is None


def test_what_was_read_does_not_change_when_more_is_read() -> None:
    reading = Reading(lift_token_ids=True)
    reading.read(json.dumps(chunk({"content": "a"}, [1])).encode())
    before = reading.answer()
    reading.read(json.dumps(chunk({"content": "b"}, [2])).encode())
    assert before.answer_token_ids == array("I", [1])
    assert reading.answer().answer_token_ids == array("I", [1, 2])


@pytest.mark.parametrize(
    "gap",
    [
        chunk({"content": "told without ids"}),
        chunk({"reasoning": "hidden"}),
        {"choices": [{"index": 0, "text": "echo"}]},
        chunk({"content": ""}, [-1]),
        chunk({}, [2**32]),
        {"choices": [{"index": 0, "delta": {}, "token_ids": "12"}]},
        {"choices": [{"index": 0, "delta": {}, "token_ids": [1.5]}]},
        b"{",
        b"\xff",
    ],
)
def test_answer_ids_end_at_a_gap(gap: object) -> None:
    answer = read(chunk({"content": "a"}, [1, 2]), gap, chunk({"content": "c"}, [4]))
    assert answer.answer_token_ids == array("I", [1, 2])
    assert read(gap, chunk({"content": "c"}, [4])).answer_token_ids is None


def test_no_content_is_no_gap() -> None:
    answer = read(
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": "a"}, [1]),
        chunk({"content": None, "tool_calls": []}),
        {"choices": []},
        chunk({"content": "b"}, [2]),
    )
    assert answer.answer_token_ids == array("I", [1, 2])


def test_several_choices_leave_no_params() -> None:
    reading = Reading(lift_token_ids=True)
    reading.params = b'{"remote_host":"d"}'
    assert reading.answer().params == b'{"remote_host":"d"}'
    for index, reason in ((1, "stop"), (0, "length")):
        choice = {"index": index, "delta": {"content": "a"}, "token_ids": [index], "finish_reason": reason}
        reading.read(json.dumps({"choices": [choice]}).encode())
    answer = reading.answer()
    assert answer.several_choices
    assert answer.params is None
    assert answer.finish_reasons == ("length", "stop")
    assert answer.answer_token_ids == array("I", [0])


@pytest.mark.parametrize(
    ("delta", "expected"),
    [
        ({"role": "assistant", "content": ""}, False),
        ({"role": "assistant", "content": None}, False),
        ({}, False),
        ({"content": "a"}, True),
        ({"reasoning": "a"}, True),
        ({"reasoning_content": "a", "content": None}, True),
        ({"tool_calls": [{"index": 0}]}, True),
        ({"tool_calls": []}, False),
        ({"future_field": 1}, True),
    ],
)
def test_content_is_anything_generated(delta: dict[str, Any], expected: bool) -> None:
    reading = Reading(lift_token_ids=False)
    assert reading.read(json.dumps(chunk(delta)).encode()).content is expected
    assert reading.saw_content is expected


def test_seen_counts_the_members_for_token_ids() -> None:
    reading = Reading(lift_token_ids=True)
    one_list = b'{"prompt_token_ids":null,"choices":[{"token_ids":[1]},{"index":1,"token_ids":null}]}'
    assert reading.read(one_list) == Seen(content=False, id_members=3, id_lists=1)
    two_lists = b'{"choices":[{"prompt_token_ids":[1,2],"token_ids":[]}]}'
    assert reading.read(two_lists) == Seen(content=False, id_members=2, id_lists=2)


@pytest.mark.parametrize("lift_token_ids", [True, False])
def test_seen_tells_the_params_of_the_document_itself(lift_token_ids: bool) -> None:
    reading = Reading(lift_token_ids=lift_token_ids)
    assert reading.read(b'{"choices":[],"kv_transfer_params":{"a": 1}}').params == b'{"a": 1}'
    assert reading.read(b'{"kv_transfer_params":{},"kv_transfer_params":[2]}').params == b"[2]"
    assert reading.read(b'{"choices":[{"kv_transfer_params":{}}],"kv_transfer_params":null}').params is None


def test_an_answer_is_made_again_once_more_was_read() -> None:
    reading = Reading(lift_token_ids=False)
    reading.read(b'{"choices":[{"finish_reason":"stop"}]}')
    first = reading.answer()
    assert reading.answer() is first
    reading.params = b"{}"
    assert reading.answer().params == b"{}"
    reading.read(b'{"choices":[{"index":1,"finish_reason":"length"}]}')
    assert reading.answer().finish_reasons == ("stop", "length")
    assert reading.answer().params is None
    assert first.params is None


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ('{"message": "boom"}', b'{"message": "boom"}'),
        ('"text"', b'"text"'),
        ("null", None),
        ("{}", None),
        ('""', None),
        ("false", None),
    ],
)
def test_errors(error: str, expected: bytes | None) -> None:
    assert read(f'{{"error": {error}}}'.encode()).error == expected


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"[]",
        b"null",
        b'"text"',
        b'{"choices":{}}',
        b'{"choices":[1]}',
        b'{"choices":[{"finish_reason":3}]}',
        b'{"choices":[{"index":"0"}]}',
        b'{"a":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
        b'{"choices":[{"delta":{"content":"a"}',
    ],
)
def test_what_is_not_understood_is_counted(document: bytes) -> None:
    assert read(document).unreadable == 1


@pytest.mark.parametrize(
    "document",
    [b"{}", b'{"choices":null}', b'{"choices":[{"delta":null,"index":null,"text":null}]}'],
)
def test_what_is_left_out_is_no_fault(document: bytes) -> None:
    assert read(document).unreadable == 0


def test_bad_details_do_not_spoil_the_rest() -> None:
    answer = read(
        {"usage": {"prompt_tokens": 5}},
        {
            "usage": {"prompt_tokens": "many"},
            "prompt_token_ids": ["x"],
            **chunk({}, [1], finish_reason="stop"),
        },
        {"usage": None},
    )
    assert answer.usage == Usage(5, None, None)
    assert answer.prompt_token_ids is None
    assert answer.answer_token_ids == array("I", [1])
    assert answer.finish_reasons == ("stop",)
    assert answer.unreadable == 1
