"""One version, written down in ``router/__init__.py``; what has to repeat it says the same."""

import re
import tomllib
from datetime import date
from pathlib import Path

import yaml

from router import __version__

ROOT = Path(__file__).parent.parent.parent


def test_the_version_is_declared_in_one_place() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        pyproject = tomllib.load(file)
    assert "version" not in pyproject["project"]
    assert pyproject["tool"]["hatch"]["version"]["path"] == "router/__init__.py"
    assert re.fullmatch(r"\d+\.\d+\.\d+", __version__)


def test_the_change_log_begins_with_it() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = [heading for heading in re.findall(r"(?m)^## (.+)$", text) if heading != "Unreleased"]
    versions = []
    for heading in headings:
        told = re.fullmatch(r"(\d+\.\d+\.\d+) \((\d{4}-\d\d-\d\d)\)", heading)
        assert told is not None, heading
        versions.append((tuple(map(int, told[1].split("."))), date.fromisoformat(told[2])))
    assert versions == sorted(versions, reverse=True)
    assert headings[0].startswith(f"{__version__} ")


def test_images_and_chart_are_of_it() -> None:
    chart = yaml.safe_load(
        (ROOT / "deploy" / "helm" / "boomerang" / "Chart.yaml").read_text(encoding="utf-8")
    )
    assert chart["appVersion"] == __version__
    for path in (ROOT / "deploy").rglob("kustomization.yaml"):
        for image in yaml.safe_load(path.read_text(encoding="utf-8")).get("images", ()):
            if image["name"] == "boomerang":
                assert str(image.get("newTag", __version__)) == __version__, path
    compose = (ROOT / "deploy" / "compose" / "compose.yaml").read_text(encoding="utf-8")
    assert set(re.findall(r"image: boomerang:(\S+)", compose)) == {__version__}
