"""The ledger that the settings name, with all that belongs to it, and what is said of it."""

import time
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from router.app import build
from router.ledger.clock import SharedClock
from router.ledger.memory import MemoryLedger
from router.ledger.redis import RedisLedger
from router.ledger.store import LedgerStats
from router.setting_sources import SettingsError, load
from router.settings import Settings
from router.stores import store_of
from router.telemetry.facts import Fact, Facts, StoreChanged
from router.telemetry.metrics import Metrics
from tests.ledger import servers
from tests.ledger.play import Clock, Play, asking

POOLS: dict[str, object] = {"prefill": ["http://p:8100"], "decode": ["http://d:8200"]}
SECRET = "hunter2-sk-abcdef"


def settings(**given: object) -> Settings:
    return load({**POOLS, **given})


async def test_in_memory_the_clock_is_the_process_s_own() -> None:
    store = store_of(settings(), Facts())
    assert isinstance(store.ledger, MemoryLedger)
    assert store.now is time.monotonic
    await store.ledger.close()


async def test_a_shared_store_comes_with_a_shared_clock() -> None:
    store = store_of(settings(store="redis://127.0.0.1:1"), Facts())
    assert isinstance(store.ledger, RedisLedger)
    assert isinstance(store.now, SharedClock)
    assert store.now() == pytest.approx(time.time(), abs=60)
    await store.ledger.close()


async def test_a_router_without_its_store_sweeps_on_and_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    router = build(settings(store=f"redis://app:{SECRET}@127.0.0.1:1"))
    facts: list[Fact] = []
    router.context.facts.subscribe(facts.append)
    for _ in range(6):
        await router.sweep()
    assert router.ledger_stats == LedgerStats(0, 0, 0, 0, 0, 0, 0)
    changed = [fact for fact in facts if isinstance(fact, StoreChanged)]
    assert [(fact.server, fact.up) for fact in changed] == [("redis://app@127.0.0.1:1", False)]
    assert b'boomerang_store_changes_total{state="down"} 1.0' in router.scrape()
    assert SECRET not in caplog.text + repr(facts)
    await router.context.ledger.close()
    await router.context.upstream.close()


async def test_a_router_keeps_its_turns_in_the_store() -> None:
    servers.needed()
    with servers.server() as server:
        patient = {"store_timeout_s": "5", "store_connect_timeout_s": "5"}
        router = build(settings(store=server.url, **patient))
        clock = router.context.now
        assert isinstance(clock, SharedClock)
        ledger = router.context.ledger
        await Play(ledger, Clock(clock())).turn(asking("m0"))
        await router.sweep()
        assert (router.ledger_stats.branches, router.ledger_stats.handles) == (1, 1)
        scraped = router.scrape()
        assert b"boomerang_ledger_handles 1.0" in scraped
        assert b"boomerang_ledger_bytes" not in scraped, "what is not counted is not shown as none"
        await ledger.close()
        await router.context.upstream.close()


def test_the_address_is_shown_without_its_password() -> None:
    given = settings(store=f"rediss+cluster://app:{SECRET}@a:7000,b:7001")
    assert given.store_shown == "rediss+cluster://app@a:7000,b:7001"
    assert settings().store_shown == "memory"
    (warning,) = given.warnings()
    assert "store_password_file" in warning
    assert SECRET not in warning
    assert settings(store="rediss://app@a").warnings() == ()


@pytest.mark.parametrize("workers", [None, "1", "3"])
def test_the_number_of_workers_may_come_from_the_platform(
    workers: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEB_CONCURRENCY", "4")
    given = {"workers": workers} if workers else {}
    assert settings(store="redis://cache", **given).workers == int(workers or 4)
    if workers != "1":
        with pytest.raises(SettingsError, match="processes need a shared store"):
            settings(**given)
    monkeypatch.setenv("WEB_CONCURRENCY", "")
    assert settings().workers == 1


def test_the_admin_api_is_for_routers_of_one_process() -> None:
    with pytest.raises(SettingsError, match="admin_port: is for one process"):
        settings(store="redis://cache", workers="2", admin_port="0")


def test_a_password_file_has_to_be_there(tmp_path: Path) -> None:
    file = tmp_path / "password"
    with pytest.raises(SettingsError, match="store_password_file: the file cannot be read"):
        settings(store_password_file=str(file))
    file.write_text(SECRET)
    assert settings(store_password_file=str(file)).store_password_file == file


def test_a_store_that_changes_is_counted() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    for up in (False, True, False):
        metrics(StoreChanged("redis://cache:6379", up, "why"))
    scraped = generate_latest(registry)
    assert b'boomerang_store_changes_total{state="down"} 2.0' in scraped
    assert b'boomerang_store_changes_total{state="up"} 1.0' in scraped
