"""The plot of ``boomerang bench figures``: replayed lines, and the published points beside them."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from router.bench.comparison import Row
from router.bench.published import Model

# Two of Okabe and Ito's colours, which people of any colour vision can tell apart.
# Line styles and markers differ, too.
_OFF: Final = "#D55E00"
_ON: Final = "#0072B2"


class NoPlot(Exception):
    """The plot cannot be made; the text says what is missing."""


def check() -> None:
    """Raises NoPlot where matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise NoPlot("--plot needs matplotlib: pip install 'boomerang-router[plot]'")


def draw(played: Sequence[tuple[Model, Sequence[Row]]], target: Path) -> None:
    """Write the plot, in the format of the file's suffix. Raises NoPlot."""
    check()
    from matplotlib.figure import Figure
    from matplotlib.ticker import MultipleLocator

    figure = Figure(figsize=(5.0 * len(played), 4.2), layout="constrained")
    axes = figure.subplots(1, len(played), squeeze=False)[0]
    for panel, (model, compared) in zip(axes, played, strict=True):
        _panel(panel, model, compared)
        panel.xaxis.set_major_locator(MultipleLocator(4))
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    try:
        figure.savefig(target, dpi=110)
    except (OSError, ValueError) as error:
        raise NoPlot(f"cannot write {target}: {error}") from None


def _panel(panel: Any, model: Model, compared: Sequence[Row]) -> None:
    x = [row.prompt_tokens / 1_000 for row in compared]
    panel.plot(x, [row.off_ms for row in compared], "-", color=_OFF, linewidth=2, label="off, replayed")
    panel.plot(x, [row.on_ms for row in compared], "-", color=_ON, linewidth=2, label="on, predicted")
    panel.plot(
        x,
        [row.on_reusing_ms for row in compared],
        ":",
        color=_ON,
        linewidth=2,
        label="on, reusing turns only",
    )
    for marker, colour, label, values in (
        ("s", _OFF, "off, published", [row.off_published_ms for row in compared]),
        ("o", _ON, "on, published", [row.on_published_ms for row in compared]),
    ):
        known = [(at, value) for at, value in zip(x, values, strict=True) if value is not None]
        panel.plot(
            [at for at, _ in known], [value for _, value in known], marker,
            markersize=9, markerfacecolor="white", markeredgecolor=colour, markeredgewidth=2, label=label,
        )  # fmt: skip
    panel.set_title(model.name, fontsize=11, fontweight="bold")
    panel.set_xlabel("prompt, thousand tokens")
    panel.set_ylabel("time to first token, ms")
    panel.set_xlim(left=0)
    panel.set_ylim(bottom=0)
    panel.grid(color="#dddddd", linewidth=0.8)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
