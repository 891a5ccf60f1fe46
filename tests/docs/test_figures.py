"""The README's proof is no older than the pages that it cites: its figures stand there."""

import re

from tests.docs.pages import ROOT

_ROW = re.compile(r"^\| \*\*(?P<claim>[^|]+)\*\* \| (?P<text>[^|]+) \|$", re.MULTILINE)
_FIGURE = re.compile(r"(?<![\w.-])\d[\d,.]*\d(?![\w-])")


def missing(claim: str, text: str) -> list[str]:
    """Figures of a row that the page of its link does not have."""
    target = re.search(r"\]\((?P<page>[^)#]+)", text)
    assert target is not None, f"{claim}: no page is cited"
    cited = set(_FIGURE.findall((ROOT / target["page"]).read_text(encoding="utf-8")))
    return sorted(set(_FIGURE.findall(f"{claim} {text}")) - cited)


def test_figures_of_the_readme_stand_in_the_pages_that_it_cites() -> None:
    rows = _ROW.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(rows) == 3
    assert {claim: missing(claim, text) for claim, text in rows} == {claim: [] for claim, _ in rows}


def test_a_figure_that_stands_nowhere_is_found() -> None:
    assert missing("98.76 times", "for 2,117 tokens ([all](docs/results.md#here))") == ["98.76"]
