"""Which turns are said to be the last of their conversation, or the only one."""

from typing import Any

import msgspec
import pytest

from router.turn.ending import is_final, last_turn
from router.turn.lineage import lineage_of
from router.turn.release import Cause
from router.turn.request import Endpoint, Request, read_request

SYSTEM = {"role": "system", "content": "be brief"}
ASKED = {"role": "user", "content": "why?"}
ANSWERED = {"role": "assistant", "content": "because"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


def request(*messages: dict[str, str], headers: tuple[tuple[str, str], ...] = (), **members: Any) -> Request:
    body = msgspec.json.encode({"model": "m", "messages": messages or (SYSTEM, ASKED), **members})
    return read_request(Endpoint.CHAT, "/v1/chat/completions", headers, body, turn_id="t")


def cause(setting: str, given: Request) -> Cause | None:
    return last_turn(setting, given, lineage_of(given.endpoint, given.members, b"t"))


@pytest.mark.parametrize(
    ("value", "is_said"), [("true", True), (" True ", True), ("false", False), ("1", False)]
)
def test_the_final_header(value: str, is_said: bool) -> None:
    given = request(headers=(("x-session-final", value),))
    assert is_final(given) is is_said
    assert cause("off", given) is (Cause.ENDED if is_said else None)


@pytest.mark.parametrize(
    ("setting", "expected"), [("off", None), ("header", "one_shot"), ("auto", "one_shot")]
)
def test_the_one_shot_header(setting: str, expected: str | None) -> None:
    assert cause(setting, request(headers=(("x-boomerang-one-shot", "true"),))) == expected


def test_a_first_question_is_one_shot_only_where_that_is_wanted() -> None:
    assert cause("header", request()) is None
    assert cause("auto", request()) is Cause.ONE_SHOT
    assert cause("auto", request(ASKED)) is Cause.ONE_SHOT


@pytest.mark.parametrize(
    "given",
    [
        request(SYSTEM, ASKED, ANSWERED, ASKED),
        request(tools=[TOOL]),
        request(functions=[TOOL["function"]]),
        request(headers=(("x-session-id", "c"),)),
        request(conversation_id="c"),
        read_request(Endpoint.COMPLETIONS, "/v1/completions", (), b'{"model":"m","prompt":"x"}', turn_id="t"),
    ],
    ids=["history", "tools", "functions", "session header", "conversation id", "plain prompt"],
)
def test_what_does_not_look_like_the_only_turn(given: Request) -> None:
    assert cause("auto", given) is None
