"""Findings as text for people, and as JSON for machines. Pure."""

import textwrap
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import Final

import msgspec

from router import __version__
from router.check.findings import Finding, Verdict, worst
from router.check.observed import Assumed

SCHEMA: Final = 1
"""Version of the JSON. New members may come under the same number; none goes or changes its meaning."""

_MARKS: Final = {
    Verdict.OK: "ok",
    Verdict.WARNING: "warning",
    Verdict.ERROR: "ERROR",
    Verdict.SKIPPED: "skipped",
}


def text(findings: Sequence[Finding], *, width: int = 100) -> str:
    """An aligned table, one part for each subject; what to do stands below what was seen."""
    name_width = max((len(each.check) for each in findings), default=0)
    mark_width = max(map(len, _MARKS.values()))
    indent = " " * (name_width + mark_width + 6)
    lines: list[str] = []
    for subject, rows in groupby(findings, key=lambda each: each.subject):
        lines += ["", subject] if lines else [subject]
        for row in rows:
            head = f"  {row.check:<{name_width}}  {_MARKS[row.verdict]:<{mark_width}}  "
            lines += _wrapped(row.seen or "-", head, indent, width)
            if row.advice:
                lines += _wrapped(row.advice, f"{indent}-> ", f"{indent}   ", width)
    return "\n".join([*lines, "", summary(findings), ""])


def summary(findings: Sequence[Finding]) -> str:
    """One line: how many of what."""
    counted = Counter(each.verdict for each in findings)
    told = [f"{counted[verdict]} {verdict}" for verdict in Verdict if counted[verdict]]
    return ", ".join(told) or "nothing was checked"


def as_json(findings: Sequence[Finding], assumed: Assumed) -> bytes:
    """The findings for machines; ``docs/check.md`` describes the members."""
    counted = Counter(each.verdict for each in findings)
    document = {
        "schema": SCHEMA,
        "version": __version__,
        "verdict": worst(findings).value,
        "counts": {verdict.value: counted[verdict] for verdict in Verdict},
        "assumed": {"ttl_s": assumed.ttl_s, "ttl_is_set": assumed.ttl_is_set, "lease_s": assumed.lease_s},
        "findings": [
            {
                "check": each.check,
                "subject": each.subject,
                "verdict": each.verdict.value,
                "seen": each.seen,
                "advice": each.advice,
            }
            for each in findings
        ],
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def _wrapped(told: str, head: str, indent: str, width: int) -> list[str]:
    # What is copied into a shell, such as a flag with JSON, has to stay in one piece.
    return textwrap.wrap(
        told,
        max(width, len(indent) + 40),
        initial_indent=head,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
