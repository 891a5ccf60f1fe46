import gzip
import json
from typing import Any

import pytest

from router.engines.upstream import Broken, Call
from router.sim.faults import Fault, FaultPlan
from tests.sim.pool import CHAT, COLD, Pool, system, user

HANDLE = {**COLD, "remote_block_ids": [[1]], "remote_engine_id": "e"}


async def stream(pool: Pool, fault: Fault, body: dict[str, Any] | None = None) -> list[bytes]:
    pool.x.faults.add(fault)
    fields = {"messages": [user()], "stream": True, **(body or {})}
    async with pool.upstream.stream("x", Call("POST", CHAT, (), json.dumps(fields).encode())) as answer:
        return [chunk async for chunk in answer.chunks()]


@pytest.mark.parametrize(
    ("fault", "path", "body", "matches"),
    [
        (Fault(), CHAT, {}, True),
        (Fault(path="/v1/completions"), CHAT, {}, False),
        (Fault(with_handle=True), CHAT, {"kv_transfer_params": COLD}, False),
        (Fault(with_handle=True), CHAT, {"kv_transfer_params": HANDLE}, True),
        (Fault(with_handle=False), CHAT, {"kv_transfer_params": HANDLE}, False),
        (Fault(leg="prefill"), CHAT, {"kv_transfer_params": COLD}, True),
        (Fault(leg="decode"), CHAT, {"kv_transfer_params": COLD}, False),
        (Fault(leg="decode"), CHAT, {"kv_transfer_params": {"do_remote_prefill": True}}, True),
        (Fault(streamed=True), CHAT, {"stream": True}, True),
        (Fault(streamed=True), CHAT, {}, False),
        (Fault(with_handle=True), CHAT, "not an object", False),
    ],
)
def test_which_requests_get_it(fault: Fault, path: str, body: object, matches: bool) -> None:
    assert fault.matches(path, body) is matches


def test_how_often() -> None:
    plan, fault = FaultPlan(), Fault(times=2)
    plan.add(fault)
    assert [plan.take(CHAT, {}) for _ in range(3)] == [fault, fault, None]
    plan.add(fault)
    plan.clear()
    assert plan.take(CHAT, {}) is None


async def test_a_status_only_where_a_handle_is() -> None:
    pool = Pool()
    pool.p.faults.add(Fault(status=503, with_handle=True))
    _, handle = await pool.turn([system(), user()])
    body = {"messages": [system(), user()], "kv_transfer_params": handle}
    assert (await pool.post("p", body))[0] == 503
    assert (await pool.post("p", body))[0] == 200


async def test_splits_and_line_ends_leave_the_text() -> None:
    pool = Pool()
    plain = b"".join(await stream(pool, Fault()))
    for line_end, end in (("lf", b"\n"), ("crlf", b"\r\n"), ("cr", b"\r")):
        chunks = await stream(pool, Fault(split_bytes=1, line_end=line_end))  # type: ignore[arg-type]
        assert all(len(chunk) == 1 for chunk in chunks)
        assert len(b"".join(chunks).split(end * 2)) == len(plain.split(b"\n\n"))


async def test_a_cut_mid_event() -> None:
    pool = Pool()
    with pytest.raises(Broken):
        await stream(pool, Fault(cut_after_chunks=2, cut_mid_event=True))
    assert pool.x.pool.usage == 0
    assert pool.x.open_requests == {CHAT: 0}


async def test_an_error_event_ends_the_stream() -> None:
    pool = Pool()
    chunks = await stream(pool, Fault(error_after_chunks=2))
    assert len(chunks) == 4
    assert b'"error"' in chunks[2]
    assert chunks[3] == b"data: [DONE]\n\n"
    assert [record.phase for record in pool.x.aborts] == ["decode"]


@pytest.mark.parametrize(("place", "index"), [("first", 0), ("usage", -2), ("last", -2), ("none", None)])
async def test_where_the_params_go(place: Any, index: int | None) -> None:
    pool = Pool()
    params = (await pool.prefill([system(), user()]))["kv_transfer_params"]
    body = {
        "messages": [system(), user()],
        "max_tokens": 1,
        "kv_transfer_params": params,
        "stream_options": {"include_usage": True},
    }
    chunks = await stream(pool, Fault(params_at=place, extra_params={"future_key": 1}), body)
    found = [at for at, chunk in enumerate(chunks) if b"future_key" in chunk]
    if index is None:
        assert found == []
    else:
        assert found == [1 if place == "first" else len(chunks) + index]


async def test_no_params_in_a_whole_answer() -> None:
    pool = Pool()
    pool.p.faults.add(Fault(params_at="none"))
    assert (await pool.prefill([user()]))["kv_transfer_params"] is None


@pytest.mark.parametrize("reason", ["abort", "error"])
async def test_an_insane_end_leaves_nothing_behind(reason: str) -> None:
    pool = Pool()
    pool.p.faults.add(Fault(finish_reason=reason))
    answer = await pool.prefill([user()])
    assert answer["choices"][0]["finish_reason"] == reason
    assert answer["kv_transfer_params"] is None
    assert pool.p.pins.by_request == {}


async def test_delays_pass_on_the_clock() -> None:
    pool = Pool()
    began = pool.clock.now()
    chunks = await stream(pool, Fault(delay_s=10, delay_chunk_s=1))
    assert pool.clock.now() - began == 10 + len(chunks)


async def test_gzip_and_close() -> None:
    pool = Pool()
    pool.x.faults.add(Fault(gzip=True, close=True))
    body = json.dumps({"messages": [user()]}).encode()
    answer = await pool.upstream.send("x", Call("POST", CHAT, (), body))
    assert (answer.header("content-encoding"), answer.header("connection")) == ("gzip", "close")
    assert json.loads(gzip.decompress(answer.body))["object"] == "chat.completion"
