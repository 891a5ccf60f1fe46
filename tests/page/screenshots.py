"""Takes the pictures of the page that docs/page.md shows: ``python -m tests.page.screenshots [FOLDER]``.

A pool of simulated engines in processes of its own, agents that talk to it, and Chromium without a window.
"""

import asyncio
import sys
from pathlib import Path

import httpx

from router.demo.crowd import crowd
from router.demo.processes import Pool, pool
from tests.page.browser import NARROW, WIDE, browser, shown

FOLDER = Path(__file__).parent.parent.parent / "docs" / "img"
TALK_S = 40.0
"""Until the conversations have grown to something worth seeing."""
SETTLE_MS = 3_500


async def take(started: Pool, model: str, folder: Path) -> None:
    """All pictures, in the order in which they can be had."""
    async with browser() as launched:
        async with shown(launched, started.page, (1280, 900)) as (page, _):
            await page.wait_for_timeout(SETTLE_MS)
            await page.screenshot(path=folder / "page-empty.png")
        with crowd(started.router_on, model, agents=8):
            await asyncio.sleep(TALK_S)
            for name, size, scheme in (
                ("demo", WIDE, "light"),
                ("dark", WIDE, "dark"),
                ("narrow", (NARROW[0], 1_500), "light"),
            ):
                async with shown(launched, started.page, size, scheme=scheme) as (page, _):  # type: ignore[arg-type]
                    await page.wait_for_timeout(SETTLE_MS)
                    await page.screenshot(path=folder / f"page-{name}.png")
            started.processes[started.decodes[1]].kill()
            async with shown(launched, started.page) as (page, _):
                await page.locator('.node[data-state="ejected"]').wait_for(timeout=60_000)
                await page.wait_for_timeout(SETTLE_MS)
                await page.screenshot(path=folder / "page-node-down.png")


def main() -> int:
    """Write the pictures to the folder that is named, or to docs/img."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    with pool(port=0, plugin=False, prefills=2, decodes=2) as started:
        model = httpx.get(f"{started.router_on}/v1/models", timeout=10).json()["data"][0]["id"]
        asyncio.run(take(started, model, folder))
    for picture in sorted(folder.glob("page-*.png")):
        print(f"{picture}: {picture.stat().st_size // 1024} KB")  # noqa: T201 - a command of its own
    return 0


if __name__ == "__main__":
    sys.exit(main())
