"""Observations made by hand, for the rules: a pair with which all is well, and pieces to replace."""

from __future__ import annotations

from array import array
from typing import Any

import msgspec

from router.check.observed import (
    HandlePlace,
    LegSeen,
    PairSeen,
    ParamsSeen,
    ReleaseSeen,
    ReuseSeen,
    RouteSeen,
    StreamSeen,
    TurnSeen,
    read_params,
)
from router.fleet.node import Engine, Node, Role, State
from router.fleet.pool import node_of
from router.turn.reading import Answer

P_ID = "6378c86c-8795-4980-adb2-8ed9c30b35be"
D_ID = "82a738bd-c044-4af0-aa02-43f45df56556"
IDS = array("I", range(200))


def node(role: Role, host: str = "10.0.0.1", **engine: Any) -> Node:
    known = {"version": "0.33.0", "models": ("m",), "block_size": 16, "num_blocks": 1_000, **engine}
    fresh = node_of(f"http://{host}:8000", role)
    return Node(fresh.key, fresh.origin, role, State.READY, engine=Engine(**known))


def params(role: Role, **members: Any) -> ParamsSeen:
    of_prefill = role is Role.PREFILL
    told: dict[str, Any] = {
        "do_remote_prefill": of_prefill,
        "do_remote_decode": not of_prefill,
        "remote_block_ids": [[1, 2]],
        "remote_engine_id": P_ID if of_prefill else D_ID,
        "remote_request_id": "r",
        "remote_host": "10.0.0.1" if of_prefill else "10.0.0.2",
        "remote_port": 5600,
        "remote_num_tokens": 200,
        "remote_blocks_expiry_time": None if of_prefill else 5_000.0,
        "transfer_mode": "pull",
    }
    if of_prefill:
        told["remote_prefill_cached_tokens"] = 0
    return read_params(msgspec.json.encode({**told, **members}))


def answer(*ids: int, prompt: array[int] = IDS) -> Answer:
    return Answer(
        params=None,
        several_choices=False,
        finish_reasons=("length",),
        prompt_token_ids=prompt,
        answer_token_ids=array("I", ids),
        usage=None,
        error=None,
        unreadable=0,
    )


def leg(role: Role, *ids: int, at_s: float = 0.0, prompt: array[int] = IDS, **members: Any) -> LegSeen:
    """A leg that took a second and ended well."""
    return LegSeen(at_s, at_s + 1.0, 200, answer=answer(*ids, prompt=prompt), params=params(role, **members))


def failed(fault: str = "answered 500", *, status: int | None = 500, timed_out: bool = False) -> LegSeen:
    return LegSeen(0.0, 20.0, status, fault, timed_out)


def turn(at_s: float = 0.0, reused: int = 0, **of_decode: Any) -> TurnSeen:
    prefill = leg(Role.PREFILL, 7, at_s=at_s, remote_prefill_cached_tokens=reused)
    return TurnSeen(prefill, leg(Role.DECODE, 7, 8, 9, at_s=at_s + 1.0, **of_decode))


def good_pair() -> PairSeen:
    return PairSeen(
        prefill=node(Role.PREFILL, "10.0.0.1"),
        decode=node(Role.DECODE, "10.0.0.2"),
        model="m",
        route=RouteSeen("render", 200, agrees=True),
        first=turn(),
        streamed=StreamSeen(turn(), HandlePlace.NATIVE),
        second=ReuseSeen(turn(2.0, reused=200), False, 210, 200, 0),
        reference=turn(4.0, remote_blocks_expiry_time=5_004.0),
        release=ReleaseSeen(2, 0.004, 0.010, 0.006, 0.3, is_busy=False),
    )
