"""Reads a few families out of a Prometheus text exposition.

An engine's ``/metrics`` is large (vLLM: some 300 KB of histograms) and little of it is wanted, so lines are
searched by name and only those are parsed. Whatever cannot be read is passed over: an engine of another
version may say anything here. Format: prometheus.io/docs/instrumenting/exposition_formats.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

_LABEL = re.compile(rb'[ \t,]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"([^"\\]*(?:\\.[^"\\]*)*)"')
_LABELS_END = re.compile(rb"[ \t,]*\}")
_VALUE = re.compile(rb"[ \t]+([+-]?(?:Inf|NaN|[0-9.]+(?:[eE][+-]?[0-9]+)?))(?=[ \t\r]|$)")
_ESCAPED = re.compile(r'\\([\\n"])')
_MAX_LINE_BYTES = 16_384


@dataclass(frozen=True, slots=True)
class Sample:
    name: str
    labels: Mapping[str, str]
    value: float


def samples(text: bytes, names: Iterable[str]) -> Iterator[Sample]:
    """The samples with exactly these names, in the order of ``names``. Never raises, whatever ``text`` is."""
    for name in names:
        key = name.encode()
        at = 0 if text.startswith(key) else text.find(b"\n" + key) + 1
        while at > 0 or text.startswith(key, at):
            end = text.find(b"\n", at)
            line = text[at : end if end >= 0 else len(text)]
            sample = _sample(name, line, len(key)) if len(line) <= _MAX_LINE_BYTES else None
            if sample is not None:
                yield sample
            if end < 0:
                break
            at = text.find(b"\n" + key, end) + 1
            if at == 0:
                break


def _sample(name: str, line: bytes, at: int) -> Sample | None:
    """One line, whose name ends at ``at``; None where it is another, longer name, or is malformed."""
    labels: dict[str, str] = {}
    if line[at : at + 1] == b"{":
        at += 1
        while label := _LABEL.match(line, at):
            labels[label[1].decode()] = _unescaped(label[2].decode("utf-8", "replace"))
            at = label.end()
        closed = _LABELS_END.match(line, at)
        if closed is None:
            return None
        at = closed.end()
        if line[at : at + 1] not in (b" ", b"\t"):
            # The blank before the value may be missing after labels.
            line, at = b" " + line[at:], 0
    value = _VALUE.match(line, at)
    if value is None:
        return None
    try:
        return Sample(name, labels, float(value[1]))
    except ValueError:
        return None


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    return _ESCAPED.sub(lambda found: "\n" if found[1] == "n" else found[1], text)
