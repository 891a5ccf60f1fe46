"""What is told outside of a turn."""

import json
from typing import Any

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request

from router import errors
from router.http.refusals import refuse, refused


def request() -> Request:
    return Request({"type": "http", "method": "PUT", "path": "/live", "headers": [], "query_string": b"",
                    "scheme": "http", "server": ("a", 80)})  # fmt: skip


@pytest.mark.parametrize(
    ("error", "status", "code", "message"),
    [
        (errors.Conflict("there already"), 409, "conflict", "there already"),
        (HTTPException(404), 404, "not_found", "there is no route /live"),
        (HTTPException(405), 405, "method_not_allowed", "/live does not take PUT"),
        (HTTPException(418), 400, "bad_request", "the request cannot be read"),
        (HTTPException(500), 500, "internal_error", "the router failed"),
        (ValueError("a secret"), 500, "internal_error", "the router failed"),
    ],
)
async def test_refusals(error: Exception, status: int, code: str, message: str) -> None:
    answer = await refuse(request(), error)
    told: dict[str, Any] = json.loads(bytes(answer.body))["error"]
    assert (answer.status_code, told["code"]) == (status, code)
    assert message in told["message"]
    assert "secret" not in told["message"]
    assert answer.headers["content-type"] == "application/json"


async def test_headers_of_a_refusal_stay() -> None:
    answer = await refuse(request(), HTTPException(405, headers={"allow": "GET"}))
    assert answer.headers["allow"] == "GET"
    assert refused(errors.NoCapacity("x")).headers["retry-after"] == "1"
