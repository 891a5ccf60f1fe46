import importlib.util
import json
from pathlib import Path

import pytest

from router.bench.comparison import rows
from router.bench.plot import NoPlot, draw
from router.bench.published import models
from router.cli import main
from tests.bench.test_comparison import PLAYED


@pytest.mark.parametrize("wrong", [["--conversations", "0"], ["--prompt-tokens", "900"]])
def test_wrong_usage_is_told_before_anything_starts(
    wrong: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "figures", *wrong]) == 2
    assert "at least one conversation" in capsys.readouterr().err


def test_a_plot_without_matplotlib_is_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["bench", "figures", "--plot", str(tmp_path / "plot.png")]) == 1
    assert "pip install 'boomerang-router[plot]'" in capsys.readouterr().err


def test_a_plot_of_every_model(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    played = [(model, rows(model, PLAYED)) for model in models()]
    draw(played, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(NoPlot, match="cannot write"):
        draw(played, tmp_path / "plot.nonsense")


def test_a_short_run_from_the_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """One conversation of five requests on each side, in real time, and the calibration before it."""
    target = tmp_path / "figures.json"
    options = ["--model", "Qwen3-32B", "--conversations", "1", "--prompt-tokens", "2000", "--stock"]
    assert main(["bench", "figures", *options, "--json", str(target)]) == 0
    (model,) = json.loads(target.read_text())["models"]
    (row,) = model["rows"]
    # A simulated engine is never faster than its profile: 133 to 183 ms, less the chain's own time.
    own = model["calibration"]["own"]
    assert own["fixed_ms"] > 0
    assert own["per_token_ms"] == 0, "of one length"
    assert row["off_ms"] > 157 - own["fixed_ms"]
    assert row["reused_share"] > 0.9
    out = capsys.readouterr().out
    assert "Qwen3-32B, calibrated on turns without transfer" in out
    assert "Wrong KV used by any engine: 0." in out
