"""The tests that ``docs/field-cases.md`` names are there."""

import re

from tests.docs.pages import ROOT

_NAMED = re.compile(r"`(?P<file>(?:tests/)?[\w/]+\.py)(?:::(?P<test>\w+))?`")


def missing(page: str) -> list[str]:
    """The tests that a page names and that are not there; a file without a folder is in ``tests/e2e``."""
    found = []
    for named in _NAMED.finditer(page):
        file = ROOT / named["file"] if "/" in named["file"] else ROOT / "tests/e2e" / named["file"]
        if not file.is_file() or (named["test"] and f"def {named['test']}(" not in file.read_text("utf-8")):
            found.append(named[0])
    return found


def test_each_test_that_is_named_is_there() -> None:
    page = (ROOT / "docs/field-cases.md").read_text("utf-8")
    assert len(_NAMED.findall(page)) > 30
    assert not missing(page)


def test_a_test_that_is_not_there_is_found() -> None:
    assert missing("`test_http_faults.py::test_nothing` `tests/turn/test_gone.py` `test_http_faults.py`") == [
        "`test_http_faults.py::test_nothing`",
        "`tests/turn/test_gone.py`",
    ]
