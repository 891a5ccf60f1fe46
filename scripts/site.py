"""``python -m scripts.site``: collect the pages of the documentation site in ``build/docs``, for zensical.

The pages are written to be read in the repository. Two that live elsewhere in it (the change log and the
plugin's README) come along; links to them are turned, and links to other files become plain text.
"""

import posixpath
import re
import shutil
from pathlib import Path

ROOT = Path(__file__).parent.parent
STAGED = ROOT / "build" / "docs"
ELSEWHERE = {
    "CHANGELOG.md": "changelog.md",
    "deploy/vllm-plugin/README.md": "vllm-plugin.md",
    "README.md": "index.md",
}
"""Path in the repository → page of the site. ``README.md`` has a page of its own there, and is not copied."""

LINK = re.compile(r"(?<!\\)(?P<image>!?)\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^()\s]+)\)")
FENCE = re.compile(r"^( *)(```+|~~~+).*?^\1\2[ \t]*$", re.MULTILINE | re.DOTALL)


def stage(folder: Path = STAGED) -> None:
    """Fill a folder anew."""
    shutil.rmtree(folder, ignore_errors=True)
    for path in sorted((ROOT / "docs").rglob("*")):
        if path.is_file():
            _put(path.relative_to(ROOT).as_posix(), path.relative_to(ROOT / "docs").as_posix(), folder)
    for source, page in ELSEWHERE.items():
        if source != "README.md":
            _put(source, page, folder)


def _put(source: str, page: str, folder: Path) -> None:
    target = folder / page
    target.parent.mkdir(parents=True, exist_ok=True)
    if not page.endswith(".md"):
        shutil.copyfile(ROOT / source, target)
        return
    target.write_text(turned((ROOT / source).read_text(encoding="utf-8"), source, page), encoding="utf-8")


def turned(text: str, source: str, page: str) -> str:
    """A page's text with links that lead to where things are on the site. Code blocks stay as they are."""
    parts, last = [], 0
    for fence in FENCE.finditer(text):
        parts += [_turned(text[last : fence.start()], source, page), fence[0]]
        last = fence.end()
    return "".join((*parts, _turned(text[last:], source, page)))


def _turned(text: str, source: str, page: str) -> str:
    def turn(link: re.Match[str]) -> str:
        path, hash_, anchor = link["target"].partition("#")
        if not path or "://" in path or path.startswith("mailto:"):
            return link[0]
        wanted = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        on_site = ELSEWHERE.get(wanted)
        if on_site is None and wanted.startswith("docs/"):
            on_site = wanted.removeprefix("docs/")
        if on_site is None:
            return link["text"]
        there = posixpath.relpath(on_site, posixpath.dirname(page) or ".")
        return f"{link['image']}[{link['text']}]({there}{hash_}{anchor})"

    return LINK.sub(turn, text)


if __name__ == "__main__":
    stage()
