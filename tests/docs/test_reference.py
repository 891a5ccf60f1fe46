"""The reference is what the code says, and nothing that the code has is missing in it."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from router.cli import COMMANDS
from router.errors import ERROR_ROWS
from router.settings import Settings, flag_name
from scripts.reference.markdown import Incomplete, same, table
from scripts.reference.pages import FOLDER, pages
from tests.docs.pages import ROOT

HEADER = re.compile(r"(?:x-(?!accel)[a-z]+(?:-[a-z]+)*|server-timing|retry-after|traceparent|tracestate)")
NOT_OF_REQUESTS = {"x-anthropic-billing-header", "x-content-type-options", "x-frame-options"}
"""A line within a prompt, and what tells browsers how to treat the live page."""
FRONT = ("app.py", "errors.py", "http", "turn", "telemetry", "serve.py")
"""Parts of the router that read or write clients' headers."""


@pytest.mark.parametrize("name", list(pages()))
def test_pages_are_what_the_code_says(name: str) -> None:
    written = (ROOT / FOLDER / name).read_text(encoding="utf-8")
    assert written == pages()[name], f"{FOLDER}/{name} is stale: run `make reference`"


def test_no_page_is_left_over() -> None:
    assert {path.name for path in (ROOT / FOLDER).iterdir()} == set(pages())


def test_every_setting_command_and_error_is_there() -> None:
    settings, commands, errors = (pages()[name] for name in ("settings.md", "commands.md", "errors.md"))
    assert [name for name in Settings.model_fields if f"`{flag_name(name)}`" not in settings] == []
    assert [name for name in COMMANDS if f"\n## {name}\n" not in commands] == []
    assert [row.code for row in ERROR_ROWS.values() if f"`{row.code}`" not in errors] == []


def test_every_header_is_there() -> None:
    page = pages()["headers.md"]
    found = set(_headers()) - NOT_OF_REQUESTS
    assert "x-boomerang-plan" in found, "headers are looked for where there are none"
    assert sorted(name for name in found if f"`{name}`" not in page) == []


def _headers() -> Iterator[str]:
    """Texts in the code that are a header's name."""
    for part in FRONT:
        for path in _sources(ROOT / "router" / part):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if (
                    isinstance(node, ast.Constant)
                    and isinstance(node.value, str)
                    and HEADER.fullmatch(node.value)
                ):
                    yield node.value


def _sources(path: Path) -> list[Path]:
    return [path] if path.suffix == ".py" else sorted(path.rglob("*.py"))


def test_what_is_described_nowhere_is_told() -> None:
    with pytest.raises(Incomplete, match="routes: not described: GET /new"):
        same("routes", ["GET /new", "GET /old"], {"GET /old": "…"})
    with pytest.raises(Incomplete, match="not there any more: GET /old"):
        same("routes", [], {"GET /old": "…"})
    assert table(("a", "b"), [("x|y", "z")]) == "| a | b |\n| --- | --- |\n| x\\|y | z |"
