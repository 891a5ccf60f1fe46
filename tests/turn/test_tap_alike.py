"""Events that differ in a plain text alone: passed by the tap's short test, and nothing else is."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.turn.sse import EventTooLarge
from router.turn.tap import Tap, TapSettings

HANDLE = b'"kv_transfer_params":{"remote_host":"10.0.0.7"}'
SECRET = b"10.0.0.7"


def said(content: str, **more: Any) -> bytes:
    delta = {"index": 0, "delta": {"content": content}, "finish_reason": None}
    document = {"id": "a", "choices": [delta], **more}
    return b"data: " + json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def taught(*, max_event_bytes: int = 1 << 20) -> Tap:
    """A tap that has seen what this stream's events are like."""
    tap = Tap(TapSettings(max_event_bytes=max_event_bytes))
    for content in ("one", "two", "three"):
        assert tap.feed(said(content)) == said(content)
    return tap


@pytest.mark.parametrize(
    "content", ["", "x", "é漢字🙂", "error", "[DONE]", "_transfer_params", "data: ", "u0041"]
)
def test_texts_pass(content: str) -> None:
    tap = taught()
    event = said(content)
    assert tap.feed(event) == event
    assert not tap.done
    assert tap.answer().error is None


@pytest.mark.parametrize(
    "inside",
    [
        b'x"},"finish_reason":null}],' + HANDLE + b',"choices":[{"index":0,"delta":{"content":"',
        b'x"},"finish_reason":"stop"}],"a":[{"a":{"a":"',
        b'x"}}],"error":{"message":"no"},"a":[{"a":{"a":"',
        b'x"}}]}\n\ndata: {' + HANDLE + b',"a":[{"a":{"a":"',
    ],
)
def test_what_only_begins_and_ends_alike_is_read(inside: bytes) -> None:
    """An event that is made to look like the ones before it, and holds more."""
    tap = taught()
    event = said("?").replace(b"?", inside)
    assert SECRET not in tap.feed(event)
    answer = tap.answer()
    assert (HANDLE in inside) is (answer.params is not None)
    assert (b"error" in inside) is (answer.error is not None)
    assert (b'"stop"' in inside) is (answer.finish_reasons == ("stop",))


def test_a_line_end_in_a_text_ends_the_event() -> None:
    tap = taught()
    torn = said("?").replace(b"?", b"x\n\nevent: y\ndata: z")
    assert tap.feed(torn) == torn
    assert tap.feed(b"data: [DONE]\n\n") == b"data: [DONE]\n\n"
    assert tap.done


def test_behind_half_an_event_nothing_is_passed_by() -> None:
    tap = taught()
    assert tap.feed(b'data: {"a":"') == b""
    glued = tap.feed(said("x"))
    assert glued == b'data: {"a":"' + said("x")


def test_an_event_that_is_too_large_is_no_other_one() -> None:
    tap = taught(max_event_bytes=200)
    with pytest.raises(EventTooLarge):
        tap.feed(said("x" * 300))


PIECES = st.one_of(
    st.text(alphabet=st.characters(codec="utf-8"), max_size=12).map(said),
    st.sampled_from(
        [
            said("a", usage=None),
            said("b", kv_transfer_params={"remote_host": "10.0.0.7"}),
            b'data: {"choices":[],' + HANDLE + b"}\n\n",
            b": ping\n\n",
            b'data: {"error":{"message":"no"}}\n\n',
            b"data: [DONE]\n\n",
        ]
    ),
)


@given(st.lists(PIECES, max_size=12), st.booleans())
def test_what_was_learned_changes_nothing(events: list[bytes], joined: bool) -> None:
    """The same stream, to a tap that learns, and to one that gets single bytes, and so never can."""
    learning, reading = Tap(TapSettings()), Tap(TapSettings())
    chunks = [b"".join(events)] if joined else events
    out = b"".join(learning.feed(chunk) for chunk in chunks)
    assert out == b"".join(reading.feed(bytes([byte])) for byte in b"".join(events))
    assert SECRET not in out
    assert learning.finish() == reading.finish()
