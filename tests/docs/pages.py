"""The Markdown of the repository, as tests read it: pages, links, headings, fenced blocks."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
_FENCE = re.compile(
    r"^(?P<mark>`{3,})(?P<language>[^\n`]*)\n(?P<text>.*?)^(?P=mark)[ \t]*$", re.MULTILINE | re.DOTALL
)
_INLINE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
_LINK = re.compile(r"(?<!\\)!?\[(?:[^\[\]]|\[[^\]]*\])*\]\((?P<target>[^()\s]+)(?:\s+\"[^\"]*\")?\)")
_HEADING = re.compile(r"^#{1,6}[ \t]+(.+?)[ \t#]*$", re.MULTILINE)
_MARKED = re.compile(
    r"^<!-- example: (?P<what>[^\n]*?) -->\n(?P<fence>`{3,}.*?^`{3,})[ \t]*$", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Example:
    """A block of a page that a test plays. ``what`` is ``start``, ``file``, ``run`` or ``output``."""

    what: str
    rest: str
    language: str
    text: str


def pages() -> list[Path]:
    """Every page, the README first; generated ones too."""
    plugin = ROOT / "deploy" / "vllm-plugin" / "README.md"
    return [ROOT / "README.md", ROOT / "CHANGELOG.md", plugin, *sorted((ROOT / "docs").rglob("*.md"))]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def links(text: str) -> list[str]:
    """Targets of inline links and images, outside of code."""
    prose = _FENCE.sub("", text)
    # Link texts may hold code; their targets do not.
    return [link["target"] for link in _LINK.finditer(_INLINE.sub("code", prose))]


def anchors(text: str) -> set[str]:
    """What ``#…`` may name: headings, spelled as GitHub and the site do."""
    found: set[str] = set()
    for heading in _HEADING.findall(_FENCE.sub("", text)):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")
        number = 0
        while (name := f"{slug}-{number}" if number else slug) in found:
            number += 1
        found.add(name)
    return found


def examples(text: str) -> Iterator[Example]:
    """The blocks that are marked with ``<!-- example: … -->``, in order."""
    for marked in _MARKED.finditer(text):
        fence = _FENCE.fullmatch(marked["fence"])
        assert fence is not None, marked["fence"]
        what, _, rest = marked["what"].partition(" ")
        yield Example(what, rest, fence["language"], fence["text"])
