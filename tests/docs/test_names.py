"""Pages name only metrics, settings and commands that there are."""

import re
from pathlib import Path

import pytest

from router.cli import COMMANDS
from router.setting_sources import NOT_SETTINGS
from router.settings import ENVIRONMENT_PREFIX, Settings, flag_name, variable_name
from tests.docs.pages import ROOT, name_of, pages

METRIC = re.compile(r"\bboomerang_[a-z][a-z_]*[a-z]\b(?![/.-])")
NO_METRICS = {"boomerang_vllm", "boomerang_stay", "boomerang_router"}
"""The plugin's package, a member of ``vllm_xargs``, the wheel."""
RECORDED = re.compile(r"record: \S*?(boomerang_\w+)")
SUFFIXES = ("_total", "_bucket", "_sum", "_count", "_created")
SERVE = re.compile(r"boomerang serve\b((?:[^`\n&#|]|\\\n)*)")
COMMAND = re.compile(r"(?m)^(?:\$ )?boomerang ([a-z]+)\b")
VARIABLE = re.compile(rf"\b{ENVIRONMENT_PREFIX}(?!VLLM_)[A-Z_]*[A-Z]\b")
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*[a-z]\b")


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_every_metric_is_on_its_page(page: Path) -> None:
    described = set(METRIC.findall(read(ROOT / "docs" / "metrics.md")))
    known = described | {f"{name}{suffix}" for name in described for suffix in SUFFIXES}
    known |= {name.removesuffix(suffix) for name in described for suffix in SUFFIXES} | NO_METRICS
    for rules in (ROOT / "deploy" / "prometheus").glob("*.yaml"):
        known |= set(RECORDED.findall(read(rules)))
    named = {name for name in METRIC.findall(read(page)) if not name.endswith("_vllm")}
    assert sorted(named - known) == []


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_commands_and_their_flags_are_there(page: Path) -> None:
    text = read(page)
    assert sorted(set(COMMAND.findall(text)) - set(COMMANDS)) == []
    flags = {flag_name(name) for name in Settings.model_fields} | {"--config", "--help"}
    flags |= {f"--no-{flag.removeprefix('--')}" for flag in flags}
    given = {flag for options in SERVE.findall(text) for flag in FLAG.findall(options)}
    assert sorted(given - flags) == []


def test_variables_of_ours_are_settings_or_read_by_the_projects_tests() -> None:
    settings = {variable_name(name) for name in Settings.model_fields}
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        assert sorted(set(VARIABLE.findall(read(page))) - settings - NOT_SETTINGS) == [], name_of(page)
