"""Every relative link of every page leads somewhere; every page is in the site's navigation."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.site import ELSEWHERE, turned
from tests.docs.pages import ROOT, anchors, links, name_of, pages


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    broken = [target for target in links(page.read_text(encoding="utf-8")) if not _leads(page, target)]
    assert not broken, f"{name_of(page)}: {broken}"


def _leads(page: Path, target: str) -> bool:
    if "://" in target or target.startswith("mailto:"):
        return True
    path, _, anchor = target.partition("#")
    there = (page.parent / path).resolve() if path else page
    if not there.is_relative_to(ROOT) or not there.exists():
        return False
    return not anchor or (there.suffix == ".md" and anchor in anchors(there.read_text(encoding="utf-8")))


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = ROOT / "README.md"
    assert _leads(page, "docs/architecture.md#one-turn")
    assert not _leads(page, "docs/architecture.md#two-turns")
    assert not _leads(page, "docs/no-such-page.md")
    assert links("see [`x` and [y]](a.md#b), ![picture](c.svg), `[no](d.md)`\n```\n[no](e.md)\n```\n") == [
        "a.md#b",
        "c.svg",
    ]
    assert anchors("# A `b_c`, d\n```\n# no\n```\n## A `b_c`, d\n") == {"a-b_c-d", "a-b_c-d-1"}


def test_every_page_is_in_the_navigation_once() -> None:
    with (ROOT / "zensical.toml").open("rb") as file:
        listed = sorted(_leaves(tomllib.load(file)["project"]["nav"]))
    written = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    decisions = {page for page in written if page.startswith("decisions/0")}
    assert listed == sorted((written - decisions) | set(ELSEWHERE.values())), "zensical.toml: nav"
    index = (ROOT / "docs" / "decisions" / "index.md").read_text(encoding="utf-8")
    assert sorted(f"decisions/{target}" for target in links(index) if target.startswith("0")) == sorted(
        decisions
    )


def _leaves(nav: object) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    elif isinstance(nav, dict):
        for inner in nav.values():
            yield from _leaves(inner)
    elif isinstance(nav, list):
        for inner in nav:
            yield from _leaves(inner)


def test_links_are_turned_for_the_site() -> None:
    text = "[a](../deploy/vllm-plugin/README.md#x) [b](fleet.md) [c](../router/app.py) [d](https://e.f/)\n```\n[g](../h)\n```\n"
    assert turned(text, "docs/index.md", "index.md") == (
        "[a](vllm-plugin.md#x) [b](fleet.md) c [d](https://e.f/)\n```\n[g](../h)\n```\n"
    )
    from_plugin = "[a](../../docs/check.md) [b](../../README.md)"
    assert (
        turned(from_plugin, "deploy/vllm-plugin/README.md", "vllm-plugin.md") == "[a](check.md) [b](index.md)"
    )


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_no_page_names_a_machine_or_loads_from_elsewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"/(?:root|home)/\w|/work/", text)
    assert not re.search(r"!\[[^\]]*\]\(https?:|<(?:script|img|iframe|link)\b", text)
