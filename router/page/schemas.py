"""What the page is sent. Numbers and names of nodes; of conversations a name that tells nothing of them.

Points in time are milliseconds since 1970, by the router's clock.
"""

import msgspec


class NodeSeen(msgspec.Struct):
    node: str
    role: str
    state: str
    reason: str
    circuit: str
    is_reachable: bool
    in_flight: int
    """Legs of this router."""
    running: int | None
    """Requests that the engine itself counts, of all that send to it."""
    waiting: int | None
    kv_usage: float | None
    """0 to 1."""
    queue_s: float | None
    """Of a prefill node: how long until what is queued on it is computed, estimated."""
    pinned_tokens: int | None
    """Of a decode node: what handles keep on it."""
    pinned_handles: int | None
    pinned_share: float | None
    version: str | None


class RunningSeen(msgspec.Struct):
    turn: str
    line: str
    plan: str
    phase: str
    prefill: str
    decode: str
    prompt_tokens: int | None
    """Estimated until an engine has counted them."""
    began_ms: int


class TurnSeen(msgspec.Struct):
    number: int
    turn: str
    line: str
    plan: str
    reason: str
    prefill: str
    decode: str
    status: int
    ended_by: str
    is_stream: bool
    prompt_tokens: int | None
    reused_tokens: int | None
    moved_tokens: int | None
    completion_tokens: int | None
    first_byte_s: float | None
    without_s: float | None
    """To the first byte, had the reused tokens been computed: an estimate."""
    total_s: float
    ended_ms: int


class SumsSeen(msgspec.Struct):
    turns: int
    failed: int
    left: int
    prompt_tokens: int
    reused_tokens: int
    moved_tokens: int
    completion_tokens: int


class FirstBytes(msgspec.Struct):
    """Medians over streamed turns that reused something."""

    turns: int
    with_s: float
    without_s: float


class Warned(msgspec.Struct):
    level: str
    """``error``, ``warning`` or ``note``."""
    text: str


class StateSeen(msgspec.Struct):
    version: str
    verify: str
    status: str
    """``ready``, ``not_ready`` or ``draining``, as ``/ready`` tells."""
    is_shared: bool
    """Other routers may serve the same conversations; this page knows of this one's turns."""
    started_ms: int
    pin_budget: float
    open_turns: int
    waiting_turns: int
    sums: SumsSeen
    first_bytes: FirstBytes | None
    nodes: list[NodeSeen]
    more_nodes: int
    running: list[RunningSeen]
    warnings: list[Warned]


class Frame(msgspec.Struct, omit_defaults=True):
    """One server-sent event. ``turns`` are those that ended since the last one."""

    now_ms: int
    turns: list[TurnSeen] = []
    state: msgspec.Raw | None = None
    """Only where it is another than in the last frame; ``StateSeen``."""
