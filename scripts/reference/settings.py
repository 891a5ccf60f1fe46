"""The page of settings, from the fields of ``Settings`` and the comments that group them."""

import inspect
import re
from collections.abc import Iterator
from typing import Any, get_args

from pydantic import ByteSize, SecretStr
from pydantic.fields import FieldInfo

from router.settings import ENVIRONMENT_PREFIX, Settings, flag_name
from scripts.reference.markdown import Incomplete, code, page, table

_GROUP = re.compile(r"    # (\w[\w -]*)")
_FIELD = re.compile(r"    (\w+): ")
INTRO = f"""\
What `boomerang serve` takes. Each setting has three spellings, which follow from its name: `pull_timeout_s` is the flag
`--pull-timeout-s`, the environment variable `{ENVIRONMENT_PREFIX}PULL_TIMEOUT_S`, and the key `pull_timeout_s` of the YAML
file that `--config` or `{ENVIRONMENT_PREFIX}CONFIG` names. A flag wins over the environment, that over the file, that over
the default. Lists are repeated flags, or separated by commas. A setting that is switched on or off has a second flag,
`--no-…`. `none` takes an optional limit away. A wrong setting, and a `{ENVIRONMENT_PREFIX}…` variable or key that is not
one, ends the command with exit code 2 and one line that says what is wrong.

Names tell units: `_s` seconds, `_bytes` bytes (`64MiB` may be written), `_tokens` tokens. How to choose the ones that
matter most: [tuning](../tuning.md)."""


def settings_page() -> str:
    """Every setting, in the groups of the source."""
    blocks = [INTRO]
    for group, names in groups().items():
        rows = (_row(name, Settings.model_fields[name]) for name in names)
        blocks += [f"## {group}", table(("setting", "default", "takes", "for"), rows)]
    return page("Settings", *blocks)


def groups() -> dict[str, list[str]]:
    """Headline → names of settings, in order. Raises Incomplete where a setting has no headline."""
    found: dict[str, list[str]] = {}
    headline = ""
    for line in inspect.getsource(Settings).splitlines():
        if (group := _GROUP.fullmatch(line)) is not None:
            headline = group[1]
        elif (field := _FIELD.match(line)) is not None and field[1] in Settings.model_fields:
            if not headline:
                raise Incomplete(f"settings: {field[1]} stands in no group of router/settings.py")
            found.setdefault(headline, []).append(field[1])
    listed = {name for names in found.values() for name in names}
    if listed != set(Settings.model_fields):
        raise Incomplete(f"settings: not found: {sorted(set(Settings.model_fields) - listed)}")
    return found


def _row(name: str, field: FieldInfo) -> tuple[str, str, str, str]:
    return code(flag_name(name)), _default(field.default), _takes(name, field), str(field.description)


def _default(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if value in (None, "", ()):
        return "–"
    if isinstance(value, ByteSize):
        return value.human_readable().replace(".0", "")
    return code(f"{value:g}" if isinstance(value, float) else str(value))


def _takes(name: str, field: FieldInfo) -> str:
    """What may be given, in a few words."""
    kinds = set(_kinds(field.annotation))
    optional = ", or `none`" if type(None) in kinds and kinds & {int, float} else ""
    if field.annotation is bool:
        return "on, off"
    choices = [kind for kind in kinds if isinstance(kind, str)]
    if choices:
        return ", ".join(code(choice) for choice in get_args(field.annotation))
    if ByteSize in kinds:
        return "bytes"
    if kinds & {int, float}:
        return _numbers(field, whole=int in kinds) + optional
    if SecretStr in kinds:
        return "a secret"
    if "file" in name.split("_"):
        return "a file's path"
    return "addresses" if name in ("prefill", "decode") else "text"


def _kinds(annotation: Any) -> Iterator[Any]:
    """Types and literals in an annotation."""
    parts = get_args(annotation)
    if not parts:
        yield annotation
    for part in parts:
        yield from _kinds(part)


def _numbers(field: FieldInfo, *, whole: bool) -> str:
    bounds: dict[str, float] = {}
    for rule in (*field.metadata, *_nested(field.annotation)):
        bounds |= {key: getattr(rule, key) for key in ("gt", "ge", "lt", "le") if hasattr(rule, key)}
    low = f"more than {bounds['gt']:,g}" if "gt" in bounds else f"{bounds.get('ge', 0):,g}"
    if whole and "gt" in bounds:
        low = f"{int(bounds['gt']) + 1:,}"
    return f"{low} to {_number(bounds['le'])}" if "le" in bounds else f"{low} or more"


def _number(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:g}"


def _nested(annotation: Any) -> Iterator[Any]:
    """Rules within an annotation, as in ``Annotated[float, Field(gt=0)] | None``."""
    for rule in getattr(annotation, "__metadata__", ()):
        yield from getattr(rule, "metadata", (rule,))
    for part in get_args(annotation):
        yield from _nested(part)
