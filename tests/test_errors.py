import json

import pytest

from router.errors import (
    ERROR_ROWS,
    BadRequest,
    BodyTooLarge,
    ClientClosed,
    InternalError,
    MethodNotAllowed,
    NoCapacity,
    NotFound,
    RequestError,
    TooManyTurns,
    UnsupportedMedia,
    UpstreamBroken,
    UpstreamTimeout,
    error_headers,
    error_row,
    openai_error,
    redact,
)

SECRET = "hunter2"


def test_every_error_has_a_row_and_every_code_is_its_own() -> None:
    assert set(ERROR_ROWS) == set(RequestError.__subclasses__())
    assert len({row.code for row in ERROR_ROWS.values()}) == len(ERROR_ROWS)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (BadRequest("no"), 400),
        (NotFound("no"), 404),
        (MethodNotAllowed("no"), 405),
        (BodyTooLarge("no"), 413),
        (UnsupportedMedia("no"), 415),
        (ClientClosed(), 499),
        (InternalError(), 500),
        (UpstreamBroken("no"), 502),
        (NoCapacity("no"), 503),
        (UpstreamTimeout("no"), 504),
    ],
)
def test_the_table(error: RequestError, status: int) -> None:
    row = error_row(error)
    assert row.status == status
    assert (row.type == "invalid_request_error") == (status < 499)


def test_an_error_of_a_more_special_kind_has_the_row_of_its_kind() -> None:
    class QueueFull(NoCapacity):
        retry_after_s = 7.4

    assert error_row(QueueFull("full")).status == 503
    assert ("retry-after", "7") in error_headers(QueueFull("full"))


def test_the_body_has_openais_shape() -> None:
    body = json.loads(openai_error(BadRequest('"messages" is missing – "ö"', param="messages")))
    assert body == {
        "error": {
            "message": '"messages" is missing – "ö"',
            "type": "invalid_request_error",
            "param": "messages",
            "code": "bad_request",
        }
    }
    assert json.loads(openai_error(NoCapacity("all busy")))["error"]["param"] is None


def test_an_unknown_exception_is_told_as_our_fault_without_its_text() -> None:
    body = openai_error(ValueError(SECRET))
    assert error_row(ValueError(SECRET)).status == 500
    assert SECRET.encode() not in body
    assert json.loads(body)["error"]["code"] == "internal_error"


def test_only_a_full_house_asks_to_come_again() -> None:
    asking = {kind for kind in ERROR_ROWS if "retry-after" in dict(error_headers(kind("x")))}
    assert asking == {NoCapacity, TooManyTurns}
    assert dict(error_headers(NoCapacity("x")))["retry-after"] == "1"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f"cannot reach http://user:{SECRET}@p:8100/v1", "cannot reach http://***@p:8100/v1"),
        (f"cannot reach http://user:{SECRET}/a@b@p:8100", "cannot reach http://***@p:8100"),
        (f"redis://:{SECRET}@cache/0 is down", "redis://***@cache/0 is down"),
        (f"http://{SECRET}@p is odd", "http://***@p is odd"),
        (f"Authorization: Bearer {SECRET}", "Authorization: Bearer ***"),
        ("http://p:8100/v1 and me@example.com", "http://p:8100/v1 and me@example.com"),
        ("http://[::1]:8100 closed", "http://[::1]:8100 closed"),
        (f"http://{SECRET}@3 is odd", "http://***@3 is odd"),
        (f"redis://{SECRET}:8100@3 is down", "redis://***@3 is down"),
        (f"http://user:{SECRET}:8100@3", "http://***@3"),
        ("p:10.0.0.1:8100@12: status 500", "p:10.0.0.1:8100@12: status 500"),
        ("d:[fd00::1]:8200@0 is ready", "d:[fd00::1]:8200@0 is ready"),
        ("prefill=http://a-b.c:8100@0,https://[::1]:1@3", "prefill=http://a-b.c:8100@0,https://[::1]:1@3"),
    ],
)
def test_messages_hold_no_secret(text: str, told: str) -> None:
    assert redact(text) == told
    assert UpstreamBroken(text).message == told
    assert str(UpstreamBroken(text)) == told
