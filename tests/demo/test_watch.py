"""``boomerang demo --page``: agents talk, the page shows it, and whoever stops it leaves nothing behind."""

import asyncio
import json
import os
import re
import signal
import sys
from pathlib import Path

from tests.e2e.http_pool import PATIENCE_S, direct_client, until

ROOT = Path(__file__).parent.parent.parent


def children_of(pid: int) -> set[int]:
    """Processes that a process has started and that run now."""
    return {int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_agents_talk_and_the_page_shows_what_comes_back() -> None:
    demo = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "router", "demo", "--page", "--agents", "2", "--port", "0"),
        cwd=ROOT,
        env={"PATH": os.environ.get("PATH", "")},
        stdout=asyncio.subprocess.PIPE,
    )
    assert demo.stdout is not None
    try:
        async with asyncio.timeout(2 * PATIENCE_S):
            said = (await demo.stdout.readline()).decode()
            found = re.search(r"http://127\.0\.0\.1:\d+(?=/page)", said)
            assert found is not None, said
            started = children_of(demo.pid)
            assert len(started) == 6, "two prefill and two decode nodes, two routers"
            plans: set[str] = set()
            async with direct_client(found[0]) as http, http.stream("GET", "/page/events") as answer:
                async for line in answer.aiter_lines():
                    if line.startswith("data: "):
                        plans |= {turn["plan"] for turn in json.loads(line[6:]).get("turns", [])}
                    if "pull" in plans:
                        break
            demo.send_signal(signal.SIGTERM)
            assert await demo.wait() == 0, "the end that was announced"
            await until(lambda: not any(map(runs, started)), "the demo's processes")
    finally:
        if demo.returncode is None:
            demo.terminate()  # it stops what it started
            await demo.wait()
