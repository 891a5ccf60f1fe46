"""How measurements are told: a median with its spread, and percentiles."""

import statistics
from collections.abc import Sequence


def spread(values: Sequence[float]) -> str:
    """Median, least and most."""
    return f"{statistics.median(values):.2f} ({min(values):.2f}–{max(values):.2f})"


def percentile(values: Sequence[float], share: float) -> float:
    """The value that ``share`` of them do not exceed, by nearest rank; 0 of none."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else 0.0
