"""What goes wrong with engines, and what a client gets: its answer, an engine's refusal, or a clear error."""

import asyncio
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from router.app import build
from router.engines.upstream import Call
from tests.e2e.http_pool import (
    CHAT,
    STOCK_33,
    alone,
    assert_right,
    carries_handle,
    comparable,
    continued,
    direct_client,
    error_of,
    fault,
    http_pool,
    legs,
    opening,
    router_at,
    second_turn,
    serving,
    settings_for,
    sim_servers,
    total,
)
from tests.engines.scripted import Peer, closed_port, engine

# -- what passes unchanged -------------------------------------------------------------------------------

REFUSAL = '{"error":{"message":"nö: too long","type":"BadRequestError","param":"x","code":400},"more":[1]}'


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_an_engines_refusal_passes_unchanged(role: str) -> None:
    async with http_pool() as pool:
        at = pool.p if role == "prefill" else pool.d
        for status, stream in product((400, 401, 404, 422, 429), (False, True)):
            second = await second_turn(pool, f"{status} {stream}")
            before = len(legs(pool.p)), len(legs(pool.d))
            # What P refuses of a leg that carried a handle may be the handle: it is asked once more without.
            legs_of_p = 2 if role == "prefill" and status != 429 else 1
            fault(at, leg=role, status=status, body=REFUSAL, times=legs_of_p)
            answer = await pool.chat({**second, "stream": stream})
            assert (answer.status_code, answer.text) == (status, REFUSAL)
            assert answer.headers["content-type"] == "application/json"
            after = len(legs(pool.p)), len(legs(pool.d))
            decoded = 0 if role == "prefill" else 1
            assert after == (before[0] + legs_of_p, before[1] + decoded), "nothing else is tried again"
        await pool.idle()


async def test_the_simulated_engines_own_validation_passes_unchanged() -> None:
    async with http_pool() as pool, direct_client(pool.d.origin) as engine_itself:
        for body in (opening(temperature=-1), {**opening(), "model": "no-such"}, opening(max_tokens=10**7)):
            own, answer = await engine_itself.post(CHAT, json=body), await pool.chat(body)
            assert (answer.status_code, answer.json()) == (own.status_code, own.json())


async def scripted(answer: bytes) -> Any:
    """A script of an engine that answers probes, and ``answer`` to all else."""

    async def script(peer: Peer) -> None:
        while True:
            request = await peer.request()
            if request.line.startswith("GET /health"):
                await peer.answer(b"")
            elif request.line.startswith("GET "):
                await peer.answer(b"", status="404 Not Found")
            else:
                await peer.say(answer)

    return script


async def test_retry_after_and_other_headers_of_a_refusal_pass() -> None:
    raw = (
        b"HTTP/1.1 429 Too Many\r\nRetry-After: 17\r\nX-Why: busy\r\n"
        b"Connection: keep-alive, x-hop\r\nX-Hop: 1\r\n"
        b"Content-Type: application/problem+json\r\nContent-Length: 2\r\n\r\n{}"
    )
    async with (
        engine(await scripted(raw)) as busy,
        sim_servers([STOCK_33]) as (d,),
        router_at([busy.origin], [d.origin]) as (_, origin),
        direct_client(origin) as http,
    ):
        answer = await http.post(CHAT, json=opening())
        assert (answer.status_code, answer.content) == (429, b"{}")
        assert answer.headers["retry-after"] == "17"
        assert answer.headers["x-why"] == "busy"
        assert answer.headers["content-type"] == "application/problem+json"
        assert "x-hop" not in answer.headers


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_an_engines_own_server_error_passes_if_it_is_one(role: str) -> None:
    async with http_pool() as pool:
        at = pool.p if role == "prefill" else pool.d
        fault(at, leg=role, status=500)
        answer = await pool.chat(opening())
        assert (answer.status_code, error_of(answer)["message"]) == (500, "scripted")
        fault(at, leg=role, status=500, body="<html>stack trace of mine</html>")
        answer = await pool.chat(opening())
        assert answer.status_code == 502
        assert "stack trace" not in error_of(answer)["message"]
        assert await pool.metric("leg_failures_total", role=role, action="fail") == 2
        await pool.idle()


# -- broken, overdue, not there --------------------------------------------------------------------------


async def test_an_engine_that_stopped_listening_is_a_502_until_it_is_ejected_and_then_a_503() -> None:
    async with sim_servers([STOCK_33]) as (d,):
        for gone in ("prefill", "decode"):
            # It answers the probe, and is not there any more when the turn comes.
            async with sim_servers([STOCK_33]) as (lost,):
                origins = ([lost.origin], [d.origin]) if gone == "prefill" else ([d.origin], [lost.origin])
                context = router_at(*origins)
                router, origin = await context.__aenter__()
            try:
                async with direct_client(origin) as http:
                    answer = await http.post(CHAT, json=opening())
                    assert answer.status_code == 502
                    assert error_of(answer)["code"] == "engine_unreachable"
                    for _ in range(2):
                        await router.context.fleet.refresh(router.context.upstream)
                    answer = await http.post(CHAT, json=opening())
                    assert answer.status_code == 503
                    assert error_of(answer)["code"] == "no_capacity"
                    assert answer.headers["retry-after"] == "1"
                    assert (await http.get("/ready")).status_code == 503
            finally:
                await context.__aexit__(None, None, None)


async def test_without_a_node_nothing_is_sent_and_the_client_may_try_again() -> None:
    nowhere = f"http://127.0.0.1:{closed_port()}"
    settings = settings_for([nowhere], [nowhere])
    async with serving(settings, build(settings)) as origin, direct_client(origin) as http:
        for stream in (False, True):
            answer = await http.post(CHAT, json=opening(stream=stream))
            assert answer.status_code == 503
            assert error_of(answer)["type"] == "server_error"
            assert answer.headers["retry-after"] == "1"
        assert (await http.get("/v1/models")).status_code == 503


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_an_engine_that_never_answers_is_a_504(role: str, stream: bool) -> None:
    names = ("prefill_timeout_s",) if role == "prefill" else ("decode_timeout_s", "first_token_timeout_s")
    limits: dict[str, Any] = dict.fromkeys(names, 0.3)
    async with http_pool(**limits) as pool:
        fault(pool.p if role == "prefill" else pool.d, leg=role, hang=True)
        answer = await pool.chat(opening(stream=stream))
        assert answer.status_code == 504
        assert error_of(answer)["code"] == "engine_timeout"
        assert role in error_of(answer)["message"]
        await pool.idle()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_decode_node_that_breaks_off_before_its_first_byte_is_a_502_and_is_not_run_again(
    stream: bool,
) -> None:
    async with http_pool(engine_keepalive_s=0.001) as pool:  # each leg has a connection of its own
        fault(pool.d, leg="decode", restart=True)
        answer = await pool.chat(opening(stream=stream))
        assert answer.status_code == 502
        assert error_of(answer)["code"] == "engine_unreachable"
        assert len(legs(pool.d)) == 1
        assert len(legs(pool.p)) == 1
        await pool.idle()


async def test_a_reused_connection_that_breaks_without_a_byte_is_tried_again_from_the_prefill_on() -> None:
    """It was most likely closed for idleness. D may have seen P's params all the same."""
    async with http_pool() as pool:
        await pool.turn(opening("warm"))
        fault(pool.d, leg="decode", restart=True)
        answer = await pool.chat(opening())
        await assert_right(pool, answer, opening())
        assert [len(legs(pool.p)), len(legs(pool.d))] == [3, 3]
        assert await pool.metric("leg_failures_total", role="decode", action="prefill_again") == 1


async def test_another_node_takes_over_while_nothing_was_sent() -> None:
    async with sim_servers([STOCK_33, STOCK_33]) as (p, d):
        async with sim_servers([STOCK_33, STOCK_33]) as (lost_p, lost_d):
            context = router_at([lost_p.origin, p.origin], [lost_d.origin, d.origin])
            router, origin = await context.__aenter__()
        try:
            async with direct_client(origin) as http:
                answer = await http.post(CHAT, json=opening())
                assert answer.status_code == 200
                assert comparable(answer.content) == await alone(opening())
                metrics = (await http.get("/metrics")).text
                assert (
                    total(metrics, "boomerang_leg_failures_total", action="other_node", role="prefill") == 1
                )
                assert total(metrics, "boomerang_leg_failures_total", action="other_node", role="decode") == 1
        finally:
            await context.__aexit__(None, None, None)
        assert router.open_turns.count == 0
        assert not p.engine.corruptions


# -- prefill legs that end oddly -------------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["abort", "error"])
async def test_no_decode_leg_after_a_prefill_that_was_aborted(reason: str) -> None:
    async with http_pool() as pool:
        fault(pool.p, leg="prefill", finish_reason=reason)
        answer = await pool.chat(opening())
        assert answer.status_code == 502
        assert reason in error_of(answer)["message"]
        assert not legs(pool.d)


async def test_a_decode_that_ends_in_an_error_is_one() -> None:
    async with http_pool() as pool:
        fault(pool.d, leg="decode", finish_reason="error")
        answer = await pool.chat(opening())
        assert answer.status_code == 502
        assert await pool.metric("handles_total", outcome="stored") == 0


async def test_no_decode_leg_after_the_lease_of_the_prefill_node() -> None:
    async with http_pool(prefill_lease_s=1e-9) as pool:
        error = error_of(await pool.chat(opening()))
        assert error["status"] == 504
        assert "lease" in error["message"]
        assert (len(legs(pool.p)), len(legs(pool.d))) == (2, 0), "prefilled again once"
        assert await pool.metric("leg_faults_total", role="decode", fault="lease_over") == 2


async def test_without_params_of_p_the_decode_goes_on_unassisted_and_is_counted() -> None:
    async with http_pool() as pool:
        fault(pool.p, leg="prefill", params_at="none")
        answer = await pool.chat(opening())
        await assert_right(pool, answer, opening())
        assert "kv_transfer_params" not in legs(pool.d)[0].body
        assert await pool.metric("handles_total", outcome="missing_prefill_params") == 1
        assert not pool.d.engine.pins.by_request
        (hint,) = (await pool.http.get("/health")).json()["hints"]
        assert "prefill answers carry no kv_transfer_params" in hint
        await pool.turn(opening("with params again"))
        assert (await pool.http.get("/health")).json()["hints"] == []


async def test_without_params_of_d_the_next_turn_is_cold_and_it_is_counted() -> None:
    async with http_pool() as pool:
        fault(pool.d, leg="decode", params_at="none")
        second = await second_turn(pool)
        assert await pool.metric("handles_total", outcome="missing_decode_params") == 1
        (hint,) = (await pool.http.get("/health")).json()["hints"]
        assert "answers carry no handle" in hint
        answer = await pool.chat(second)
        assert answer.headers["x-boomerang-reason"] == "no_handle"
        await assert_right(pool, answer, second)


async def test_a_pushing_connector_is_refused_for_reuse_and_says_so() -> None:
    async with http_pool(replace(STOCK_33, push_mode=True)) as pool:
        body = opening()
        for _ in range(3):
            answer = await pool.chat(body)
            assert answer.headers["x-boomerang-plan"] == "cold"
            await assert_right(pool, answer, body)
            body = continued(body, answer.json())
        assert not any(map(carries_handle, legs(pool.p)))
        assert await pool.metric("handles_total", outcome="unusable", detail="push_mode") == 3
        health = (await pool.http.get("/health")).json()
        assert [hint for hint in health["hints"] if "push mode" in hint]
        assert health["pairs"][0]["reason"] == "the connector is in push mode"


# -- idle connections ------------------------------------------------------------------------------------


async def test_a_retry_does_not_meet_the_next_stale_connection() -> None:
    """A P that takes one request for each connection, and closes at the next without a byte."""
    choice = b'{"index":0,"message":{"role":"assistant","content":"x"},"finish_reason":"length"}'

    async def one_request(peer: Peer) -> None:
        request = await peer.request()
        await peer.answer(b'{"choices":[' + choice + b"]}" if request.line.startswith("POST") else b"")
        await peer.request()

    async with (
        engine(one_request) as p,
        sim_servers([STOCK_33]) as (d,),
        router_at([p.origin], [d.origin]) as (router, origin),
        direct_client(origin) as http,
    ):
        for number in range(5):
            asks = (router.context.upstream.send(p.origin, Call("GET", "/x")) for _ in range(6))
            await asyncio.gather(*asks, return_exceptions=True)  # so many connections now lie idle
            assert (await http.post(CHAT, json=opening(f"{number}"))).status_code == 200
        metrics = (await http.get("/metrics")).text
        assert total(metrics, "boomerang_leg_failures_total", role="prefill", action="retry") == 5


async def test_connections_that_engines_close_when_idle_cost_no_turn() -> None:
    """Engines close after one idle second; each pause ends just about then."""
    hasty = replace(STOCK_33, keep_alive_s=1)
    async with http_pool(hasty, engine_keepalive_s=60) as pool:

        async def turns_with_pauses(number: int) -> None:
            for turn in range(5):
                answer = await pool.chat(opening(f"{number} {turn}", max_tokens=2))
                assert answer.status_code == 200, answer.text
                await asyncio.sleep(0.98 + (number + 5 * turn) % 25 * 0.002)

        await asyncio.gather(*(turns_with_pauses(number) for number in range(25)))
        pool.sound()
        await pool.idle()
