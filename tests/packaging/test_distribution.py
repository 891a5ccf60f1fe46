"""Wheel and source distribution, as they are built: what is in them, and that the wheel runs by itself."""

import os
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

from router import __version__

ROOT = Path(__file__).parent.parent.parent
DIST_INFO = f"boomerang_router-{__version__}.dist-info"
LEFT_OUT = {"__pycache__"}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both, built by the backend itself: no isolation, and so no network."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--target", "wheel"]
    subprocess.run([*command, "--directory", folder], cwd=ROOT, check=True, capture_output=True, timeout=120)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> zipfile.ZipFile:
    return zipfile.ZipFile(built / f"boomerang_router-{__version__}-py3-none-any.whl")


def _metadata(wheel: zipfile.ZipFile) -> Message:
    return Parser().parsestr(wheel.read(f"{DIST_INFO}/METADATA").decode())


def test_the_wheel_holds_the_package_whole_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    there = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "router").rglob("*")
        if path.is_file() and LEFT_OUT.isdisjoint(path.parts)
    }
    packed = {name for name in wheel.namelist() if not name.startswith(f"{DIST_INFO}/")}
    assert packed == there
    assert {"router/py.typed", "router/page/static/index.html", "router/ledger/lua/take.lua"} <= packed


def test_its_metadata(wheel: zipfile.ZipFile) -> None:
    told = _metadata(wheel)
    assert (told["Name"], told["Version"]) == ("boomerang-router", __version__)
    assert (told["License-Expression"], told["License-File"]) == ("Apache-2.0", "LICENSE")
    assert told["Requires-Python"] == ">=3.11"
    assert "Typing :: Typed" in told.get_all("Classifier", [])
    assert {"demo", "otel", "plot", "docs"} <= set(told.get_all("Provides-Extra", []))
    assert told["Description-Content-Type"] == "text/markdown"
    assert wheel.read(f"{DIST_INFO}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
    assert "boomerang = router.cli:main" in wheel.read(f"{DIST_INFO}/entry_points.txt").decode()


def test_no_dependency_comes_from_an_address(wheel: zipfile.ZipFile) -> None:
    assert [name for name in _metadata(wheel).get_all("Requires-Dist", []) if "@" in name] == []


def test_the_source_distribution_holds_what_tests_documents_and_deploys_it(built: Path) -> None:
    with tarfile.open(built / f"boomerang_router-{__version__}.tar.gz") as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    assert {
        "router/py.typed",
        "tests/conftest.py",
        "docs/tutorial.md",
        "scripts/site.py",
        "Makefile",
    } <= names
    assert {
        "requirements.lock",
        "CHANGELOG.md",
        "deploy/vllm-plugin/pyproject.toml",
        "zensical.toml",
    } <= names
    assert [name for name in names if name.endswith(".pyc") or name.startswith((".ci/", "build/"))] == []


def test_the_wheel_installs_and_runs_by_itself(built: Path, tmp_path: Path) -> None:
    target = tmp_path / "installed"
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        "--target",
        str(target),
    ]
    subprocess.run([*install, *map(str, built.glob("*.whl"))], check=True, capture_output=True, timeout=120)
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(target)}
    for command in ([str(target / "bin" / "boomerang")], [sys.executable, "-m", "router"]):
        done = subprocess.run(
            [*command, "version"],
            cwd=tmp_path,
            env=environment,
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.stdout.startswith(f"boomerang {__version__} ")
    where = "import router, router.page, pathlib; print(pathlib.Path(router.__file__).parent)"
    done = subprocess.run(
        [sys.executable, "-c", where],
        cwd=tmp_path,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert Path(done.stdout.strip()) == target / "router"
