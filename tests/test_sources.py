"""Settings become a fleet and its sources."""

from pathlib import Path
from typing import Any

import pytest

from router.engines.aiohttp_upstream import AiohttpUpstream
from router.fleet.breaker import Verdict
from router.fleet.node import Circuit, Role, State, node_of
from router.settings import Settings
from router.sources import fleet_of, probe_of, settings_nodes, sources_of
from router.telemetry.facts import Facts
from tests.fleet.small_engine import small_engine

POOLS: dict[str, Any] = {"prefill": ("http://p:8100",), "decode": ("http://d:8200@1",)}


def test_nodes_that_settings_list() -> None:
    settings = Settings(**POOLS | {"prefill": ("http://p:8100", "dns://names:1")})
    assert [node.key for node in settings_nodes(settings)] == ["p:p:8100", "d:d:8200@1"]
    assert [source.name for source in sources_of(settings)] == ["prefill dns://names:1"]


def test_every_source(tmp_path: Path) -> None:
    settings = Settings(
        prefill=("dns://a:1",), decode=("dns://b:2",), nodes_file=tmp_path / "nodes.yaml",
        kubernetes_prefill="app=p", kubernetes_decode="app=d", kubernetes_api="http://127.0.0.1:1",
    )  # fmt: skip
    assert [source.name for source in sources_of(settings)] == [
        f"nodes_file {tmp_path / 'nodes.yaml'}",
        "prefill dns://a:1",
        "decode dns://b:2",
        "kubernetes prefill app=p",
        "kubernetes decode app=d",
    ]
    assert sources_of(Settings(**POOLS)) == ()


def test_the_breaker_and_the_linger_are_those_of_the_settings() -> None:
    now_s = 0.0
    settings = Settings(**POOLS, breaker_failures=3, breaker_open_s=7, linger_s=11)
    fleet = fleet_of(settings, facts=Facts(), key=lambda: None, now=lambda: now_s)
    node = node_of("http://d:8200", Role.DECODE)
    fleet.add(node)
    for _ in range(3):
        assert fleet.snapshot.by_key[node.key].circuit is Circuit.CLOSED
        fleet.tell(node.key, Verdict.FAULT, "x")
    breaker = fleet.breaker(node.key)
    assert breaker is not None
    assert breaker.open_until_s == 7.0
    with fleet.leg(node.key):
        fleet.leave(node.key, "x")
        now_s = 10.9
        assert fleet.snapshot.get(node.key) is not None
        now_s = 11.0
        assert fleet.snapshot.get(node.key) is None


@pytest.mark.parametrize("key", [None, "sk-pool"])
async def test_probes_show_the_key_and_keep_to_their_limit(key: str | None) -> None:
    upstream = AiohttpUpstream()
    async with small_engine() as engine:
        probe = probe_of(Settings(**POOLS, probe_timeout_s=0.3), lambda: key)
        node = node_of(engine.origin, Role.DECODE)
        silent = await probe(upstream, node)
        assert silent.state is State.STARTING
        assert "0.3 s" in silent.reason
        engine.healthy()
        assert (await probe(upstream, node)).state is State.READY
        shown = {request.header("authorization") for request in engine.seen}
        assert shown == {None if key is None else f"Bearer {key}"}
    await upstream.close()
