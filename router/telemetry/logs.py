"""Logs: one line for each turn, and one for each fault. Never content, never a secret.

Two forms: ``console`` for people, ``json`` (one object a line) for machines.
"""

import dataclasses
import logging
import sys
import time
from typing import Any, Final, TextIO

import msgspec

from router.errors import redact
from router.telemetry.facts import (
    DiscoveryFailed,
    EndedBy,
    Fact,
    HandleFact,
    LedgerFailed,
    LegFailed,
    NodeChanged,
    NodesListed,
    PromptMismatch,
    RequestRefused,
    StoreChanged,
    TaskFailed,
    TurnEnded,
    TurnTraced,
    UsageAfterRelease,
)

LOGGER: Final = logging.getLogger("router")

_BENEATH: Final = ("uvicorn.error", "asyncio")
"""Loggers of what the router stands on; their warnings (a port in use) come in the router's own form."""

_MAX_CHARS: Final = 1000
"""Of one field: a model's name is as long as a client wants it to be."""


class FactLog:
    """Turns facts into log records; their fields travel in ``record.fields``."""

    def __call__(self, fact: Fact) -> None:
        level = _level(fact)
        # Of a turn that is traced there is a line already.
        if LOGGER.isEnabledFor(level) and not isinstance(fact, TurnTraced):
            LOGGER.log(level, _headline(fact), extra={"fields": _fields(fact)})


def _level(fact: Fact) -> int:
    # The most frequent first, by far.
    if isinstance(fact, HandleFact):
        return logging.DEBUG
    if isinstance(fact, TurnEnded):
        return logging.WARNING if fact.ended_by is EndedBy.FAULT else logging.INFO
    match fact:
        case LedgerFailed(asked=False):
            return logging.DEBUG  # each turn would say again what the change of the store has said
        case LegFailed() | LedgerFailed() | DiscoveryFailed():
            return logging.WARNING
        case StoreChanged(up=False):
            return logging.WARNING
        case PromptMismatch() | TaskFailed():
            return logging.ERROR
        case UsageAfterRelease():
            return logging.DEBUG
        case _:
            return logging.INFO


def _headline(fact: Fact) -> str:
    match fact:
        case RequestRefused():
            return f"request refused: {fact.status} {fact.code}"
        case TurnEnded():
            return f"turn {fact.plan} ({fact.reason}) {fact.status} ended by {fact.ended_by}"
        case TurnTraced():
            return f"trace {fact.turn.trace_id}"
        case HandleFact():
            return f"handle {fact.outcome}"
        case UsageAfterRelease():
            return f"KV usage of {fact.node} went from {fact.before:.0%} to {fact.after:.0%} with the release"
        case PromptMismatch():
            return (
                f"prefill node {fact.node} read another prompt than was verified; reuse is off for its model"
            )
        case LegFailed():
            return f"{fact.role} leg failed: {fact.action}"
        case LedgerFailed():
            return f"ledger did not {fact.operation}; the turn goes cold"
        case StoreChanged():
            how = "answers again" if fact.up else "does not answer; turns go cold until it does"
            return f"store {fact.server} {how}"
        case NodeChanged():
            return f"{fact.role} node {fact.node} is {fact.state}"
        case NodesListed():
            return f"{fact.source} lists {fact.nodes} nodes"
        case DiscoveryFailed():
            return f"{fact.source} cannot be read; the nodes that it listed last stand"
        case TaskFailed():
            return f"task {fact.task} failed and starts again"


def _fields(fact: Fact) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    for field in dataclasses.fields(fact):
        value = getattr(fact, field.name)
        if value is None or value == "":
            continue
        if isinstance(value, float):
            value = round(value, 6)
        shown[field.name] = _told(value) if isinstance(value, str) else value
    return shown


def _told(text: str) -> str:
    """A text of a caller's or an engine's, of a bounded length and without what may be a secret."""
    # What is looked at is longer than what is kept: a secret must not escape by being cut in half.
    safe = redact(text[: 4 * _MAX_CHARS])
    return safe if len(safe) <= _MAX_CHARS else f"{safe[:_MAX_CHARS]}…"


def _one_line(text: str) -> str:
    """Nothing in it ends the line, moves the cursor, or changes a terminal's colours."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _quoted(value: object) -> str:
    """A value as the console shows it; quoted where it could be taken for a field of its own."""
    text = str(value)
    if any(c in text for c in ' "='):
        text = '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return _one_line(text)


class _Console(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        when = time.strftime("%H:%M:%S", time.localtime(record.created))
        fields = getattr(record, "fields", {})
        tail = "".join(f" {name}={_quoted(value)}" for name, value in fields.items())
        message = _one_line(redact(record.getMessage()))
        line = f"{when}.{record.msecs:03.0f} {record.levelname:<7} {message}{tail}"
        return line if record.exc_info is None else f"{line}\n{redact(self.formatException(record.exc_info))}"


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        document: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{record.msecs:03.0f}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redact(record.getMessage()),
            **getattr(record, "fields", {}),
        }
        if record.exc_info is not None:
            document["exception"] = redact(self.formatException(record.exc_info))
        return msgspec.json.encode(document).decode()


def set_up(form: str, level: str, stream: TextIO | None = None) -> None:
    """Send the router's log to ``stream`` (default: standard error) in ``console`` or ``json`` form."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_Json() if form == "json" else _Console())
    LOGGER.handlers[:] = [handler]
    LOGGER.setLevel(level.upper())
    LOGGER.propagate = False
    for name in _BENEATH:
        beneath = logging.getLogger(name)
        beneath.handlers[:] = [handler]
        beneath.setLevel(max(logging.WARNING, LOGGER.level))
        beneath.propagate = False
