"""What the page warns of: settings, nodes, pins, doubts, what the self-test finds, what facts told. Pure."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Final, Protocol

from router.check.findings import Finding, Verdict
from router.check.quick import PairMode
from router.fleet.node import Node, State
from router.page.schemas import Warned

LEVELS: Final = ("error", "warning", "note")
MAX_WARNINGS: Final = 24
NAMED: Final = 3
"""Nodes named one by one in a warning about several."""


class PinsOfNode(Protocol):
    @property
    def node(self) -> str: ...
    @property
    def share(self) -> float | None: ...


def of_mode(verify: str) -> list[Warned]:
    """What the setting ``verify`` itself speaks of."""
    if verify == "lineage":
        return [
            Warned(
                "error",
                "verify=lineage trusts equal messages: answers are known to be wrong where templates strip"
                " reasoning or answers retokenise",
            )
        ]
    if verify == "off":
        return [Warned("warning", "verify=off: nothing is reused")]
    return []


def of_nodes(nodes: Iterable[Node]) -> list[Warned]:
    """Nodes that get no turns, by state, with the reason of each that is named."""
    nodes = tuple(nodes)
    found: list[Warned] = []
    for state, level, told in (
        (State.EJECTED, "error", "down"),
        (State.STARTING, "warning", "not ready yet"),
        (State.DRAINING, "warning", "draining"),
    ):
        of_state = [node for node in nodes if node.state is state]
        for node in of_state[:NAMED]:
            why = f": {node.reason}" if node.reason else ""
            found.append(Warned(level, f"{node.key} is {told}{why}"))
        if len(of_state) > NAMED:
            found.append(Warned(level, f"{len(of_state) - NAMED} more nodes are {told}"))
    return found


def of_pins(pins: Sequence[PinsOfNode], budget: float) -> list[Warned]:
    over = [one for one in pins if one.share is not None and one.share > budget]
    told = [f"{one.node} ({one.share:.0%})" for one in over[:NAMED]]
    more = f" and {len(over) - NAMED} more" if len(over) > NAMED else ""
    if not over:
        return []
    return [
        Warned("warning", f"handles pin more KV than the budget of {budget:.0%} on {', '.join(told)}{more}")
    ]


def of_doubts(
    cooling: Collection[tuple[str, str]], mistrusted: Collection[str], tainted: Collection[str]
) -> list[Warned]:
    """What gets no reuse for now. Models are counted, not named: a client chooses what it calls them."""
    found: list[Warned] = []
    if cooling:
        pairs = [f"{p} > {d}" for p, d in sorted(cooling)[:NAMED]]
        more = f" and {len(cooling) - NAMED} more" if len(cooling) > NAMED else ""
        found.append(Warned("warning", f"a pull failed; no handles for a while for {', '.join(pairs)}{more}"))
    if mistrusted:
        found.append(
            Warned(
                "error", f"{len(mistrusted)} model(s) get no reuse: prompts were read otherwise than verified"
            )
        )
    if tainted:
        found.append(
            Warned(
                "error",
                f"{', '.join(sorted(tainted)[:NAMED])}: the prefix cache may hold wrong KV, and is not used;"
                " restart the engine",
            )
        )
    return found


def of_findings(hints: Iterable[str], findings: Iterable[Finding]) -> list[Warned]:
    """What the quick self-test says; equal findings about several nodes are one."""
    found = [Warned("warning", hint) for hint in hints]
    by_text: dict[tuple[str, str], list[str]] = {}
    for finding in findings:
        level = "error" if finding.verdict is Verdict.ERROR else "warning"
        advice = f"; {finding.advice}" if finding.advice else ""
        by_text.setdefault((level, f"{finding.check}: {finding.seen}{advice}"), []).append(finding.subject)
    for (level, text), subjects in by_text.items():
        more = f" and {len(subjects) - NAMED} more" if len(subjects) > NAMED else ""
        found.append(Warned(level, f"{', '.join(subjects[:NAMED])}{more}: {text}"))
    return found


def of_pairs(pairs: Sequence[PairMode]) -> list[Warned]:
    """Pairs whose handles are not verified by the engines themselves, counted by how else and why."""
    counted = Counter((pair.verify, pair.reason) for pair in pairs if pair.verify in ("router", "off"))
    found = []
    for (verify, reason), count in sorted(counted.items()):
        number = "All pairs are" if count == len(pairs) else f"{count} of {len(pairs)} pairs are"
        if verify == "off":
            found.append(Warned("warning", f"{number} without reuse: {reason}"))
        elif reason.startswith("the "):
            found.append(Warned("note", f"{number} verified by the router, as {reason}"))
    return found


def of_troubles(texts: Iterable[str]) -> list[Warned]:
    return [Warned("warning", text) for text in texts]


def gathered(*parts: Iterable[Warned]) -> list[Warned]:
    """All of them, gravest first, none twice, at most ``MAX_WARNINGS``."""
    seen: dict[str, Warned] = {}
    for part in parts:
        for one in part:
            seen.setdefault(one.text, one)
    return sorted(seen.values(), key=lambda one: LEVELS.index(one.level))[:MAX_WARNINGS]
