"""What a client is told of an engine's fault."""

import json
from typing import Any

import pytest

from router.engines.upstream import (
    Answer,
    Broken,
    Exhausted,
    NeverSent,
    Stale,
    TimedOut,
    TooLarge,
    UpstreamError,
)
from router.errors import NoCapacity, UpstreamBroken, UpstreamTimeout, error_row
from router.turn.refusal import Refused
from router.turn.telling import answered, told

# As vLLM 0.32.0 tells of a fault of its own.
ERROR = {"error": {"message": "EngineCore died", "type": "InternalServerError", "param": None, "code": 500}}


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (NeverSent("refused"), 502),
        (Stale("closed"), 502),
        (Broken("reset"), 502),
        (TooLarge("too large"), 502),
        (UpstreamError("anything"), 502),
        (TimedOut("connect", 2.0), 504),
        (TimedOut("answer", 600.0), 504),
        (TimedOut("idle", 300.0), 504),
    ],
)
def test_broken_is_502_and_our_time_out_is_504(error: UpstreamError, status: int) -> None:
    told_of = told("prefill", "p:host:8100", error)
    assert error_row(told_of).status == status
    assert told_of.message == f"prefill node p:host:8100: {error}"


def test_what_this_host_lacks_is_no_engines_fault_and_passes() -> None:
    told_of = told("decode", "d1", Exhausted("http://d1:1: [Errno 24] Too many open files"))
    assert isinstance(told_of, NoCapacity)
    assert told_of.retry_after_s


def test_a_secret_in_an_error_is_not_told() -> None:
    told_of = told("decode", "d1", Broken("cannot reach http://user:pass@host:1/v1"))
    assert "pass" not in told_of.message


@pytest.mark.parametrize("status", [500, 501, 502, 503, 504, 599])
def test_an_engines_own_error_goes_on_as_it_is(status: int) -> None:
    answer = Answer(status, (("retry-after", "3"),), json.dumps(ERROR).encode())
    error = answered("decode", "d1", answer, "status 500")
    assert isinstance(error, Refused)
    assert (error.role, error.node, error.answer) == ("decode", "d1", answer)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'"error"',
        b'{"detail":"Internal Server Error"}',
        b'{"error":"a text"}',
        b'{"error":null}',
        b'{"error":[{"message":"a"}]}',
        b"Internal Server Error",
        b"<html><body>502 Bad Gateway</body></html>",
        b'{"error":{"message":"\xff"}}',
        b'{"error":' + b"[" * 100_000,
        b"[" * 100_000 + b"]" * 100_000,
    ],
)
def test_an_answer_in_another_shape_becomes_ours(body: bytes) -> None:
    error = answered("decode", "d1", Answer(502, (), body), "status 502")
    assert isinstance(error, UpstreamBroken)
    assert error.message == "decode node d1: status 502"


@pytest.mark.parametrize("answer", [None, Answer(200, (), json.dumps(ERROR).encode()), Answer(302, (), b"")])
def test_an_answer_that_claims_to_be_well_is_no_error_of_the_engines(answer: Any) -> None:
    error = answered("prefill", "p1", answer, "an answer that is no completion")
    assert isinstance(error, UpstreamBroken)
    assert not isinstance(error, UpstreamTimeout)
    assert error.message == "prefill node p1: an answer that is no completion"
