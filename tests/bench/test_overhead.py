"""``boomerang bench overhead``: small runs of the real thing, over sockets and in processes of their own."""

import os
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec
import pytest

from router.bench.cost import cpu_s, family, rss_mb
from router.bench.overhead import Result, ratios

SMALL = ("--rounds", "1", "--streams", "2", "--events", "4", "--every-ms", "1", "--turns", "3")


def bench(folder: Path, *options: str) -> dict[str, dict[str, Any]]:
    """One round's results, by contestant."""
    out = folder / "results.json"
    command = [sys.executable, "-m", "router", "bench", "overhead", *SMALL, "--json", str(out), *options]
    subprocess.run(command, check=True, timeout=120, capture_output=True)
    return {result["name"]: result for result in msgspec.json.decode(out.read_bytes())["results"]}


def test_both_modes_reuse_and_all_others_stream(tmp_path: Path) -> None:
    found = bench(tmp_path, "--router-verified")
    assert list(found) == ["boomerang", "boomerang, router-verified", "plain httpx proxy", "direct"]
    for name, result in found.items():
        assert result["events_per_s"] > 0
        assert result["ttft_p50_ms"] > 0
        assert (result["cpu_ms"] > 0) is (name != "direct")
        # Of three turns all but the first have a history.
        wanted = 2 / 3 if name.startswith("boomerang") else 0.0
        assert result["reused_share"] == pytest.approx(wanted), name


@pytest.mark.skipif(shutil.which("redis-server") is None, reason="there is no redis-server here")
def test_workers_share_their_ledger(tmp_path: Path) -> None:
    found = bench(tmp_path, "--workers", "2")
    for name in ("boomerang, shared ledger", "boomerang, 2 workers"):
        assert found[name]["reused_share"] == pytest.approx(2 / 3), name
    assert found["boomerang, 2 workers"]["rss_mb"] > found["boomerang"]["rss_mb"]


def test_what_a_process_has_started_costs_with_it() -> None:
    burn = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"
    with subprocess.Popen([sys.executable, "-c", burn], start_new_session=True) as parent:
        try:
            end_s = time.monotonic() + 60
            while len(list(family(parent.pid))) < 2 and time.monotonic() < end_s:
                time.sleep(0.01)
            parent_pid, child_pid = family(parent.pid)
            before_s = cpu_s(parent_pid)
            while cpu_s(child_pid) < 0.05 and time.monotonic() < end_s:
                time.sleep(0.01)
            assert cpu_s(parent_pid) - before_s > 0
            assert rss_mb(parent_pid) > rss_mb(child_pid) > 1
        finally:
            os.killpg(parent.pid, 9)


def test_ratios_are_taken_within_each_round() -> None:
    costs: dict[str, tuple[float, ...]] = {
        "boomerang": (1.0, 4.0),
        "vllm-router": (2.0, 2.0),
        "direct": (0.0, 0.0),
    }
    results = defaultdict(list)
    for name, rounds in costs.items():
        for number, cost_ms in enumerate(rounds, 1):
            results[name].append(Result(name, 8, number, cost_ms, cost_ms, cost_ms, 1.0, 1.0, 0.0))
    told = ratios([result for own in results.values() for result in own])
    assert "8 streams, CPU per turn: boomerang / vllm-router = 1.25 (0.50–2.00)" in told
    assert "TTFT p99 over direct (one leg), ms: boomerang 2.50 (1.00–4.00)" in told


def test_workers_are_told_beside_one_that_has_as_many_streams_as_each() -> None:
    results = [
        Result(name, streams, 1, cpu_ms, 1.0, 1.0, 1.0, 1.0, 0.0)
        for name, streams, cpu_ms in (
            ("boomerang, shared ledger", 4, 3.0),
            ("boomerang, shared ledger", 8, 2.0),
            ("boomerang, 2 workers", 8, 2.4),
        )
    ]
    told = ratios(results)
    assert (
        "8 streams, CPU per turn: boomerang, 2 workers / boomerang, shared ledger = 1.20 (1.20–1.20)" in told
    )
    assert (
        "8 streams, CPU per turn: boomerang, 2 workers / boomerang, shared ledger at 4 = 0.80 (0.80–0.80)"
        in told
    )
