"""The check against simulated engines, over sockets: each row when all is well, and when it is not."""

import asyncio
from dataclasses import replace

import pytest

from router.check import pair
from router.check.findings import Verdict
from router.engines.upstream import Answer, Call
from router.sim.config import EngineConfig
from router.sim.fabric import HttpFabric
from router.sim.faults import Fault
from router.sim.server import SimServer
from router.sim.template import TemplateOptions
from tests.check.pools import (
    PLUGIN_32,
    STOCK_32,
    STOCK_33,
    TTL_SET,
    Pools,
    always,
    dead_origin,
    nothing_at,
    pools,
    until,
)

OK, WARNING, ERROR, SKIPPED = Verdict.OK, Verdict.WARNING, Verdict.ERROR, Verdict.SKIPPED


def handles_sent(pool: Pools) -> int:
    """Prefill legs that carried a handle with anything to read."""
    params = [received.body.get("kv_transfer_params") or {} for received in pool.p.engine.received]
    return sum(1 for each in params if each.get("do_remote_decode") and any(each["remote_block_ids"] or [[]]))


async def all_freed(server: SimServer) -> None:
    await until(lambda: not server.engine.pins.by_request)


@pytest.mark.parametrize("cached", [True, False])
async def test_a_pair_of_0_33_is_all_right_and_left_clean(cached: bool) -> None:
    engine = replace(STOCK_33, prefix_cache=cached, render="open")
    async with pools(engine, engine) as pool:
        found = await pool.check()
        assert found.verdicts() == {}
        assert found.row("reuse").seen.startswith("223 of 232")
        assert found.row("stream_handle").seen.startswith("native")
        assert found.row("prompt_tokens").seen == "/render"
        assert found.row("verification").seen.startswith("router")
        assert handles_sent(pool) == 1
        await all_freed(pool.d)
        assert pool.p.engine.corruptions == pool.d.engine.corruptions == []


async def test_a_stock_pair_of_0_32_streams_no_handle() -> None:
    async with pools(STOCK_32, STOCK_32) as pool:
        found = await pool.check()
        assert found.verdicts() == {"stream_handle": ERROR}
        assert "boomerang-vllm" in found.row("stream_handle").advice
        assert found.row("prompt_tokens").seen == "/tokenize"
        # What a streamed turn pins there nobody can release: that is the fault, and it is kept small.
        await until(lambda: len(pool.d.engine.pins.by_request) == 1)
        (pin,) = pool.d.engine.pins.by_request.values()
        assert pin.tokens < 64


@pytest.mark.parametrize("cached", [True, False])
async def test_the_plugin_on_both_sides_verifies(cached: bool) -> None:
    engine = replace(PLUGIN_32, prefix_cache=cached)
    async with pools(engine, engine) as pool:
        found = await pool.check()
        assert found.verdicts() == {}
        assert found.row("verification").seen.startswith("engine")
        assert found.row("stream_handle").seen.startswith("plugin")
        assert "verified by P" in found.row("reuse").seen
        # More than P's own cache can have held was read from D.
        assert pool.p.engine.counters.external_hits >= 64
        await all_freed(pool.d)


@pytest.mark.parametrize(("prefill", "decode"), [(STOCK_32, PLUGIN_32), (PLUGIN_32, STOCK_32)])
async def test_the_plugin_on_one_side_is_a_warning(prefill: EngineConfig, decode: EngineConfig) -> None:
    async with pools(prefill, decode) as pool:
        found = await pool.check()
        row = "verification" if decode.plugin else "stamping"
        assert found.verdicts("stream_handle") == {row: WARNING}
        assert found.row(row).advice.startswith("install the plugin")
        assert found.verdict("reuse") is found.verdict("answer") is OK


async def test_a_p_that_refuses_unstamped_handles_is_told_so() -> None:
    async with pools(replace(PLUGIN_32, plugin_refuse_unstamped=True), STOCK_33) as pool:
        found = await pool.check()
        assert found.verdict("reuse") is ERROR
        assert "without a stamp" in found.row("reuse").advice
        assert found.verdict("answer") is OK


async def test_push_mode_is_an_error_and_no_handle_is_sent() -> None:
    engine = replace(STOCK_33, push_mode=True)
    async with pools(engine, engine) as pool:
        found = await pool.check()
        assert found.verdict("push_mode") is ERROR
        assert found.verdict("reuse") is SKIPPED
        assert "push mode" in found.row("reuse").seen
        assert handles_sent(pool) == 0
        await all_freed(pool.d)


async def test_a_p_without_bidirectional_transfer_hangs_and_is_found_out() -> None:
    async with pools(replace(STOCK_33, bidirectional=False), STOCK_33) as pool:
        found = await pool.check(timeout_s=2.0)
        assert found.verdict("bidirectional_prefill") is ERROR
        assert "serves others" in found.row("bidirectional_prefill").seen
        assert "bidirectional_kv_xfer" in found.row("bidirectional_prefill").advice
        assert found.verdict("reuse") is found.verdict("answer") is SKIPPED
        assert found.verdict("release") is WARNING
        # The leg was closed: nothing hangs on.
        await until(lambda: not pool.p.engine.running)


async def test_a_p_that_is_stuck_altogether_is_told_apart() -> None:
    async with pools(STOCK_33, STOCK_33) as pool:
        pool.p.engine.faults.add(Fault(leg="prefill", with_handle=True, hang=True))
        pool.p.engine.faults.add(Fault(path="/v1/completions", hang=True, times=9))
        found = await pool.check(timeout_s=1.0)
        assert found.verdict("bidirectional_prefill") is ERROR
        assert "nothing any more" in found.row("bidirectional_prefill").seen


async def test_a_d_without_bidirectional_transfer_returns_no_handle() -> None:
    async with pools(STOCK_33, replace(STOCK_33, bidirectional=False)) as pool:
        found = await pool.check()
        assert found.verdict("connector") is OK
        assert found.verdict("bidirectional_decode") is ERROR
        assert "bidirectional_kv_xfer" in found.row("bidirectional_decode").advice
        assert found.verdict("stream_handle") is found.verdict("reuse") is SKIPPED


async def test_a_p_without_a_connector_gives_no_params() -> None:
    async with pools(STOCK_33, STOCK_33) as pool:
        pool.p.engine.faults.add(Fault(leg="prefill", params_at="none", times=9))
        found = await pool.check()
        assert found.verdict("connector") is ERROR
        assert "kv_connector" in found.row("connector").advice
        assert not pool.d.engine.received


async def test_a_d_that_fails_on_params_is_an_error_of_the_connector() -> None:
    async with pools(STOCK_33, STOCK_33) as pool:
        pool.d.engine.faults.add(Fault(leg="decode", status=500, times=9))
        found = await pool.check()
        assert found.verdict("connector") is ERROR
        assert "answered 500: scripted" in found.row("connector").seen
        assert found.verdict("bidirectional_decode") is SKIPPED


async def test_a_stream_that_breaks_off_is_an_error_and_the_rest_goes_on() -> None:
    async with pools(STOCK_33, STOCK_33) as pool:
        pool.d.engine.faults.add(Fault(leg="decode", streamed=True, cut_after_chunks=1))
        found = await pool.check()
        assert found.verdicts() == {"stream_handle": ERROR}
        assert "streamed turn failed" in found.row("stream_handle").seen


async def test_a_p_that_cannot_read_from_d_fails_the_reuse() -> None:
    async with pools(STOCK_33, STOCK_33) as pool:
        pool.p.engine.faults.add(Fault(leg="prefill", with_handle=True, status=500))
        found = await pool.check()
        assert found.verdict("reuse") is ERROR
        assert "answered 500" in found.row("reuse").seen
        # The handle was not read, and is released.
        await all_freed(pool.d)


async def test_a_p_that_ignores_the_handle_is_an_error() -> None:
    async with pools(replace(STOCK_33, recompute_threshold=4_096), STOCK_33) as pool:
        found = await pool.check()
        assert found.verdicts() == {"reuse": ERROR}
        assert "kv_recompute_threshold" in found.row("reuse").advice


async def test_wrong_kv_is_found_by_the_answer() -> None:
    async with pools(STOCK_33, STOCK_33) as pool:
        elsewhere = {"remote_num_tokens": 128, "remote_block_ids": [list(range(5_000, 5_008))]}
        pool.d.engine.faults.add(Fault(leg="decode", streamed=False, extra_params=elsewhere))
        found = await pool.check()
        assert found.verdict("answer") is ERROR
        assert found.row("answer").seen.startswith("WRONG")
        assert pool.p.engine.corruptions


async def test_other_weights_under_one_name_are_found_by_the_answer() -> None:
    decode = replace(STOCK_33, model="m")
    async with pools(replace(STOCK_33, model="base", adapters=("m",)), decode) as pool:
        found = await pool.check(model="m")
        assert found.verdict("models") is WARNING
        assert found.verdict("answer") is ERROR


async def test_different_templates_are_an_error_and_end_the_turns() -> None:
    keeps = replace(STOCK_33, template=TemplateOptions(strip_reasoning=False))
    async with pools(keeps, STOCK_33) as pool:
        found = await pool.check()
        assert found.verdict("templates") is ERROR
        assert "chat-template" in found.row("templates").advice
        assert found.verdict("answer") is SKIPPED
        assert handles_sent(pool) == 0
        await all_freed(pool.d)


async def test_different_models_are_an_error_and_nothing_is_sent() -> None:
    async with pools(replace(STOCK_33, model="one"), replace(STOCK_33, model="two")) as pool:
        found = await pool.check()
        assert found.verdict("models") is ERROR
        assert found.verdict("connector") is SKIPPED
        assert not pool.p.engine.received
        asked = await pool.check(model="one")
        assert f"d:127.0.0.1:{pool.d.port} does not serve one" in asked.row("connector").seen


async def test_different_block_sizes_are_an_error_where_p_has_a_prefix_cache() -> None:
    async with pools(STOCK_33, replace(STOCK_33, block_size=32)) as pool:
        found = await pool.check()
        assert found.verdict("block_sizes") is ERROR
        assert found.verdict("reuse") is ERROR
        assert handles_sent(pool) == 0
        await all_freed(pool.d)


async def test_different_block_sizes_are_a_warning_where_p_has_none() -> None:
    async with pools(replace(STOCK_33, prefix_cache=False), replace(STOCK_33, block_size=32)) as pool:
        found = await pool.check()
        assert found.verdicts() == {"block_sizes": WARNING}


async def test_without_metrics_the_handle_goes_whole() -> None:
    async with pools(STOCK_33, STOCK_33) as pool:
        pool.rule = nothing_at("/metrics")
        found = await pool.check()
        assert [row.verdict for row in found.rows("block_size")] == [WARNING, WARNING]
        assert found.verdicts("block_size") == {"block_sizes": SKIPPED, "release": SKIPPED}


async def test_a_dead_node_is_a_finding_and_the_others_are_checked() -> None:
    async with pools(STOCK_33, STOCK_33) as pool:
        gone = dead_origin()
        found = await pool.check(prefill=[gone, pool.p.origin])
        rows = found.rows("reachable")
        assert [row.verdict for row in rows] == [ERROR, OK, OK]
        assert [row.verdict for row in found.rows("connector")] == [SKIPPED, OK]
        assert "cannot be reached" in found.rows("connector")[0].seen
        assert [row.verdict for row in found.rows("answer")] == [OK]


async def test_a_loopback_side_channel_between_two_machines_is_an_error() -> None:
    async with pools(STOCK_33, STOCK_33) as pool:
        pool.aliases = {"http://p.example:8100": pool.p.origin}
        found = await pool.check(prefill=["http://p.example:8100"])
        assert found.verdicts() == {"side_channel": ERROR}
        assert "VLLM_NIXL_SIDE_CHANNEL_HOST" in found.row("side_channel").advice


async def test_fixed_engine_ids_are_a_warning_and_shared_ones_an_error() -> None:
    fixed = replace(STOCK_33, engine_id="prefill-0")
    async with pools([fixed], [STOCK_33]) as pool:
        assert (await pool.check()).verdicts() == {"engine_id": WARNING}
    async with pools([fixed, fixed], [STOCK_33]) as pool:
        assert (await pool.check()).verdict("engine_ids") is ERROR


async def test_handles_without_an_end_need_the_ttl() -> None:
    old = replace(STOCK_33, expiry_field=False)
    async with pools(old, old) as pool:
        pool.rule = always("/version", b'{"version":"0.25.1"}')
        found = await pool.check()
        assert found.verdict("ttl") is WARNING
        assert "decode_ttl_s" in found.row("ttl").advice
        assert [row.verdict for row in found.rows("version")] == [WARNING, WARNING]
        again = await pool.check(assumed=TTL_SET)
        assert "as you say" in again.row("ttl").seen
        assert [row.verdict for row in again.rows("version")] == [OK, OK]


async def test_router_mode_needs_a_route_that_tells_tokens() -> None:
    routes = ("/tokenize", "/v1/chat/completions/render")
    async with pools(STOCK_33, STOCK_33) as pool:
        pool.rule = nothing_at(*routes)
        assert (await pool.check()).verdicts() == {"prompt_tokens": ERROR}

        def lies(_: str, call: Call) -> Answer | None:
            return Answer(200, (), b'{"tokens":[1,2,3]}') if call.path == "/tokenize" else None

        pool.rule = lies
        assert "other tokens" in (await pool.check()).row("prompt_tokens").seen
    async with pools(PLUGIN_32, PLUGIN_32) as pool:
        pool.rule = nothing_at(*routes)
        assert (await pool.check()).verdicts() == {}


async def test_a_model_without_a_chat_template_is_checked_by_completions() -> None:
    async with pools(STOCK_33, STOCK_33) as pool:
        refused = Answer(400, (), b'{"error":{"message":"no chat template","code":400}}')
        pool.rule = lambda _, call: refused if "/chat/" in call.path else None
        assert (await pool.check()).verdicts() == {}


class _Deaf(HttpFabric):
    """A side channel that reads, and never tells the peer."""

    def notify(self, address: tuple[str, int], engine_id: str, request_id: str) -> None:
        return


async def test_a_release_that_frees_nothing_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair, "RELEASE_WAIT_S", 0.3)
    deaf = SimServer(STOCK_33, fabric=_Deaf())
    deaf.engine.address = ("127.0.0.1", deaf.port)
    async with pools([deaf], [STOCK_33]) as pool:
        found = await pool.check()
        assert found.verdicts() == {"release": WARNING}
        assert "does not tell D" in found.row("release").advice


async def test_a_check_that_is_given_up_releases_its_handles() -> None:
    async with pools(STOCK_33, STOCK_33) as pool:
        cold = Fault(leg="prefill", path="/v1/completions", with_handle=False, hang=True)
        pool.p.engine.faults.add(cold)
        running = asyncio.ensure_future(pool.check())
        await until(
            lambda: pool.p.engine.open_requests.get("/v1/completions", 0) == 1 and handles_sent(pool) == 1
        )
        await until(lambda: bool(pool.d.engine.pins.by_request))
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await all_freed(pool.d)


async def test_every_pair_is_played() -> None:
    async with pools([STOCK_33, STOCK_33], [STOCK_33, STOCK_33]) as pool:
        found = await pool.check()
        assert found.verdicts() == {}
        subjects = [row.subject for row in found.rows("reuse")]
        assert len(subjects) == len(set(subjects)) == 4
        assert found.row("engine_ids").seen == "4 different ones"
        await asyncio.gather(all_freed(pool.decodes[0]), all_freed(pool.decodes[1]))
