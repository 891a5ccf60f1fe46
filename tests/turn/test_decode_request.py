"""The decode leg's request: made ahead or not, it says the same; what turned out otherwise is made anew."""

from dataclasses import replace
from typing import Any

import pytest

from router.turn import decode_request as module
from router.turn.context import Context
from router.turn.decode_request import Ahead, DecodeRequest, decode_request, make_ahead
from router.turn.plan import Kind, Plan, Verify
from router.turn.prefill import Prefilled
from router.turn.record import Record
from router.turn.request import Endpoint, read_request
from tests.e2e.http_pool import http_pool
from tests.turn.test_plan import decode, prefill

PARAMS = b'{"do_remote_prefill":true,"remote_block_ids":[[1, 2]]}'
BODY = b'{"model":"m","messages":[{"role":"user","content":"caf\\u00e9"}],"stream":true}'
PLAN = Plan(Kind.COLD, "new", decode(), prefill(), Verify.OFF)
LEFT = Prefilled(PARAMS, None, 0, None, None)


@pytest.fixture
async def context() -> Any:
    async with http_pool() as pool:
        yield pool.router.context


def record(context: Context, body: bytes = BODY) -> Record:
    headers = (("user-agent", "x"), ("authorization", "Bearer k"))
    request = read_request(Endpoint.CHAT, "/v1/chat/completions", headers, body, turn_id="brg-1")
    return Record(request, context.now, context.now())


def without_id(made: DecodeRequest) -> tuple[bool, bytes, list[tuple[str, str]]]:
    return made.lifts_ids, made.body, [(k, v) for k, v in made.headers if k != "x-request-id"]


@pytest.mark.parametrize("salt", [None, "s"])
@pytest.mark.parametrize("ahead_bytes", [0, 131_072])
async def test_made_ahead_it_is_the_same_request(
    context: Context, monkeypatch: pytest.MonkeyPatch, salt: str | None, ahead_bytes: int
) -> None:
    monkeypatch.setattr(module, "_AHEAD_BYTES", ahead_bytes)
    turn, left = record(context), replace(LEFT, salt=salt)
    ahead = make_ahead(context, turn, PLAN, salt)
    assert (ahead.body_up_to_params is None) == (ahead_bytes == 0)
    made = decode_request(context, turn, PLAN, left, ahead)
    assert made.headers is ahead.headers
    assert PARAMS in made.body
    assert without_id(made) == without_id(decode_request(context, turn, PLAN, left, None))


@pytest.mark.parametrize(
    ("plan", "left"),
    [
        (replace(PLAN, decode=decode("d2")), LEFT),
        (PLAN.cold("diverged"), LEFT),
        (PLAN, replace(LEFT, params=None)),
        (PLAN, replace(LEFT, salt="s")),
        (replace(PLAN, kind=Kind.UNSPLIT, prefill=None), None),
        (replace(PLAN, kind=Kind.STAY, prefill=None), None),
    ],
)
async def test_what_turned_out_otherwise_is_made_anew(
    context: Context, plan: Plan, left: Prefilled | None
) -> None:
    turn = record(context)
    ahead = make_ahead(context, turn, PLAN, None)
    made = decode_request(context, turn, plan, left, ahead)
    assert made.headers is not ahead.headers
    assert without_id(made) == without_id(decode_request(context, turn, plan, left, None))


async def test_a_node_that_is_tainted_meanwhile_gets_the_salt(context: Context) -> None:
    turn = record(context)
    ahead = make_ahead(context, turn, PLAN, None)
    context.doubts.taint(PLAN.decode.origin, None)
    made = decode_request(context, turn, PLAN, LEFT, ahead)
    assert b'"cache_salt"' in made.body
    assert made.headers is not ahead.headers


async def test_no_two_legs_share_an_id(context: Context) -> None:
    turn = record(context)
    ids = set()
    for _ in range(3):
        made: Ahead | DecodeRequest
        for made in (make_ahead(context, turn, PLAN, None), decode_request(context, turn, PLAN, LEFT, None)):
            ids.add(dict(made.headers)["x-request-id"])
    assert len(ids) == 6
