"""What a check has seen, as values. Nothing here says whether it is good."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from router.engines import nixl
from router.fleet.node import Node, State
from router.turn.digest import STAMP_FIELD
from router.turn.reading import Answer

TTL_FIELD = "ttl_s"
"""In the plugin's stamp: how long D keeps the blocks of a finished turn, in seconds."""


class HandlePlace(StrEnum):
    """Where a streamed answer carried its handle."""

    NATIVE = "native"
    """In a chunk of the answer: vLLM 0.33."""
    PLUGIN = "plugin"
    """In a chunk of its own without choices: the plugin."""
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Assumed:
    """What cannot be read from an engine, and what the router would assume. Seconds."""

    ttl_s: float = 480.0
    ttl_is_set: bool = False
    lease_s: float = 30.0
    threshold_tokens: int = 64


@dataclass(frozen=True, slots=True)
class ParamsSeen:
    """An engine's ``kv_transfer_params``."""

    raw: bytes
    read: nixl.Params
    host: str
    """``remote_host``: the address of the side channel, as the engine names it."""
    expiry_s: float | None
    """On the engine's own monotonic clock."""
    ttl_s: float | None
    """From the stamp."""


@dataclass(frozen=True, slots=True)
class LegSeen:
    """One request to an engine, and what came of it. Times on the check's monotonic clock, in seconds."""

    began_s: float
    ended_s: float
    status: int | None = None
    """None where no answer came."""
    fault: str = ""
    """Why the leg failed; empty where it ended well."""
    timed_out: bool = False
    answer: Answer | None = None
    params: ParamsSeen | None = None
    body: bytes = b""

    @property
    def is_good(self) -> bool:
        return self.answer is not None and not self.fault


@dataclass(frozen=True, slots=True)
class TurnSeen:
    """Both legs of a turn; ``decode`` is None where the prefill leg left nothing to decode with."""

    prefill: LegSeen
    decode: LegSeen | None = None

    @property
    def handle(self) -> ParamsSeen | None:
        return self.decode.params if self.decode is not None else None


@dataclass(frozen=True, slots=True)
class RouteSeen:
    """How a prompt's ids can be learnt before the prefill leg."""

    name: str
    """``render``, ``tokenize``, or empty where neither answered."""
    status: int | None
    """What the last one that was tried answered."""
    agrees: bool | None = None
    """Whether the ids are those that P then read; None where P did not tell them."""


@dataclass(frozen=True, slots=True)
class StreamSeen:
    """A streamed turn."""

    turn: TurnSeen
    place: HandlePlace


@dataclass(frozen=True, slots=True)
class ReuseSeen:
    """The second turn, whose prefill leg carries the handle of the first."""

    turn: TurnSeen
    by_engine: bool
    """P verified the stamp; else the tokens were compared here, as the router does."""
    prompt_tokens: int
    sent_tokens: int
    """How many tokens P could read with what it was sent."""
    local_tokens: int
    """How many of them P's own prefix cache may have held; 0 where the turn had a salt of its own."""
    serves_others: bool | None = None
    """After a time-out: whether P still answered a request without a handle."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where the answer of the second turn and its reference part, and how sure the reference was there."""

    at: int
    reproducible: bool
    """Whether another reference gave the same tokens up to there."""
    gap: float | None
    """Difference of the two best log-probabilities; None where it is not known."""


@dataclass(frozen=True, slots=True)
class ReleaseSeen:
    """Handles that were given back unread, and D's KV usage around it (shares, 0 to 1)."""

    handles: int
    pinned_share: float | None
    """What the released blocks are of all; None where the size of D's cache is not known."""
    before: float | None
    after: float | None
    waited_s: float
    is_busy: bool
    """Others used D meanwhile, so that its usage proves nothing."""
    fault: str = ""


@dataclass(frozen=True, slots=True)
class PairSeen:
    """All that was seen of a pair. What is None was not reached; ``stopped`` says why."""

    prefill: Node
    decode: Node
    model: str = ""
    stopped: str = ""
    route: RouteSeen | None = None
    first: TurnSeen | None = None
    streamed: StreamSeen | None = None
    second: ReuseSeen | None = None
    unfit: str = ""
    """Why the first turn's handle could not be sent."""
    reference: TurnSeen | None = None
    divergence: Divergence | None = None
    release: ReleaseSeen | None = None

    @property
    def handle(self) -> ParamsSeen | None:
        """D's handle of the first turn."""
        return self.first.handle if self.first is not None else None

    @property
    def subject(self) -> str:
        return f"{self.prefill.key} -> {self.decode.key}"

    @property
    def is_reachable(self) -> bool:
        return self.prefill.state is State.READY and self.decode.state is State.READY

    @property
    def by_engine(self) -> bool:
        """Whether the engines verify: D stamped, and P reports what it verified."""
        params = self.first.prefill.params if self.first is not None else None
        verifies = params is not None and params.read.verified_tokens is not None
        return verifies and self.handle is not None and self.handle.read.stamped


@dataclass(frozen=True, slots=True)
class PoolSeen:
    """All that was seen."""

    nodes: tuple[Node, ...]
    pairs: tuple[PairSeen, ...]


class _Members(msgspec.Struct):
    remote_host: Any = None
    remote_blocks_expiry_time: Any = None
    stamp: Any = msgspec.field(default=None, name=STAMP_FIELD)


_decode = msgspec.json.Decoder(_Members).decode


def read_params(raw: bytes) -> ParamsSeen:
    """Read an engine's params. Raises nixl.NotParams."""
    read = nixl.read(raw)
    try:
        members = _decode(raw)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise nixl.NotParams(str(error)) from None
    stamp = members.stamp if isinstance(members.stamp, dict) else {}
    return ParamsSeen(
        raw=raw,
        read=read,
        host=members.remote_host if isinstance(members.remote_host, str) else "",
        expiry_s=_number(members.remote_blocks_expiry_time),
        ttl_s=_number(stamp.get(TTL_FIELD)),
    )


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
