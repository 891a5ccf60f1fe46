"""A real Prometheus that scrapes one router, with the repository's rules."""

import contextlib
import math
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from router.demo.processes import free_port, process, wait_ready

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy/prometheus"
SCRAPE_EVERY_S = 1


def program(name: str) -> str:
    """``prometheus`` or ``promtool``. Without it a test is skipped, and fails where ``CI`` is set."""
    found = shutil.which(name)
    if found is None:
        missing = f"there is no {name} on PATH (Debian, Ubuntu: apt-get install prometheus)"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(missing)
    return str(found)


@dataclass(frozen=True, slots=True)
class Prometheus:
    """One that runs."""

    origin: str
    began_s: float

    def get(self, path: str, **query: str) -> Any:
        """What an API route answers. Raises AssertionError where it refuses."""
        answer = httpx.get(f"{self.origin}/api/v1/{path}", params=query, timeout=30).json()
        assert answer["status"] == "success", (query, answer)
        return answer["data"]

    def values(self, query: str) -> list[float]:
        """Every finite value of a query since it began, of all its series."""
        now_s = time.time()
        data = self.get(
            "query_range", query=query, start=str(self.began_s), end=str(now_s), step=str(SCRAPE_EVERY_S)
        )
        found = [float(value) for series in data["result"] for _, value in series["values"]]
        return [value for value in found if math.isfinite(value)]


@contextlib.contextmanager
def scraping(target: str, folder: Path) -> Iterator[Prometheus]:
    """As ``deploy/prometheus/prometheus.yaml`` has it, but for the target and how often."""
    config = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())
    every = f"{SCRAPE_EVERY_S}s"
    config["global"] = {"scrape_interval": every, "evaluation_interval": every}
    config["rule_files"] = [_quick(FOLDER / name, folder, every) for name in config["rule_files"]]
    (job,) = (job for job in config["scrape_configs"] if job["job_name"] == "boomerang")
    job["static_configs"] = [{"targets": [target.removeprefix("http://")]}]
    config["scrape_configs"] = [job]
    file = folder / "prometheus.yaml"
    file.write_text(yaml.safe_dump(config))
    port = free_port()
    command = [
        *(program("prometheus"), f"--config.file={file}", f"--storage.tsdb.path={folder / 'data'}"),
        *(f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"),
    ]
    log = folder / "prometheus.log"
    began_s = time.time()
    with process(command, log) as started:
        origin = f"http://127.0.0.1:{port}"
        wait_ready("prometheus", started, log, f"{origin}/-/ready")
        yield Prometheus(origin, began_s)


def _quick(rules: Path, folder: Path, every: str) -> str:
    """The rules, evaluated as often as is scraped."""
    content = yaml.safe_load(rules.read_text())
    for group in content["groups"]:
        group["interval"] = every
    file = folder / rules.name
    file.write_text(yaml.safe_dump(content))
    return str(file)


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program("promtool"), *arguments], capture_output=True, text=True, timeout=120, check=False
    )
