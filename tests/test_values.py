"""Values are dataclasses like any other, but for what freezing costs when they are made."""

import subprocess
import sys
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from router.values import value


@value
class _Point:
    x: int
    y: int = 2
    note: str = field(default="", compare=False)


@value(kw_only=True)
class _Named:
    x: int


@dataclass(frozen=True, slots=True)
class _Frozen:
    x: int
    y: int = 2
    note: str = field(default="", compare=False)


def test_a_value_is_a_dataclass_with_slots() -> None:
    point = _Point(1)
    assert (point.x, point.y) == (1, 2)
    assert point == _Point(1, 2, "other")
    assert hash(point) == hash(_Frozen(1)) == hash(_Point(1))
    assert replace(point, x=3) == _Point(3)
    assert [one.name for one in fields(point)] == ["x", "y", "note"]
    assert not hasattr(point, "__dict__")
    assert repr(_Named(x=1)) == "_Named(x=1)"


def test_the_type_checker_holds_it_frozen(tmp_path: Path) -> None:
    source = tmp_path / "changes.py"
    source.write_text(
        "from router.values import value\n"
        "@value\nclass Point:\n    x: int\n"
        "@value(kw_only=True)\nclass Named:\n    x: int\n"
        "point, named = Point(1), Named(x=1)\n"
        "point.x = 2\nnamed.x = 2\nNamed(1)\nPoint('a')\n"
    )
    command = [sys.executable, "-m", "mypy", "--config-file=", "--cache-dir", str(tmp_path), str(source)]
    told = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    assert '"x" defined in "Point" is read-only' in told
    assert '"x" defined in "Named" is read-only' in told
    assert "Too many positional arguments" in told
    assert 'incompatible type "str"' in told
    assert "Found 4 errors" in told
