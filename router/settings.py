"""Every setting, declared once.

A setting's field below gives its default, its bounds and its help text. Its three spellings follow from
the field's name: ``pull_timeout_s`` is the flag ``--pull-timeout-s``, the variable
``BOOMERANG_PULL_TIMEOUT_S`` and the key ``pull_timeout_s`` of the YAML file. A flag wins over the
environment, that over the file, that over the default. ``Settings(...)`` itself reads nothing but its
arguments; ``setting_sources.load`` reads all three.
"""

import os
from pathlib import Path
from typing import Annotated, Literal, Self, get_args

from pydantic import (
    AfterValidator,
    ByteSize,
    Field,
    FilePath,
    SecretStr,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from router.ledger.address import parse_address
from router.origin import at_port
from router.setting_values import (
    MEMORY,
    Bytes,
    Origins,
    Seconds,
    collector,
    header,
    is_loopback,
    key_in,
    prefix,
    readable,
    store_address,
)

ENVIRONMENT_PREFIX = "BOOMERANG_"


def flag_name(name: str) -> str:
    return "--" + name.replace("_", "-")


def variable_name(name: str) -> str:
    return ENVIRONMENT_PREFIX + name.upper()


def spelled(name: str) -> str:
    """A setting's three names."""
    return f"{flag_name(name)} / {variable_name(name)} / {name}"


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
    prefill: Origins = Field(
        (),
        description="Prefill nodes, as http://HOST:PORT, http://HOST:PORT@RANK for a data-parallel rank, or"
        " dns://NAME:PORT for all addresses of a name; repeatable",
    )
    decode: Origins = Field((), description="Decode nodes, in the same form; repeatable")
    nodes_file: Path | None = Field(None, description="YAML file that lists nodes, and is watched")
    dns_interval_s: Seconds = Field(10.0, description="Time between two look-ups of a dns:// name")
    kubernetes_prefill: str = Field(
        "", description="Label selector of the EndpointSlices with prefill nodes, as app=vllm,role=prefill"
    )
    kubernetes_decode: str = Field("", description="Label selector of the EndpointSlices with decode nodes")
    kubernetes_port: str = Field(
        "", description="Name or number of the engines' port in EndpointSlices; empty: the first one"
    )
    kubernetes_namespace: str = Field(
        "", description="Namespace of the EndpointSlices; empty: the service account's own"
    )
    kubernetes_api: str = Field(
        "", description="Origin of the Kubernetes API server; empty: as a pod's environment says"
    )
    kubernetes_account: Path = Field(
        Path("/var/run/secrets/kubernetes.io/serviceaccount"),
        description="Folder with the token, ca.crt and namespace of the service account",
    )
    engine_api_key_file: Annotated[Path, AfterValidator(readable)] | None = Field(
        None, description="File with the key sent to engines where the caller sends none"
    )
    rewrite_remote_host: bool = Field(
        default=False,
        description="Replace a loopback side channel address in engines' parameters by the engine's own host",
    )
    probe_interval_s: Seconds = Field(5.0, description="Time between two probes of a node")
    probe_timeout_s: Seconds = Field(
        2.0, description="Limit on an answer to a probe; two probes that fail eject a node"
    )
    breaker_failures: int = Field(
        5, gt=0, le=10_000, description="Legs that fail in a row until a node gets no new turns"
    )
    breaker_open_s: Seconds = Field(
        10.0, description="How long such a node is left alone; then one leg is let through on trial"
    )
    linger_s: Seconds = Field(
        120.0, description="How long a decode node that left is kept for what it holds, while it answers"
    )

    # Admission
    max_turns: int = Field(8192, gt=0, le=10_000_000, description="Most turns that run at the same time")
    max_turns_per_node: int | None = Field(
        None, gt=0, le=10_000_000, description="Most turns on one node at the same time; unset: no limit"
    )
    max_turns_per_tenant: int | None = Field(
        None, gt=0, le=10_000_000, description="Most turns of one tenant, running or waiting; unset: no limit"
    )
    max_waiting: int = Field(1024, ge=0, le=10_000_000, description="Most turns that wait for a place")
    admission_wait_s: Seconds = Field(30.0, description="How long a turn waits for a place; then 503")

    # Front
    host: str = Field("127.0.0.1", min_length=1, description="Address to listen on")
    port: int = Field(8000, ge=0, le=65_535, description="Port to listen on; 0 takes any free one")
    workers: int = Field(
        1, ge=1, le=256, description="Processes that serve the port; more than one need a shared store"
    )
    max_body_bytes: Bytes = Field(ByteSize(64 << 20), description="Largest request body taken")
    keepalive_s: Seconds = Field(75.0, description="How long an idle client connection is kept")
    drain_s: Seconds = Field(120.0, description="How long open turns may go on after a stop signal")
    identity_header: Annotated[str, AfterValidator(header)] = Field(
        "",
        description="Header by which a trusted gateway names the tenant; empty: the caller's credential does",
    )
    expose_params: bool = Field(default=False, description="Show the engines' kv_transfer_params to clients")
    explain_headers: bool = Field(
        default=True, description="Add x-boomerang-… headers that tell a turn's plan and reason"
    )

    # Administration
    admin_host: str = Field("127.0.0.1", min_length=1, description="Address the admin API listens on")
    admin_port: int | None = Field(
        None, ge=0, le=65_535, description="Port of the admin API; 0 takes any free one, unset: there is none"
    )
    admin_token: SecretStr | None = Field(
        None, description="Token that the admin API wants; better in admin_token_file, where ps shows it not"
    )
    admin_token_file: Annotated[Path, AfterValidator(readable)] | None = Field(
        None, description="File with that token, read anew for each request"
    )

    # Memory
    store: Annotated[str, AfterValidator(store_address)] = Field(
        MEMORY,
        description="Where branches, traces and handles wait between turns: memory, redis://HOST:PORT,"
        " rediss:// (TLS), redis+cluster:// or redis+sentinel://HOST:PORT/NAME",
    )
    store_password_file: Annotated[Path, AfterValidator(readable)] | None = Field(
        None,
        description="File with the store's password; the user stands in the address, as redis://USER@HOST",
    )
    store_ca_file: FilePath | None = Field(
        None,
        description="File with the certificates that the store's is checked against; the system's if empty",
    )
    store_prefix: Annotated[str, AfterValidator(prefix)] = Field(
        "boomerang",
        description="Begin of all keys in the store; routers of other pools need another one",
    )
    store_timeout_s: Seconds = Field(
        0.05, description="How long a turn waits for the store; then it goes cold"
    )
    store_connect_timeout_s: Seconds = Field(0.05, description="Limit on connecting to the store")
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

    # Pins
    pin_budget: float = Field(
        0.5,
        gt=0,
        le=1,
        allow_inf_nan=False,
        description="Most of a decode node's KV that handles may pin; above it the least likely are released",
    )
    release_per_s: float = Field(
        20.0,
        ge=0,
        le=10_000,
        allow_inf_nan=False,
        description="Most requests a second sent only to release handles; 0: none",
    )
    one_shot: Literal["off", "header", "auto"] = Field(
        "header",
        description="Which turns leave no pin: those marked x-boomerang-one-shot, or also first questions"
        " without tools and without a session id",
    )

    # Plan
    policy: Literal["planned", "round_robin", "least_load", "sticky"] = Field(
        "planned",
        description="Which nodes a turn goes to: those estimated to be fastest, or by a simple rule",
    )
    stay_max_tokens: int = Field(
        256,
        ge=0,
        le=1_000_000,
        description="Most new tokens that a decode node may compute itself, without a prefill leg; 0: none",
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
    client_timeout_s: Seconds | None = Field(
        600.0, description="How long a client may read nothing of a stream that waits for it"
    )
    decode_timeout_s: Seconds | None = Field(None, description="Limit on a decode leg that is not streamed")
    engine_client: Literal["httptools", "aiohttp"] = Field(
        "httptools", description="HTTP client towards engines: our own, or aiohttp should that one fail you"
    )
    engine_keepalive_s: Seconds = Field(
        4.0, description="How long an idle connection to an engine is kept; below the engines' own 5 s"
    )

    # Traces and logs
    otlp_endpoint: Annotated[str, AfterValidator(collector)] = Field(
        "",
        description="OpenTelemetry collector that spans of turns go to, as http://HOST:4318; empty: none."
        " Needs the extra otel",
    )
    otlp_sample_ratio: float = Field(
        1.0,
        ge=0,
        le=1,
        allow_inf_nan=False,
        description="Share of turns that are traced, of those whose caller does not say whether they are",
    )
    otlp_service_name: str = Field(
        "boomerang", min_length=1, max_length=256, description="Name of the service in its spans"
    )
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

    @model_validator(mode="after")
    def _has_nodes(self) -> Self:
        listed = {
            "prefill": bool(self.prefill or self.kubernetes_prefill),
            "decode": bool(self.decode or self.kubernetes_decode),
        }
        if self.nodes_file is None and not all(listed.values()):
            lacking = [role for role, found in listed.items() if not found]
            told = [f"{spelled(role)}: is required, or nodes_file, or kubernetes_{role}" for role in lacking]
            # The first one's spellings are put before it by whoever tells of it.
            raise ValueError("; ".join(told).replace(spelled(lacking[0]), lacking[0], 1))
        if (self.kubernetes_prefill or self.kubernetes_decode) and not self.kubernetes_server:
            raise ValueError("kubernetes_api: is required outside of a pod")
        return self

    @model_validator(mode="after")
    def _admin_is_closed(self) -> Self:
        if self.admin_token is not None and self.admin_token_file is not None:
            raise ValueError("admin_token: is given twice, here and by admin_token_file")
        if self.admin_token is not None and len(self.admin_token.get_secret_value().split()) != 1:
            raise ValueError("admin_token: has to be one word")
        if self.admin_port is not None and self.workers > 1:
            raise ValueError("admin_port: is for one process; with workers it would speak for one of them")
        guarded = self.admin_token is not None or self.admin_token_file is not None
        if self.admin_port is not None and not guarded and not is_loopback(self.admin_host):
            raise ValueError("admin_host: has to be a loopback address where no admin_token_file is given")
        return self

    def admin_secret(self) -> str | None:
        """The admin API's token, read anew at each call so that it can be rotated; None without one.

        Raises OSError where the file cannot be read, ValueError where it does not hold one token.
        """
        if self.admin_token_file is not None:
            return key_in(self.admin_token_file)
        return None if self.admin_token is None else self.admin_token.get_secret_value()

    @property
    def kubernetes_server(self) -> str:
        """Origin of the Kubernetes API server; empty where neither settings nor environment name one."""
        host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT")
        if self.kubernetes_api or not (host and port and port.isdecimal()):
            return self.kubernetes_api
        return at_port(host, int(port), scheme="https")

    @model_validator(mode="after")
    def _workers_share(self) -> Self:
        if self.workers > 1 and self.store == MEMORY:
            raise ValueError(
                f"workers: {self.workers} processes need a shared store, as --store redis://HOST:PORT:"
                " in memory each would remember its own turns alone"
            )
        return self

    @property
    def store_shown(self) -> str:
        """The store as it may be logged: without its password."""
        return self.store if self.store == MEMORY else str(parse_address(self.store))

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
        return None if self.engine_api_key_file is None else key_in(self.engine_api_key_file)

    def warnings(self) -> tuple[str, ...]:
        """What is allowed and likely wrong, one line each."""
        found: list[str] = []
        if self.verify == "lineage":
            found.append(
                "verify=lineage trusts equal messages: it is known to be wrong where templates strip"
                " reasoning or answers retokenise; use auto, engine or router"
            )
        # vLLM 0.22 to 0.33: decoder_kv_blocks_ttl is 480 s, kv_lease_duration 30 s, and
        # VLLM_HTTP_TIMEOUT_KEEP_ALIVE 5 s.
        if self.decode_ttl_s > 480:
            found.append(
                f"decode_ttl_s={self.decode_ttl_s:g} is longer than vLLM's default of 480 s: right only if"
                " all decode nodes were started with a decoder_kv_blocks_ttl that is at least as long"
            )
        if self.prefill_lease_s > 30:
            found.append(
                f"prefill_lease_s={self.prefill_lease_s:g} is longer than vLLM's default of 30 s: right only"
                " if all prefill nodes were started with a kv_lease_duration that is at least as long"
            )
        if self.engine_keepalive_s >= 5:
            found.append(
                f"engine_keepalive_s={self.engine_keepalive_s:g} is not below vLLM's own 5 s: engines will"
                " close connections that are about to be used"
            )
        if self.store != MEMORY and parse_address(self.store).password:
            found.append(
                "store: a password in the address is seen by all who see the command line or the environment;"
                " use store_password_file"
            )
        both = sorted(set(self.prefill) & set(self.decode))
        if both:
            found.append(f"{', '.join(both)} is in both pools: right only for an engine with kv_role kv_both")
        return tuple(found)
