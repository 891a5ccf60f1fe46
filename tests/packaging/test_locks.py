"""The locks pin every package by hash, name no index, and fit what ``pyproject.toml`` asks for."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent.parent
LOCKS = sorted((*ROOT.glob("requirements*.lock"), *(ROOT / "deploy").rglob("*.lock")))
PIN = re.compile(r"(?P<name>[A-Za-z0-9._-]+)(?:\[[^\]]+\])?==(?P<version>[^\s;]+)(?: ; [^\\]+)?")
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")


def pins(lock: Path) -> dict[str, list[str]]:
    """Name → its versions, of which markers choose one. Raises AssertionError for what has no hash."""
    found: dict[str, list[str]] = {}
    lines = "\n".join(
        line for line in lock.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")
    )
    for entry in lines.replace(" \\\n", " ").splitlines():
        words = entry.split("--hash", 1)
        pin = PIN.fullmatch(words[0].strip())
        assert pin is not None, f"{lock.name}: no pin: {entry[:80]}"
        hashes = ("--hash" + words[1]).split() if len(words) == 2 else []
        assert hashes, f"{lock.name}: {pin['name']} has no hash"
        assert all(HASH.fullmatch(one) for one in hashes), f"{lock.name}: {pin['name']}"
        found.setdefault(canonicalize_name(pin["name"]), []).append(pin["version"])
    return found


def test_there_are_locks() -> None:
    assert {"requirements.lock", "requirements-dev.lock"} <= {lock.name for lock in LOCKS}


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_every_package_is_pinned_by_hash_and_no_index_is_named(lock: Path) -> None:
    assert pins(lock)
    text = lock.read_text(encoding="utf-8")
    assert (
        re.findall(r"(?m)^\s*(?:-i\b|-f\b|--(?:extra-)?index-url|--find-links|--trusted-host)|://", text)
        == []
    )


@pytest.mark.parametrize(
    ("lock", "extras"),
    [("requirements.lock", ()), ("requirements-dev.lock", ("dev", "demo", "otel", "plot", "docs"))],
)
def test_the_locks_fit_what_is_asked_for(lock: str, extras: tuple[str, ...]) -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    asked = [*project["dependencies"]]
    for extra in extras:
        asked += project["optional-dependencies"][extra]
    pinned = pins(ROOT / lock)
    for requirement in map(Requirement, asked):
        versions = pinned.get(canonicalize_name(requirement.name), [])
        assert versions, f"{lock} lacks {requirement.name}: run `make lock`"
        assert all(version in requirement.specifier for version in versions), f"{lock}: {requirement}"


def test_what_is_no_pin_is_found(tmp_path: Path) -> None:
    lock = tmp_path / "some.lock"
    for text in ("a==1\n", "a>=1 \\\n    --hash=sha256:" + "0" * 64 + "\n", "a==1 \\\n    --hash=md5:00\n"):
        lock.write_text(text, encoding="utf-8")
        with pytest.raises(AssertionError):
            pins(lock)
