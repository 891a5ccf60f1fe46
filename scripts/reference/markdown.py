"""Pieces of Markdown, and the check that a table of texts is complete."""

from collections.abc import Collection, Iterable, Sequence


class Incomplete(Exception):
    """The code has something that no text describes, or the other way round."""


def page(title: str, *blocks: str) -> str:
    """A page with the note that it is generated."""
    note = "<!-- Generated from the code by `make reference`; a test compares it. Do not edit. -->"
    return "\n\n".join((f"# {title}", note, *blocks)) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [_row(head), _row(["---"] * len(head))]
    lines += [_row([cell.replace("|", "\\|") for cell in row]) for row in rows]
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def code(text: str) -> str:
    return f"`{text}`" if text else ""


def same(what: str, there: Collection[str], described: Collection[str]) -> None:
    """Raises Incomplete unless exactly what is there is described."""
    lacking, stale = sorted(set(there) - set(described)), sorted(set(described) - set(there))
    if lacking:
        raise Incomplete(f"{what}: not described: {', '.join(lacking)}")
    if stale:
        raise Incomplete(f"{what}: described, and not there any more: {', '.join(stale)}")
