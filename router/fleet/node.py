"""One engine endpoint, and what is known of the engine behind it. Pure values."""

from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final

from router.origin import parse_ranked_origin
from router.values import value

SAME_START_S: Final = 1.0
"""API servers of one engine start within about this time, and any may answer. A restart takes longer."""


class Role(StrEnum):
    PREFILL = "prefill"
    DECODE = "decode"


class State(StrEnum):
    """Where a node is in its life; ``router.fleet.standing`` says how it gets there.

    Only ``READY`` gets new turns, but for ``Pool.ready``'s last resort.
    """

    STARTING = "starting"
    """No probe of it has been good yet."""
    READY = "ready"
    DRAINING = "draining"
    """It gets no new turns; what it holds may still be read."""
    EJECTED = "ejected"
    """Its probes fail, or its breaker is open."""
    GONE = "gone"
    """It is in no snapshot any more."""


class Circuit(StrEnum):
    """Where a node's breaker is; ``router.fleet.breaker`` moves it."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"
    """It waits for one leg on trial."""
    TRYING = "trying"
    """The leg on trial is on its way."""


class Ejection(StrEnum):
    """Why a node gets no new turns: what its newest probe came to, or how its breaker opened."""

    PROBE_REFUSED = "probe_refused"
    PROBE_TIMED_OUT = "probe_timed_out"
    PROBE_STATUS = "probe_status"
    PROBE_BROKEN = "probe_broken"
    LEGS_IN_A_ROW = "legs_in_a_row"
    LEGS_SHARE = "legs_share"
    TRIAL = "trial"
    """The leg on trial failed."""


@lru_cache(maxsize=1024)
def process_of(engine_id: str | None) -> str | None:
    """The process behind an engine id: data-parallel ranks (``..._dp<rank>``) of one process are one."""
    return None if engine_id is None else engine_id.partition("_dp")[0]


def another_process(known: str | None, told: str | None) -> bool:
    """Whether two engine ids are known, and of different processes."""
    return None not in (known, told) and process_of(known) != process_of(told)


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
    prefill_params: bool | None = None
    """Whether its prefill answers carry params, by which D reads what P computed."""
    whole_handle: bool | None = None
    """Whether its answers that are not streamed carry a handle."""
    stream_handle: bool | None = None
    """Whether its streamed answers carry a handle."""
    stamps: bool | None = None
    """Whether its handles carry a stamp."""
    verifies: bool | None = None
    """Whether its prefill answers report verified tokens."""


@value
class Node:
    """One engine endpoint. ``key`` names it in the ledger, in metrics and in logs.

    Times are seconds on the fleet's clock, which is the ledger's.
    """

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
    weight: float = 1.0
    """Its share of new turns, against the other nodes of its role."""
    rank: int | None = None
    """The data-parallel rank behind its origin that it stands for; None leaves that to the engine."""
    limit: int | None = None
    """Most legs of ours at once."""
    circuit: Circuit = Circuit.CLOSED
    since_s: float | None = None
    """When it came to this state."""
    idle_since_s: float | None = None
    """When its last leg ended; None while one is open, and before the first."""
    busy_until_s: float | None = None
    """It answered 429 or 503, and gets no new turns until then while another node can have them."""
    renewed_at_s: float | None = None
    """When another process was first seen behind it: what was computed or held there before that is gone."""

    reachable: bool = False
    """Whether its newest probes were good, whatever else speaks against it."""

    @property
    def serves(self) -> bool:
        """Whether it may get turns: it is ready, or the last resort, with nothing against it but its legs."""
        return self.state is State.READY or (self.state is State.EJECTED and self.reachable)

    def with_legs(self, in_flight: int, idle_since_s: float | None) -> "Node":
        """The same node with so many legs open: ``dataclasses.replace`` for what changes with every leg."""
        return Node(
            self.key, self.origin, self.role, self.state, self.reason, self.engine, in_flight, self.weight,
            self.rank, self.limit, self.circuit, self.since_s, idle_since_s, self.busy_until_s,
            self.renewed_at_s, self.reachable,
        )  # fmt: skip


def node_of(address: str, role: Role, *, weight: float = 1.0, limit: int | None = None) -> Node:
    """A node that nothing is known of yet. Its key is role, address and rank, unique in a fleet.

    ``address`` is ``http(s)://HOST[:PORT][@RANK]``. Raises ValueError for anything else, and for a weight
    that is not positive or a limit below 1.
    """
    origin, rank = parse_ranked_origin(address)
    if not 0 < weight < float("inf"):
        raise ValueError("a weight has to be a positive number")
    if limit is not None and limit < 1:
        raise ValueError("a limit has to be at least 1")
    scheme, _, place = origin.partition("://")
    if place.rpartition(":")[2].endswith("]") or ":" not in place:
        place = f"{place}:{443 if scheme == 'https' else 80}"
    at_rank = "" if rank is None else f"@{rank}"
    return Node(f"{role.value[0]}:{place}{at_rank}", origin, role, weight=weight, rank=rank, limit=limit)
