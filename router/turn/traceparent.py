"""W3C Trace Context: the ``traceparent`` header (https://www.w3.org/TR/trace-context/). Pure."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"

_FORM: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED: Final = 0x01
_MAX_CHARS: Final = 512


@dataclass(frozen=True, slots=True)
class TraceParent:
    """A span that others are children of. Ids are lower-case hex, of 32 and 16 digits."""

    trace_id: str
    span_id: str
    is_sampled: bool

    @property
    def header(self) -> str:
        """The header's value."""
        return f"00-{self.trace_id}-{self.span_id}-{_SAMPLED if self.is_sampled else 0:02x}"


def read_traceparent(headers: Iterable[tuple[str, str]]) -> TraceParent | None:
    """The caller's span, by its one ``traceparent``; None where there is none that can be read.

    Header names are lower case. Of a later version than ours the parts that we know are read.
    """
    given = [value for name, value in headers if name == TRACEPARENT]
    if len(given) != 1 or len(given[0]) > _MAX_CHARS:
        return None
    match = _FORM.fullmatch(given[0].strip())
    if match is None:
        return None
    version, trace_id, span_id, flags, more = match.groups()
    if version == "ff" or (version == "00" and more) or not int(trace_id, 16) or not int(span_id, 16):
        return None
    return TraceParent(trace_id, span_id, bool(int(flags, 16) & _SAMPLED))


def is_sampled_at(trace_id: str, ratio: float) -> bool:
    """Whether a trace that begins here is recorded, as OpenTelemetry's ``TraceIdRatioBased`` decides it.

    By the low 64 bits of its id: all that see the same id decide alike.
    """
    return int(trace_id[16:], 16) < round(ratio * (1 << 64))
