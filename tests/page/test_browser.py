"""The live page in a real browser, over a running router and simulated engines."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from router.app import build
from router.http.listener import listen, origin_of
from router.telemetry.facts import EndedBy
from tests.e2e.http_pool import (
    CHAT,
    NO_CACHE_P,
    HttpPool,
    continued,
    fault,
    http_pool,
    opening,
    router_of,
    serving,
    settings_for,
    sim_servers,
)
from tests.page.browser import NARROW, WIDE, browser, chromium, shown
from tests.telemetry.test_metrics import TURN

expect.set_options(timeout=30_000)  # tests share their processor

pytestmark = pytest.mark.skipif(
    chromium() is None, reason="there is no Chromium: install it, or name it in BOOMERANG_CHROMIUM"
)

TOKEN = "s3cret-of-operators"
CONTRAST = """() => {
  const channel = (v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) =>
    0.2126 * channel(r / 255) + 0.7152 * channel(g / 255) + 0.0722 * channel(b / 255);
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const low = [];
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    const text = walker.currentNode.textContent.trim();
    if (!text || ["SCRIPT", "NOSCRIPT"].includes(element.tagName) || !element.checkVisibility()) continue;
    const [a, b] = [light(parse(getComputedStyle(element).color)), light(ground(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) low.push(`${text.slice(0, 40)}: ${ratio.toFixed(2)}`);
  }
  return low;
}"""
"""Texts with less contrast than 4.5 to 1 (WCAG 2.2, 1.4.3)."""


@asynccontextmanager
async def pool_and_page(**options: Any) -> AsyncIterator[tuple[HttpPool, str, Browser]]:
    """A pool of one P and two D, the page's address, and a browser."""
    async with (
        http_pool(NO_CACHE_P, decode=[NO_CACHE_P, NO_CACHE_P], admin_port=0, **options) as pool,
        browser() as launched,
    ):
        yield pool, f"{origin_of(pool.router.listen_for_admin())}/page", launched


async def talk(pool: HttpPool, turns: int = 3, text: str = "hello") -> None:
    """One conversation."""
    body = opening(text)
    for _ in range(turns):
        body = continued({**body}, await pool.turn({**body}))


async def seen(page: Page, selector: str, text: str) -> None:
    await expect(page.locator(selector)).to_contain_text(text)


async def counted(page: Page, selector: str, count: int) -> None:
    await expect(page.locator(selector)).to_have_count(count)


async def too_wide(page: Page) -> list[str]:
    """Elements that reach out of the window, but for those in a scrolling table."""
    found: list[str] = await page.evaluate(
        "() => [...document.querySelectorAll('main *, header *, footer *')]"
        ".filter((e) => e.checkVisibility() && !e.closest('.detail, .skip, .flights'))"
        ".filter((e) => e.getBoundingClientRect().right > innerWidth + 0.5)"
        ".map((e) => `${e.tagName}.${e.className}: ${e.textContent.slice(0, 40)}`)"
    )
    return found


async def test_a_conversation_is_seen_as_it_runs_and_told_in_a_table() -> None:
    async with pool_and_page() as (pool, url, launched), shown(launched, url) as (page, complaints):
        await seen(page, "#connection", "Live")
        await seen(page, "#empty", "No turn yet")
        await counted(page, ".node", 3)
        fault(pool.d, path=CHAT, delay_s=1.0)
        fault(pool.decodes[1], path=CHAT, delay_s=1.0)
        talking = asyncio.create_task(talk(pool, 3))
        await counted(page, ".turn[data-running]", 1)
        await talking
        await counted(page, ".turn", 3)
        await counted(page, ".turn[data-running]", 0)
        await expect(page.locator("#empty")).to_be_hidden()
        await seen(page, ".conversation .plan", "pull")
        await counted(page, ".turn i.moved", 2)
        last = pool.ended()
        assert last.prompt_tokens is not None
        await seen(page, ".latest", f"{last.reused_tokens} of {last.prompt_tokens} back")
        await seen(page, "#turns", "3")
        share = round(100 * pool.router.live.sums.reused_tokens / pool.router.live.sums.prompt_tokens)
        await seen(page, "#share", f"{share}%")

        # By keyboard alone: to the conversation, and its table open.
        await page.locator(".toggle").focus()
        await page.keyboard.press("Enter")
        assert await page.locator(".toggle").get_attribute("aria-expanded") == "true"
        await counted(page, ".conversation tbody tr", 3)
        cells = await page.locator(".conversation tbody tr").last.locator("td").all_inner_texts()
        assert cells[1:3] == ["pull", "extension"]
        assert cells[4:6] == [str(last.prompt_tokens), str(last.moved_tokens)]
        await page.keyboard.press("Enter")
        await expect(page.locator(".conversation .detail")).to_be_hidden()
        await page.locator("summary").focus()
        await page.keyboard.press("Enter")
        await counted(page, "#node-rows tr", 3)
        await seen(page, "#node-rows tr:nth-child(2)", pool.d.origin.removeprefix("http://"))
        assert complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, NARROW, (320, 700)])
async def test_it_fits_and_can_be_read(size: tuple[int, int], scheme: Any) -> None:
    async with pool_and_page(verify="lineage") as (pool, url, launched):
        await talk(pool)
        async with shown(launched, url, size, scheme=scheme, motion="reduce") as (page, complaints):
            await counted(page, ".turn", 3)
            await seen(page, "#warnings", "verify=lineage")
            await page.locator(".toggle").click()
            await page.locator("summary").click()
            assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            assert await too_wide(page) == []
            assert await page.evaluate(CONTRAST) == []
            assert complaints == []


async def test_without_motion_nothing_flies_and_with_it_little_does() -> None:
    async with pool_and_page() as (pool, url, launched):
        for motion, flies in (("reduce", False), ("no-preference", True)):
            async with shown(launched, url, motion=motion) as (page, _):  # type: ignore[arg-type]
                await seen(page, "#connection", "Live")
                await page.evaluate(
                    "() => { window.most = 0; new MutationObserver(() => {"
                    " window.most = Math.max(window.most, document.querySelectorAll('.flight').length);"
                    "}).observe(document.getElementById('flights'), { childList: true }); }"
                )
                await talk(pool, 2, f"motion {motion}")
                await expect(page.locator("#lanes path").first).to_be_attached()
                most = await page.evaluate("window.most")
                assert (0 < most <= 40) if flies else most == 0


async def test_a_dead_node_is_seen() -> None:
    async with pool_and_page() as (pool, url, launched), shown(launched, url) as (page, _):
        await counted(page, '.node[data-state="ready"]', 3)
        pool.d.engine.dead = True
        for _ in range(3):
            await pool.router.context.fleet.refresh(pool.router.context.upstream)
        await counted(page, '.node[data-state="ejected"]', 1)
        await seen(page, '.node[data-state="ejected"]', "down")
        await seen(page, '.warning[data-level="error"]', "is down")
        await seen(page, "#decode-count", "1 of 2 ready")


async def test_a_router_that_goes_and_comes_back() -> None:
    with listen("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    async with sim_servers([NO_CACHE_P] * 2) as (p, d), browser() as launched:
        async with router_of([p], [d], admin_port=port) as pool:
            url = f"{origin_of(pool.router.listen_for_admin())}/page"
            context = shown(launched, url)
            page, _ = await context.__aenter__()
            await talk(pool, 2)
            await counted(page, ".turn", 2)
        await seen(page, "#connection", "Connection lost; as of")
        assert await page.locator("#shown").get_attribute("data-stale") == ""
        await counted(page, ".turn", 2)  # what was known stays on show
        async with router_of([p], [d], admin_port=port) as pool:
            await seen(page, "#connection", "Live")
            await seen(page, "#empty", "No turn yet")
            await talk(pool, 1)
            await counted(page, ".turn", 1)
        await context.__aexit__(None, None, None)


async def test_the_token_is_asked_for_and_kept_out_of_addresses() -> None:
    async with pool_and_page(admin_token=TOKEN) as (_, url, launched), shown(launched, url) as (page, _):
        await seen(page, "#ask", "The admin API wants its token")
        addresses: list[str] = []
        page.on("request", lambda request: addresses.append(request.url))
        for wrong in ("wrong", "nö"):
            await page.fill("#token", wrong)
            await page.keyboard.press("Enter")
            await seen(page, "#ask-problem", "That is not its token")
        await expect(page.locator("#token")).to_have_value("")
        await page.fill("#token", TOKEN)
        await page.keyboard.press("Enter")
        await seen(page, "#connection", "Live")
        await expect(page.locator("#ask")).to_be_hidden()
        await page.reload()
        await seen(page, "#connection", "Live")
        assert addresses
        assert not any(TOKEN in address for address in addresses)
        assert await page.evaluate("localStorage.length + document.cookie.length") == 0


async def test_what_others_wrote_stays_text() -> None:
    evil = "<img src=x onerror='document.title=1'><script>document.title=2</script>"
    async with pool_and_page() as (pool, url, launched), shown(launched, url) as (page, complaints):
        await seen(page, "#connection", "Live")
        title = await page.title()
        await talk(pool, 1)
        pool.router.context.facts.publish(
            replace(TURN, line="aa11", turn_id="brg-x", plan=evil, reason=evil, prefill=evil, decode=evil)
        )
        pool.router.context.fleet.drain(pool.router.context.fleet.snapshot.nodes[1].key, evil)
        await seen(page, "#warnings", evil)
        await counted(page, ".conversation", 2)
        await page.locator(".toggle").first.click()
        assert await page.locator("img").count() == 1, "the page's own"
        assert await page.title() == title
        assert complaints == []


async def test_forty_nodes_and_three_hundred_conversations_are_bounded() -> None:
    nowhere = [[f"http://127.0.0.1:1{role}{n:02}" for n in range(20)] for role in (1, 2)]
    settings = settings_for(*nowhere, admin_port=0)
    router = build(settings)
    url = f"{origin_of(router.listen_for_admin())}/page"
    async with serving(settings, router), browser() as launched:
        nodes = [node.key for node in router.context.fleet.snapshot.nodes]

        def turn(number: int) -> None:
            router.context.facts.publish(
                replace(
                    TURN,
                    turn_id=f"brg-{number}",
                    line=f"{number % 300:08x}",
                    plan="pull",
                    status=200 if number % 50 else 502,
                    ended_by=EndedBy.ENGINE if number % 50 else EndedBy.FAULT,
                    prefill=nodes[number % 20],
                    decode=nodes[20 + number % 20],
                    prompt_tokens=4000 + number,
                    reused_tokens=3000,
                    moved_tokens=2000,
                    stream=True,
                    first_byte_s=0.3,
                )
            )

        for number in range(900):
            turn(number)
        for size in (WIDE, NARROW):
            async with shown(launched, url, size) as (page, complaints):
                await seen(page, "#connection", "Live")
                await counted(page, ".node", 40)
                await counted(page, ".conversation", 40)
                await seen(page, "#more-conversations", "160 more")
                for number in range(900, 5000, 10):
                    turn(number)
                    if number % 500 == 0:
                        await asyncio.sleep(0.3)
                await expect(page.locator("#turns")).to_contain_text(str(router.live.sums.turns)[-3:])
                assert await page.evaluate("document.querySelectorAll('*').length") < 9000
                assert await page.locator(".flight").count() <= 40
                assert await page.locator("#lanes path").count() <= 48
                assert await too_wide(page) == []
                assert complaints == []
