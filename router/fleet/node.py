"""One engine endpoint, and what is known of the engine behind it. Pure values."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

SAME_START_S: Final = 1.0
"""API servers of one engine start within about this time, and any may answer. A restart takes longer."""


class Role(StrEnum):
    PREFILL = "prefill"
    DECODE = "decode"


class State(StrEnum):
    """Where a node is in its life; only ``READY`` gets new turns."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    EJECTED = "ejected"
    GONE = "gone"


def process_of(engine_id: str | None) -> str | None:
    """The process behind an engine id: data-parallel ranks (``..._dp<rank>``) of one process are one."""
    return None if engine_id is None else engine_id.partition("_dp")[0]


@dataclass(frozen=True, slots=True)
class Engine:
    """What probes and answers have told of the engine behind a node; None is "not known"."""

    version: str | None = None
    models: tuple[str, ...] = ()
    block_size: int | None = None
    """Tokens per KV block, from ``vllm:cache_config_info``."""
    num_blocks: int | None = None
    prefix_cache: bool | None = None
    """Whether it keeps computed prompts (``enable_prefix_caching`` of ``vllm:cache_config_info``)."""
    started_at_s: float | None = None
    """``process_start_time_seconds`` of the engine's API server."""
    engine_id: str | None = None
    """The ``remote_engine_id`` seen last."""
    kv_usage: float | None = None
    running: int | None = None
    waiting: int | None = None
    push_mode: bool = False
    """It reports ``transfer_mode: push``: handles of such a connector cannot be reused."""
    render: bool | None = None
    """Whether its ``/v1/.../render`` routes answer."""
    stream_handle: bool | None = None
    """Whether its streamed answers carry a handle."""
    stamps: bool | None = None
    """Whether its handles carry a stamp."""
    verifies: bool | None = None
    """Whether its prefill answers report verified tokens."""


@dataclass(frozen=True, slots=True)
class Node:
    """One engine endpoint. ``key`` names it in the ledger, in metrics and in logs."""

    key: str
    origin: str
    """Scheme, host and port, without a trailing slash."""
    role: Role
    state: State = State.STARTING
    reason: str = ""
    """Why it is in this state."""
    engine: Engine = Engine()
    in_flight: int = 0
    """Legs of ours that are open on it."""
