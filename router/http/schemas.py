"""The bodies of the router's own probes. Errors are in ``router.errors``; engines' answers have no model."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Live(Body):
    status: Literal["live"] = "live"
    version: str


class Ready(Body):
    status: Literal["ready", "not_ready", "draining"]
    reasons: tuple[str, ...] = Field(description="Why it is not ready; empty where it is")


class NodeHealth(Body):
    node: str
    origin: str
    role: str
    state: str
    reason: str
    version: str | None = Field(description="The engine's version; null where it is not known")
    models: tuple[str, ...]
    in_flight: int = Field(description="Legs of this router that are open on it")
    running: int | None = Field(description="Requests running on the engine, from all its clients")
    waiting: int | None
    kv_usage: float | None = Field(description="Share of the engine's KV blocks in use, 0 to 1")


class PairHealth(Body):
    prefill: str
    decode: str
    verify: str = Field(description="How handles of this pair are verified: engine, router, lineage or off")
    reason: str = Field(description="Why not better; empty where there is no better")


class Health(Body):
    status: Literal["ready", "not_ready", "draining"]
    reasons: tuple[str, ...]
    version: str
    verify: dict[str, int] = Field(description="How many pairs are verified how")
    nodes: tuple[NodeHealth, ...]
    pairs: tuple[PairHealth, ...] = Field(description="The first pairs; ``verify`` counts all")
    hints: tuple[str, ...] = Field(
        description="What keeps reuse from working, or makes it cost more than it should"
    )
