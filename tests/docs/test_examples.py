"""The examples of the pages do what the pages say."""

import os
import shutil
from pathlib import Path

import pytest

from tests.docs.pages import Example, examples, name_of, pages
from tests.docs.stage import lacking, stage

NODE_MODULES = "BOOMERANG_NODE_MODULES"
"""Names a folder with the npm package ``openai``; where there is none, its page's example is not run."""
RUN = [page for page in pages() if any(examples(page.read_text(encoding="utf-8")))]


def test_the_tutorial_is_among_them() -> None:
    assert {"docs/tutorial.md", "docs/why.md", "docs/agents/openai-python.md"} <= {
        name_of(page) for page in RUN
    }


@pytest.mark.parametrize("page", RUN, ids=name_of)
def test_examples_do_what_the_page_says(page: Path, tmp_path: Path) -> None:
    played = list(examples(page.read_text(encoding="utf-8")))
    needed = ["bash", "curl"]
    if any(example.language == "javascript" for example in played):
        modules = os.environ.get(NODE_MODULES, "")
        if not (Path(modules) / "openai").is_dir():
            pytest.skip(f"{NODE_MODULES} names no folder with the npm package openai")
        shutil.copytree(modules, tmp_path / "node_modules")
        needed.append("node")
    if missing := lacking(*needed):
        pytest.skip(f"not on this machine: {', '.join(missing)}")
    with stage(tmp_path) as on:
        for example in played:
            on.play(example)


def test_an_example_that_does_something_else_is_found(tmp_path: Path) -> None:
    with stage(tmp_path) as on:
        on.play(Example("file", "say.py", "python", "print('one')\nprint('two', 8000)\n"))
        on.play(Example("run", 'shows "two"', "bash", "python say.py"))
        on.play(Example("output", "", "text", "one\n"))
        assert f"two {on.ports['8000']}" in on.said
        with pytest.raises(AssertionError, match="'three' is not said"):
            on.play(Example("output", "", "text", "one\nthree\n"))
        with pytest.raises(AssertionError, match="'one' is not said"):
            on.play(Example("output", "", "text", "one\none\n"))
        with pytest.raises(AssertionError, match="is not in"):
            on.play(Example("run", 'shows "three"', "bash", "python say.py"))
        with pytest.raises(AssertionError):
            on.play(Example("run", "", "bash", "false\ntrue"))
