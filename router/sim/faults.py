"""Scripted faults: what the next matching requests get instead of, or on top of, a sane answer."""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One fault. The first group says which requests get it, the second what they get."""

    times: int = 1
    """How many requests get it."""
    path: str = ""
    """Only requests whose path begins so."""
    with_handle: bool | None = None
    """Only requests that carry a handle (or, if false, none)."""
    leg: Literal["prefill", "decode"] | None = None
    """Only prefill legs or decode legs, by their ``kv_transfer_params``."""
    streamed: bool | None = None

    status: int | None = None
    """Answer with this status and ``body``, and do nothing."""
    body: str = '{"error":{"message":"scripted","type":"InternalServerError","param":null,"code":500}}'
    refuse: bool = True
    """With ``status``: tell P as an engine does that rejects a decode (T10)."""
    delay_s: float = 0.0
    """Before the answer's headers."""
    delay_chunk_s: float = 0.0
    """Before each chunk of a stream."""
    split_bytes: int = 0
    """Send a stream in pieces of that many bytes, wherever they end."""
    line_end: Literal["lf", "crlf", "cr"] = "lf"
    cut_after_chunks: int | None = None
    """Break the connection after so many chunks; 0 is right after the headers of a stream, and before the
    answer of anything else."""
    cut_mid_event: bool = False
    """With ``cut_after_chunks``: send half of the next chunk first."""
    params_at: Literal["none", "first", "last", "usage"] | None = None
    """Where in a stream the params go; ``last`` is a chunk of its own with no choices. ``none``: nowhere,
    also not in a whole answer."""
    finish_reason: str | None = None
    error_after_chunks: int | None = None
    """End a stream with vLLM's error event after so many chunks."""
    hang: bool = False
    """Accept, and never answer."""
    restart: bool = False
    """The engine restarts when the request arrives."""
    gzip: bool = False
    close: bool = False
    """Announce the end of the connection (``Connection: close``)."""
    extra_params: dict[str, Any] = {}
    """Keys that no router knows, added to the params that are returned."""

    def matches(self, path: str, body: object) -> bool:
        fields = body if isinstance(body, dict) else {}
        params = fields.get("kv_transfer_params")
        params = params if isinstance(params, dict) else {}
        handle = bool(params.get("do_remote_decode")) and bool(params.get("remote_block_ids"))
        legs = {"prefill": params.get("do_remote_decode"), "decode": params.get("do_remote_prefill")}
        return (
            path.startswith(self.path)
            and self.with_handle in (None, handle)
            and (self.leg is None or bool(legs[self.leg]))
            and self.streamed in (None, bool(fields.get("stream")))
        )


class FaultPlan:
    """The faults that are still to happen; the first that matches is taken."""

    def __init__(self) -> None:
        self._left: list[tuple[Fault, int]] = []

    def add(self, fault: Fault) -> None:
        self._left.append((fault, fault.times))

    def clear(self) -> None:
        self._left.clear()

    def take(self, path: str, body: object) -> Fault | None:
        for index, (fault, times) in enumerate(self._left):
            if fault.matches(path, body):
                if times == 1:
                    del self._left[index]
                else:
                    self._left[index] = (fault, times - 1)
                return fault
        return None
