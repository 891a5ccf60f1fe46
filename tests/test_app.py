"""Wiring: settings reach the parts they are for, and the parts are joined, started and stopped."""

import asyncio
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from router.app import EngineKey, Router, build, relay_settings
from router.engines.upstream import Call, NeverSent
from router.fleet.node import State
from router.front import application
from router.http.openai import PATHS
from router.ledger.store import LedgerStats, Put, Trace
from router.serve import server_config
from router.settings import Settings
from router.sim.engine import SimEngine
from router.sim.fabric import LocalFabric
from router.sim.upstream import SimUpstream
from router.telemetry.facts import HandleFact, Outcome
from router.turn.context import RelaySettings

P, D = "http://p:8000", "http://d:8000"


def settings(**options: Any) -> Settings:
    return Settings(prefill=(P,), decode=(D,), **options)


def engines() -> SimUpstream:
    fabric = LocalFabric()
    return SimUpstream({origin: SimEngine(fabric=fabric) for origin in (P, D)})


@pytest.fixture
def router() -> Router:
    return build(settings(), upstream=engines())


SAME_NAME = {
    "verify": "lineage",
    "answer_tokens": False,
    "take_share": 0.25,
    "policy": "sticky",
    "stay_max_tokens": 17,
    "expose_params": True,
    "explain_headers": False,
    "prefill_lease_s": 7.0,
    "rewrite_remote_host": True,
    "admission_wait_s": 11.0,
    "one_shot": "auto",
}
OTHER_NAME = {
    "threshold_tokens": ("reuse_threshold_tokens", 99),
    "connect_s": ("connect_timeout_s", 1.25),
    "prefill_s": ("prefill_timeout_s", 2.25),
    "pull_s": ("pull_timeout_s", 3.25),
    "first_token_s": ("first_token_timeout_s", 4.25),
    "decode_s": ("decode_timeout_s", 5.25),
    "idle_s": ("idle_timeout_s", 6.25),
    "client_s": ("client_timeout_s", 7.25),
}
NOT_SETTINGS = {"verify_s", "max_answer_bytes", "api_key", "lifetime"}


def test_every_setting_of_a_turn_comes_from_its_own() -> None:
    """With values that no two settings share, so that none can be taken for another."""
    given: dict[str, Any] = {**SAME_NAME, **dict(OTHER_NAME.values())}
    made = relay_settings(settings(**given), lambda: None)
    assert {name: getattr(made, name) for name in SAME_NAME} == SAME_NAME
    assert {name: getattr(made, name) for name in OTHER_NAME} == {n: v for n, (_, v) in OTHER_NAME.items()}
    assert {field.name for field in fields(RelaySettings)} == {*SAME_NAME, *OTHER_NAME} | NOT_SETTINGS


@pytest.mark.parametrize("explicit", [False, True])
def test_a_lifetime_knows_whether_an_operator_set_it(explicit: bool) -> None:
    given = {"decode_ttl_s": 480.0} if explicit else {}
    lifetime = relay_settings(settings(deadline_margin_s=9, **given), lambda: None).lifetime
    assert (lifetime.ttl_s, lifetime.margin_s, lifetime.explicit) == (480.0, 9.0, explicit)


async def test_the_engines_key_can_be_rotated_and_its_file_can_vanish(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("one\n")
    key = EngineKey(settings(engine_api_key_file=file))
    assert key() == "one"
    file.write_text("two\n")
    assert key() == "one", "no file is read on the way of a turn"
    await key.refresh()
    assert key() == "two"
    file.write_text("")
    with pytest.raises(ValueError, match="one key"):
        await key.refresh()
    assert key() == "two", "a file that is being written is not taken for a key"
    file.unlink()
    with pytest.raises(OSError, match="key"):
        await key.refresh()
    assert key() == "two"
    assert EngineKey(settings())() is None


async def test_probes_and_turns_carry_the_engines_key(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("sk-pool")
    upstream = engines()
    seen: list[tuple[tuple[str, str], ...]] = []

    class Watching(SimUpstream):
        async def send(self, origin: str, call: Any) -> Any:
            seen.append(call.headers)
            return await super().send(origin, call)

    router = build(settings(engine_api_key_file=file), upstream=Watching(upstream.engines))
    await router.context.fleet.refresh(router.context.upstream)
    assert seen
    assert all(("authorization", "Bearer sk-pool") in headers for headers in seen)
    assert router.context.settings.api_key() == "sk-pool"
    file.write_text("sk-new")
    await router.key.refresh()
    seen.clear()
    await router.context.fleet.refresh(router.context.upstream)
    assert seen
    assert all(("authorization", "Bearer sk-new") in headers for headers in seen)


def test_every_inference_path_and_no_page_of_the_framework_is_served(router: Router) -> None:
    app = application(router)
    paths = {getattr(route, "path", "") for route in app.routes}
    assert paths == {
        *PATHS, "/v1/models", "/v1/conversations/{id}", "/live", "/ready", "/health", "/metrics",
    }  # fmt: skip


def test_facts_reach_the_registry_of_their_own_router(router: Router) -> None:
    other = build(settings(), upstream=engines())
    router.context.facts.publish(HandleFact(Outcome.STORED, "d", 5))
    name = b'boomerang_handles_total{detail="",outcome="stored"} 1.0'
    assert name in generate_latest(router.registry)
    assert name not in generate_latest(other.registry)
    assert b"process_resident_memory_bytes" in generate_latest(router.registry)


def test_a_subscriber_that_raises_is_logged_and_disturbs_nobody(
    router: Router, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[object] = []

    def broken(_: object) -> None:
        raise ValueError("mine")

    router.context.facts.subscribe(broken)
    router.context.facts.subscribe(heard.append)
    router.context.facts.publish(HandleFact(Outcome.STORED, "d", 5))
    assert len(heard) == 1
    assert "ValueError('mine')" in caplog.text


async def test_sweeping_takes_the_sizes_that_a_scrape_shows(router: Router) -> None:
    assert router.ledger_stats == LedgerStats(0, 0, 0, 0, 0, 0, 0)
    trace = Trace("p", "d", 10, 100, 0, router.context.now())
    await router.context.ledger.put(Put((b"k" * 16,), None, trace, None, ""))
    await router.sweep()
    assert router.ledger_stats.branches == 1
    assert b"boomerang_ledger_branches 1.0" in generate_latest(router.registry)


async def test_running_probes_sweeps_and_closes(router: Router) -> None:
    async with router.running():
        async with asyncio.timeout(30):
            while not all(node.state is State.READY for node in router.context.fleet.snapshot.nodes):
                await asyncio.sleep(0.001)
        assert {task.get_name() for task in asyncio.all_tasks()} >= {"probe", "sweep"}
    assert not {task.get_name() for task in asyncio.all_tasks()} & {"probe", "sweep"}


async def test_what_was_running_closes_the_http_client() -> None:
    router = build(settings())
    async with router.running():
        pass
    with pytest.raises(NeverSent, match="closed"):
        await router.context.upstream.send(P, Call("GET", "/health"))


def test_the_server_is_set_up_as_the_settings_say(router: Router) -> None:
    given = settings(host="::1", port=0, keepalive_s=74.2, drain_s=0.5)
    config = server_config(given, router)
    assert (config.host, config.port) == ("::1", 0)
    assert (config.timeout_keep_alive, config.timeout_graceful_shutdown) == (75, 1)
    assert config.lifespan == "on"
    assert config.server_header is False
