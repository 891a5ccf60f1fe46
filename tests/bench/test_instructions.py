"""The guard of speed finds what has become slower, and nothing else."""

import json
import shutil

import pytest

from bench import instructions
from bench.instructions import BASELINE, NotCounted, counted, grown, main
from bench.loops.cases import AT_MOST, LOOPS

SLOW_LOOPS = "tests.bench.slow_loops:LOOPS"
needs_valgrind = pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")


def test_more_than_the_tolerance_is_told() -> None:
    baseline = {"a": 1_000, "b": 1_000}
    assert grown({"a": 1_050, "b": 900, "new": 5}, baseline) == []
    (told,) = grown({"a": 1_051, "b": 900}, baseline)
    assert told.startswith("a: 1,051 instructions, +5.1%")


def test_growth_is_judged_in_every_environment() -> None:
    slow, fast, most = AT_MOST[0]
    assert grown({slow: int(99 * most), fast: 100}, {}) == []
    (told,) = grown({slow: int(200 * most), fast: 100}, {})
    assert slow in told


@needs_valgrind
def test_a_loop_that_was_made_slower_is_found() -> None:
    counts = counted(["before", "again", "slower"], SLOW_LOOPS)
    baseline = {"digest": counts["before"]}
    assert grown({"digest": counts["again"]}, baseline, tolerance=0.01) == []
    assert len(grown({"digest": counts["slower"]}, baseline)) == 1


@needs_valgrind
def test_a_loop_that_fails_is_told() -> None:
    with pytest.raises(NotCounted, match="KeyError"):
        counted(["never heard of"], SLOW_LOOPS)


def test_without_valgrind_nothing_is_counted_and_nothing_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert main(["digest 8k tokens"], update=False) == 0
    assert "valgrind is not installed" in capsys.readouterr().err


def test_in_another_environment_nothing_is_judged_by_a_baseline(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(instructions, "environment", lambda: "another")
    monkeypatch.setattr(instructions, "counted", lambda names: dict.fromkeys(names, 10**12))
    assert main(["digest 8k tokens"], update=False) == 0
    assert "no baseline for another" in capsys.readouterr().out


def test_in_a_known_environment_growth_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known = next(iter(json.loads(BASELINE.read_text())))
    monkeypatch.setattr(instructions, "environment", lambda: known)
    monkeypatch.setattr(instructions, "counted", lambda names: dict.fromkeys(names, 10**12))
    assert main(["digest 8k tokens"], update=False) == 1
    assert "over its baseline" in capsys.readouterr().out


def test_every_loop_has_a_baseline() -> None:
    for where, counts in json.loads(BASELINE.read_text()).items():
        assert set(counts) == set(LOOPS), where
