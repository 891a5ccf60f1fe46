"""The site builds without a warning, and its pages load nothing from elsewhere."""

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.site import stage
from tests.docs.pages import ROOT

LOADED = re.compile(r"""<(?:script|img|link|iframe|source)\b[^>]*?\b(?:src|href)=["']?(?:https?:)?//""")


@pytest.mark.skipif(importlib.util.find_spec("zensical") is None, reason="the extra docs is not installed")
def test_the_site_builds_and_needs_no_network(tmp_path: Path) -> None:
    shutil.copyfile(ROOT / "zensical.toml", tmp_path / "zensical.toml")
    stage(tmp_path / "build" / "docs")
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--clean", "--strict"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    pages = list((tmp_path / "build" / "site").rglob("*.html"))
    assert len(pages) > 30
    assert [page.name for page in pages if LOADED.search(page.read_text(encoding="utf-8"))] == []
