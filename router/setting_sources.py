"""Reads settings from flags, environment and file, and tells a wrong one in one line."""

import difflib
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import EnvSettingsSource

from router.settings import ENVIRONMENT_PREFIX, Settings, spelled, variable_name

CONFIG_VARIABLE = "BOOMERANG_CONFIG"
WORKERS_VARIABLE = "WEB_CONCURRENCY"
NOT_SETTINGS = frozenset(
    {
        CONFIG_VARIABLE,
        "BOOMERANG_CHROMIUM",
        "BOOMERANG_CONVERSATIONS",
        "BOOMERANG_ENGINE_HOME",
        "BOOMERANG_ENGINE_PIP_ARGS",
        "BOOMERANG_NIXL_VERSION",
        "BOOMERANG_NODE_MODULES",
        "BOOMERANG_REDIS_SERVER",
        "BOOMERANG_REPORT_DIR",
        "BOOMERANG_REPORT_FACTS",
        "BOOMERANG_SEED",
        "BOOMERANG_TEST_PREFIX_CACHE",
        "BOOMERANG_TURNS",
        "BOOMERANG_VLLM_VERSION",
    }
)
"""Variables with our prefix that are read by scripts and tests of this repository."""

# Kubernetes gives every container variables named after the Services of its namespace. A Service named
# "boomerang" or "boomerang-…" makes them look like settings (kubernetes.io, "Discovering services").
_SERVICE_LINK = re.compile(r".*_SERVICE_(HOST|PORT(_.+)?)|.*_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?")
_SERVICE_LINK_VALUE = re.compile(r"(tcp|udp|sctp)://")


_SECRET = frozenset({"engine_api_key_file", "store_password_file", "admin_token", "admin_token_file"})
"""Whose value is never shown: secrets, and paths in whose place a secret may have been given."""


class SettingsError(Exception):
    """A wrong setting: one line that names it in all its spellings, and holds no secret."""


def load(flags: Mapping[str, object], *, config: str | None = None) -> Settings:
    """The settings from flags, environment and file; raises SettingsError.

    ``flags`` holds only what was given on the command line. ``config`` is the file's path; without it,
    ``BOOMERANG_CONFIG`` names the file.
    """
    path = config or os.environ.get(CONFIG_VARIABLE)
    merged = {**(_from_file(path) if path else {}), **_from_environment(), **flags}
    # Platforms and servers of ASGI applications have this name for it; ours come first.
    if os.environ.get(WORKERS_VARIABLE) and "workers" not in merged:
        merged["workers"] = os.environ[WORKERS_VARIABLE]
    try:
        return Settings(**merged)
    except ValidationError as error:
        lines = (_line(detail, merged) for detail in error.errors(include_url=False, include_context=False))
        raise SettingsError("; ".join(lines)) from None


def _from_environment() -> dict[str, Any]:
    known = {variable_name(name) for name in Settings.model_fields} | NOT_SETTINGS
    for variable, value in os.environ.items():
        name = variable.upper()
        if not name.startswith(ENVIRONMENT_PREFIX) or name in known or _is_service_link(name, value):
            continue
        raise SettingsError(f"{variable}: there is no such setting{_did_you_mean(name, known)}")
    found = EnvSettingsSource(Settings)()
    return {
        name: value for name, value in found.items() if not _is_service_link(variable_name(name), str(value))
    }


def _is_service_link(variable: str, value: str) -> bool:
    if _SERVICE_LINK.fullmatch(variable):
        return True
    return variable.endswith("_PORT") and _SERVICE_LINK_VALUE.match(value) is not None


def _from_file(path: str) -> dict[str, Any]:
    spelled = f"--config / {CONFIG_VARIABLE}"
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{spelled}: {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{spelled}: {path} is not UTF-8 text") from None
    except yaml.YAMLError as error:
        # Not the error's own text: it quotes the line, and the line may hold a secret.
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        raise SettingsError(f"{spelled}: {path} is not valid YAML{where}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise SettingsError(f"{spelled}: {path} has to be a mapping of settings to values")
    for key in content:
        if key not in Settings.model_fields:
            raise SettingsError(
                f"{key} in {path}: there is no such setting{_did_you_mean(str(key), Settings.model_fields)}"
            )
    return content


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name.replace("-", "_"), list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _line(detail: ErrorDetails, given: Mapping[str, object]) -> str:
    """One validation error as one line: the setting's three spellings, what is wrong, and the value."""
    message = detail["msg"].removeprefix("Value error, ")
    if detail["loc"]:
        name, shown = str(detail["loc"][0]), f" (got {_shown(detail['input'])})"
    else:
        # A check across settings names its setting itself; the whole of the settings is no value to show.
        name, _, message = message.partition(": ")
        shown = ""
    spellings = spelled(name)
    if detail["type"] == "missing":
        return f"{spellings}: is required"
    # Not shown: what may hold a password or a token, and a key that was given in place of its file's path.
    if name in _SECRET or set("@?#") & set(str(given.get(name))):
        shown = ""
    return f"{spellings}: {message}{shown}"


def _shown(value: object) -> str:
    text = " ".join((value if isinstance(value, str) else repr(value)).split()) or "nothing"
    return text if len(text) <= 80 else text[:79] + "…"
