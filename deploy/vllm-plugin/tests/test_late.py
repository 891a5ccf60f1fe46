"""A class is wrapped when its module is imported by whoever needs it, and not before."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from boomerang_vllm import late

NAMES = ("engine_part", "engine_part.serving", "engine_part.other", "engine_part.broken")


@pytest.fixture(autouse=True)
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package that is there and not yet imported."""
    package = tmp_path / "engine_part"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "serving.py").write_text("class Serving:\n    pass\n")
    (package / "other.py").write_text("")
    (package / "broken.py").write_text("raise ImportError('no such library')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    finders = list(sys.meta_path)
    yield package
    sys.meta_path[:] = finders
    late._watch._expected.clear()
    for name in NAMES:
        sys.modules.pop(name, None)


def test_it_waits_for_the_import() -> None:
    seen: list[type] = []
    assert late.with_class("part", [("engine_part.serving", "Serving")], seen.append)
    assert "engine_part.serving" not in sys.modules
    assert not seen
    module = importlib.import_module("engine_part.serving")
    assert seen == [module.Serving]
    importlib.reload(module)
    assert len(seen) == 1


def test_the_packages_around_it_are_not_imported(engine: Path) -> None:
    inner = engine / "inner"
    inner.mkdir()
    (inner / "__init__.py").write_text("raise ImportError('too early')\n")
    (inner / "deep.py").write_text("")
    assert late.with_class("part", [("engine_part.inner.deep", "A")], print)
    assert "engine_part" not in sys.modules


def test_what_is_already_imported_is_wrapped_at_once() -> None:
    module = importlib.import_module("engine_part.serving")
    seen: list[type] = []
    assert late.with_class("part", [("engine_part.serving", "Serving")], seen.append)
    assert seen == [module.Serving]


def test_the_first_module_that_exists_is_taken() -> None:
    seen: list[type] = []
    candidates = [
        ("nowhere.at_all", "Serving"),
        ("engine_part.none", "A"),
        ("engine_part.serving", "Serving"),
    ]
    assert late.with_class("part", candidates, seen.append)
    importlib.import_module("engine_part.serving")
    assert len(seen) == 1


def test_none_that_exists_is_said(caplog: pytest.LogCaptureFixture) -> None:
    assert not late.with_class("part", [("nowhere.at_all", "A"), ("engine_part.none", "B")], print)
    assert "part is off" in caplog.text
    assert "nowhere.at_all, engine_part.none" in caplog.text


@pytest.mark.parametrize("when", ["now", "later"])
def test_a_module_without_the_class_is_said(when: str, caplog: pytest.LogCaptureFixture) -> None:
    if when == "now":
        importlib.import_module("engine_part.other")
    assert late.with_class("part", [("engine_part.other", "Serving")], print) is (when == "later")
    importlib.import_module("engine_part.other")
    assert "engine_part.other has no class Serving" in caplog.text


def test_an_action_that_fails_does_not_fail_the_import(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: type) -> None:
        raise RuntimeError("a fault of the plugin")

    assert late.with_class("part", [("engine_part.serving", "Serving")], fail)
    assert importlib.import_module("engine_part.serving").Serving
    assert "a fault of the plugin" in caplog.text


def test_a_module_that_fails_fails_as_it_would() -> None:
    seen: list[type] = []
    late.with_class("part", [("engine_part.broken", "Serving")], seen.append)
    with pytest.raises(ImportError, match="no such library"):
        importlib.import_module("engine_part.broken")
    assert not seen


def test_several_wait_for_one_module() -> None:
    seen: list[type] = []
    for _ in range(2):
        late.with_class("part", [("engine_part.serving", "Serving")], seen.append)
    importlib.import_module("engine_part.serving")
    assert len(seen) == 2
