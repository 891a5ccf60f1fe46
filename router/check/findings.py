"""What a check comes to: findings, each with a verdict and what to do about it. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    OK = "ok"
    WARNING = "warning"
    """It works, and less well, less safely or less provably than it could."""
    ERROR = "error"
    """Reuse does not work, or answers are wrong."""
    SKIPPED = "skipped"
    """It could not be looked at; ``seen`` says why."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What a rule says: a verdict, what was seen, and what to do (empty where there is nothing to do)."""

    verdict: Verdict
    seen: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """One row of the report."""

    check: str
    subject: str
    """A node's key, ``P -> D`` for a pair, or ``pool``."""
    verdict: Verdict
    seen: str
    advice: str = ""


def ok(seen: str, advice: str = "") -> Judged:
    return Judged(Verdict.OK, seen, advice)


def warning(seen: str, advice: str) -> Judged:
    return Judged(Verdict.WARNING, seen, advice)


def error(seen: str, advice: str) -> Judged:
    return Judged(Verdict.ERROR, seen, advice)


def skipped(why: str) -> Judged:
    return Judged(Verdict.SKIPPED, why)


def finding(check: str, subject: str, judged: Judged) -> Finding:
    return Finding(check, subject, judged.verdict, judged.seen, judged.advice)


def worst(findings: Iterable[Finding]) -> Verdict:
    """The gravest verdict; what was skipped counts as nothing."""
    verdicts = {each.verdict for each in findings}
    return next((each for each in (Verdict.ERROR, Verdict.WARNING) if each in verdicts), Verdict.OK)
