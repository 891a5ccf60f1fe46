"""A headless Chromium, for tests of the page and for its screenshots."""

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, Literal

from playwright.async_api import Browser, Page, async_playwright

FLAGS: Final = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
WIDE: Final = (1280, 1000)
NARROW: Final = (390, 844)


def chromium() -> str | None:
    """The browser's path: ``BOOMERANG_CHROMIUM``, or one of the usual names; None where there is none."""
    named = os.environ.get("BOOMERANG_CHROMIUM")
    return named or next(filter(None, map(shutil.which, NAMES)), None)


@asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        launched = await playwright.chromium.launch(executable_path=chromium(), args=list(FLAGS))
        try:
            yield launched
        finally:
            await launched.close()


@asynccontextmanager
async def shown(
    launched: Browser,
    url: str,
    size: tuple[int, int] = WIDE,
    *,
    scheme: Literal["light", "dark"] = "light",
    motion: Literal["reduce", "no-preference"] = "no-preference",
) -> AsyncIterator[tuple[Page, list[str]]]:
    """A page, and what its console and its policy complained of."""
    width, height = size
    context: Any = await launched.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion=motion
    )
    page = await context.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None
    )
    try:
        await page.goto(url)
        yield page, complaints
    finally:
        await context.close()
