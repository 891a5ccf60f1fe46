"""Every setting, declared once; the only reader of flags, environment and configuration file.

A setting's field below gives its default, its bounds and its help text. Its three spellings follow from
the field's name: ``pull_timeout_s`` is the flag ``--pull-timeout-s``, the variable
``BOOMERANG_PULL_TIMEOUT_S`` and the key ``pull_timeout_s`` of the YAML file. A flag wins over the
environment, that over the file, that over the default. ``Settings(...)`` itself reads nothing but its
arguments; ``load`` reads all three sources.
"""

import difflib
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

import yaml
from pydantic import (
    AfterValidator,
    BeforeValidator,
    ByteSize,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from router.engines.headers import is_token
from router.origin import parse_origin

ENVIRONMENT_PREFIX = "BOOMERANG_"
CONFIG_VARIABLE = "BOOMERANG_CONFIG"
NOT_SETTINGS = frozenset(
    {
        CONFIG_VARIABLE,
        "BOOMERANG_ENGINE_HOME",
        "BOOMERANG_ENGINE_PIP_ARGS",
        "BOOMERANG_NIXL_VERSION",
        "BOOMERANG_REPORT_DIR",
        "BOOMERANG_TURNS",
        "BOOMERANG_VLLM_VERSION",
    }
)
"""Variables with our prefix that are read by scripts and tests of this repository."""

# Kubernetes gives every container variables named after the Services of its namespace. A Service named
# "boomerang" or "boomerang-…" makes them look like settings (kubernetes.io, "Discovering services").
_SERVICE_LINK = re.compile(r".*_SERVICE_(HOST|PORT(_.+)?)|.*_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?")
_SERVICE_LINK_VALUE = re.compile(r"(tcp|udp|sctp)://")


class SettingsError(Exception):
    """A wrong setting: one line that names it in all its spellings, and holds no secret."""


def flag_name(name: str) -> str:
    return "--" + name.replace("_", "-")


def variable_name(name: str) -> str:
    return ENVIRONMENT_PREFIX + name.upper()


def _split(value: object) -> object:
    """A list as environment and flags write it: separated by commas. Flags may also repeat."""
    parts = [value] if isinstance(value, str) else value
    if not isinstance(parts, list | tuple):
        return value
    split = [piece.strip() for part in parts if isinstance(part, str) for piece in part.split(",")]
    return [piece for piece in split if piece] + [part for part in parts if not isinstance(part, str)]


def _no_duplicates(origins: tuple[str, ...]) -> tuple[str, ...]:
    twice = sorted({origin for origin in origins if origins.count(origin) > 1})
    if twice:
        raise ValueError(f"{', '.join(twice)} is listed more than once")
    return origins


def _store(text: str) -> str:
    if re.match(r"(redis|rediss|valkey)", text):
        raise ValueError("this build has no Redis ledger yet; only 'memory' is accepted")
    if text != "memory":
        raise ValueError("only 'memory' is accepted")
    return text


def _header(text: str) -> str:
    if text and not is_token(text):
        raise ValueError("not a valid header name")
    return text.lower()


def _key_in(path: Path) -> str:
    """Raises OSError and ValueError; no text of theirs holds what is in the file."""
    try:
        key = path.read_text(encoding="ascii").strip()
    except UnicodeDecodeError:
        raise ValueError("the file cannot be read: not plain text") from None
    if not key or len(key.split()) > 1:
        raise ValueError("the file has to hold one key and nothing else")
    return key


def _readable(path: Path) -> Path:
    try:
        _key_in(path)
    except OSError as error:
        raise ValueError(f"the file cannot be read: {error.strerror}") from None
    return path


Origins = Annotated[
    tuple[Annotated[str, AfterValidator(parse_origin)], ...],
    NoDecode,
    BeforeValidator(_split),
    AfterValidator(_no_duplicates),
    Field(min_length=1),
]
Seconds = Annotated[float, Field(gt=0, le=604_800, allow_inf_nan=False)]
Bytes = Annotated[ByteSize, Field(gt=0, le=1 << 40)]


class Settings(BaseSettings):
    """The router's settings, checked. Raises pydantic's ``ValidationError``; ``load`` makes that one line."""

    model_config = SettingsConfigDict(
        env_prefix=ENVIRONMENT_PREFIX,
        env_ignore_empty=True,
        extra="forbid",
        frozen=True,
        validate_default=True,
    )

    # Pools
    prefill: Origins = Field(description="Origins of the prefill nodes, as http://HOST:PORT; repeatable")
    decode: Origins = Field(description="Origins of the decode nodes, as http://HOST:PORT; repeatable")
    engine_api_key_file: Annotated[Path, AfterValidator(_readable)] | None = Field(
        None, description="File with the key sent to engines where the caller sends none"
    )
    rewrite_remote_host: bool = Field(
        default=False,
        description="Replace a loopback side channel address in engines' parameters by the engine's own host",
    )
    probe_interval_s: Seconds = Field(5.0, description="Time between two probes of a node")

    # Front
    host: str = Field("127.0.0.1", min_length=1, description="Address to listen on")
    port: int = Field(8000, ge=0, le=65_535, description="Port to listen on; 0 takes any free one")
    max_body_bytes: Bytes = Field(ByteSize(64 << 20), description="Largest request body taken")
    keepalive_s: Seconds = Field(75.0, description="How long an idle client connection is kept")
    drain_s: Seconds = Field(120.0, description="How long open turns may go on after a stop signal")
    identity_header: Annotated[str, AfterValidator(_header)] = Field(
        "",
        description="Header by which a trusted gateway names the tenant; empty: the caller's credential does",
    )
    expose_params: bool = Field(default=False, description="Show the engines' kv_transfer_params to clients")
    explain_headers: bool = Field(
        default=True, description="Add x-boomerang-… headers that tell a turn's plan and reason"
    )

    # Memory
    store: Annotated[str, AfterValidator(_store)] = Field(
        "memory", description="Where branches, traces and handles wait between turns: memory"
    )
    max_branches: int = Field(100_000, gt=0, le=100_000_000, description="Most branches remembered")
    max_ledger_bytes: Bytes = Field(ByteSize(256 << 20), description="Most memory that the ledger may take")
    trace_ttl_s: Seconds = Field(3600.0, description="How long a branch is remembered after its last turn")

    # Reuse
    verify: Literal["auto", "engine", "router", "lineage", "off"] = Field(
        "auto",
        description="How a handle is compared with the prompt; auto: by engines that can, else by the router",
    )
    answer_tokens: bool = Field(
        default=True,
        description="In router mode, ask decode nodes for the answer's token ids, so answers are reused too",
    )
    decode_ttl_s: Seconds = Field(
        480.0, description="How long decode nodes keep a finished turn (their decoder_kv_blocks_ttl)"
    )
    deadline_margin_s: Seconds = Field(
        15.0, description="How much earlier than the decode node a handle is given up"
    )
    prefill_lease_s: Seconds = Field(
        30.0, description="How long prefill nodes keep a prompt for the decode leg (their kv_lease_duration)"
    )
    reuse_threshold_tokens: int = Field(
        64,
        gt=0,
        le=10_000_000,
        description="Fewest tokens worth a pull (the engines' kv_recompute_threshold)",
    )
    take_share: float = Field(
        0.5,
        gt=0,
        le=1,
        allow_inf_nan=False,
        description="Share of a handle that a fork has to gain to take it from its main line",
    )

    # Time-outs
    connect_timeout_s: Seconds = Field(2.0, description="Limit on connecting to an engine")
    prefill_timeout_s: Seconds | None = Field(600.0, description="Limit on a prefill leg")
    pull_timeout_s: Seconds = Field(
        20.0, description="Limit on a prefill leg that carries a handle; then it goes cold"
    )
    first_token_timeout_s: Seconds | None = Field(
        None, description="Limit on a streamed decode leg's first token"
    )
    idle_timeout_s: Seconds | None = Field(300.0, description="Longest gap within a streamed answer")
    decode_timeout_s: Seconds | None = Field(None, description="Limit on a decode leg that is not streamed")
    engine_keepalive_s: Seconds = Field(
        4.0, description="How long an idle connection to an engine is kept; below the engines' own 5 s"
    )

    # Logs
    log_format: Literal["console", "json"] = Field("console", description="Form of the log")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least level logged")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """``load`` merges the sources, as it has to know the variables and keys that are *not* settings."""
        return (init_settings,)

    @field_validator("*", mode="before")
    @classmethod
    def _plain(cls, value: object, info: ValidationInfo) -> object:
        field = cls.model_fields[str(info.field_name)]
        # "none" is how flags and environment take a limit away. YAML's "yes" is a bool, and bool is an int.
        if (
            isinstance(value, str)
            and value.strip().lower() == "none"
            and type(None) in get_args(field.annotation)
        ):
            return None
        if isinstance(value, bool) and field.annotation is not bool:
            raise ValueError("a number, text or list is expected, not true or false")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.trace_ttl_s < self.decode_ttl_s:
            raise ValueError(f"trace_ttl_s: has to be at least decode_ttl_s ({self.decode_ttl_s:g})")
        if self.deadline_margin_s >= self.decode_ttl_s:
            raise ValueError(
                f"deadline_margin_s: has to be shorter than decode_ttl_s ({self.decode_ttl_s:g})"
            )
        return self

    @property
    def decode_ttl_is_set(self) -> bool:
        """Whether the operator said how long decode nodes keep a turn.

        Engines before 0.26 do not tell when a handle ends, and read expired ones: their handles are reused
        only where this is true.
        """
        return "decode_ttl_s" in self.model_fields_set

    def engine_api_key(self) -> str | None:
        """The key for engines, read anew at each call so that it can be rotated.

        Raises OSError where the file cannot be read, ValueError where it does not hold one key.
        """
        return None if self.engine_api_key_file is None else _key_in(self.engine_api_key_file)

    def warnings(self) -> tuple[str, ...]:
        """What is allowed and likely wrong, one line each."""
        found: list[str] = []
        if self.verify == "lineage":
            found.append(
                "verify=lineage trusts equal messages: it is known to be wrong where templates strip"
                " reasoning or answers retokenise; use auto, engine or router"
            )
        # vLLM 0.22 to 0.33: decoder_kv_blocks_ttl is 480 s, VLLM_HTTP_TIMEOUT_KEEP_ALIVE is 5 s.
        if self.decode_ttl_s > 480:
            found.append(
                f"decode_ttl_s={self.decode_ttl_s:g} is longer than vLLM's default of 480 s: right only if"
                " all decode nodes were started with a decoder_kv_blocks_ttl that is at least as long"
            )
        if self.engine_keepalive_s >= 5:
            found.append(
                f"engine_keepalive_s={self.engine_keepalive_s:g} is not below vLLM's own 5 s: engines will"
                " close connections that are about to be used"
            )
        both = sorted(set(self.prefill) & set(self.decode))
        if both:
            found.append(f"{', '.join(both)} is in both pools: right only for an engine with kv_role kv_both")
        return tuple(found)


def load(flags: Mapping[str, object], *, config: str | None = None) -> Settings:
    """The settings from flags, environment and file; raises SettingsError.

    ``flags`` holds only what was given on the command line. ``config`` is the file's path; without it,
    ``BOOMERANG_CONFIG`` names the file.
    """
    path = config or os.environ.get(CONFIG_VARIABLE)
    merged = {**(_from_file(path) if path else {}), **_from_environment(), **flags}
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
    spelled = f"{flag_name(name)} / {variable_name(name)} / {name}"
    if detail["type"] == "missing":
        return f"{spelled}: is required"
    # Not shown: what may hold a password or a token, and a key that was given in place of its file's path.
    if name == "engine_api_key_file" or set("@?#") & set(str(given.get(name))):
        shown = ""
    return f"{spelled}: {message}{shown}"


def _shown(value: object) -> str:
    text = " ".join((value if isinstance(value, str) else repr(value)).split()) or "nothing"
    return text if len(text) <= 80 else text[:79] + "…"
