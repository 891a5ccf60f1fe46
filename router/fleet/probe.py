"""Asks an engine how it is and what it is.

A probe never stalls and never raises: each of its outcomes is a ``Probed``. An engine that answers
``/health`` with 200 is ready, whatever else it refuses to tell; ``/metrics`` in particular can be off.
"""

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

import msgspec

from router.engines.upstream import (
    Answer,
    Call,
    Exhausted,
    Limits,
    NeverSent,
    TimedOut,
    Upstream,
    UpstreamError,
)
from router.fleet.metrics_text import samples
from router.fleet.node import SAME_START_S, Ejection, Engine, Node, State

CACHE_CONFIG = "vllm:cache_config_info"
KV_USAGE = "vllm:kv_cache_usage_perc"
KV_USAGE_BEFORE_0_11 = "vllm:gpu_cache_usage_perc"
RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
STARTED_AT = "process_start_time_seconds"
_FAMILIES = (CACHE_CONFIG, KV_USAGE, KV_USAGE_BEFORE_0_11, RUNNING, WAITING, STARTED_AT)
_MAX_DIGITS = 15
_MAX_RANK_DIGITS = 4
_MAX_COUNT = 1e15
"""Larger numbers are none of an engine's: they would not be exact, or print as hundreds of digits."""
_FLAGS = {"True": True, "False": False}

PROBE_LIMITS = Limits(connect_s=1.0, answer_s=2.0, idle_s=2.0, max_answer_bytes=8_388_608)


class Fault(StrEnum):
    """Why a probe failed."""

    REFUSED = "refused"
    TIMED_OUT = "time-out"
    STATUS = "status"
    BROKEN = "broken"

    @property
    def ejection(self) -> Ejection:
        """The reason that it is for ejecting a node."""
        return _EJECTIONS[self]


_EJECTIONS: Final = {
    Fault.REFUSED: Ejection.PROBE_REFUSED,
    Fault.TIMED_OUT: Ejection.PROBE_TIMED_OUT,
    Fault.STATUS: Ejection.PROBE_STATUS,
    Fault.BROKEN: Ejection.PROBE_BROKEN,
}


@dataclass(frozen=True, slots=True)
class Probed:
    """What one probe found. ``seen`` holds only what this probe saw: None, or no models, is "did not see"."""

    state: State
    reason: str = ""
    fault: Fault | None = None
    seen: Engine = field(default_factory=Engine)
    by_rank: Mapping[int, Engine] = field(default_factory=dict)
    """What it saw of each data-parallel engine, where there are several behind one origin."""

    def seen_at(self, rank: int | None) -> Engine:
        """What it saw of the engine that a node with this rank stands for."""
        of_rank = self.by_rank.get(rank) if rank is not None else None
        if of_rank is None:
            return self.seen
        return replace(of_rank, version=self.seen.version, models=self.seen.models)


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model] = []


class _Version(msgspec.Struct):
    version: str


_MODELS = msgspec.json.Decoder(_Models)
_VERSION = msgspec.json.Decoder(_Version)
_UNREADABLE = (msgspec.MsgspecError, RecursionError)


class Prober:
    """Probes nodes, each call one of them.

    ``limits`` bound each request and ``probe_s`` a whole probe, in seconds. ``headers`` go with each request,
    for engines that want a key (vLLM's ``--api-key`` guards ``/v1``).
    """

    def __init__(
        self,
        *,
        limits: Limits = PROBE_LIMITS,
        probe_s: float = 5.0,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        self._limits = limits
        self._probe_s = probe_s
        self._headers = headers

    async def __call__(self, upstream: Upstream, node: Node) -> Probed:
        """Probe one node. Raises ``Exhausted``: no probe, and so no failed one; else only CancelledError."""
        try:
            async with asyncio.timeout(self._probe_s):
                return await self._probe(upstream, node)
        except TimeoutError:
            return _failed(node, Fault.TIMED_OUT, f"no answer to a probe within {self._probe_s:g} s")

    async def _probe(self, upstream: Upstream, node: Node) -> Probed:
        try:
            health = await self._get(upstream, node, "/health")
        except Exhausted:
            raise
        except UpstreamError as error:
            return _failed(node, _fault(error), str(error))
        if health.status != 200:
            return _failed(node, Fault.STATUS, f"/health answered {health.status}")
        version, models, metrics = await asyncio.gather(
            self._body(upstream, node, "/version"),
            self._body(upstream, node, "/v1/models"),
            self._body(upstream, node, "/metrics"),
        )
        seen = replace(engine_in_metrics(metrics), version=_version(version), models=_models(models))
        by_rank = {rank: engine_in_metrics(metrics, rank=rank) for rank in _ranks(metrics)}
        return Probed(State.READY, seen=seen, by_rank=by_rank if len(by_rank) > 1 else {})

    async def _get(self, upstream: Upstream, node: Node, path: str) -> Answer:
        return await upstream.send(node.origin, Call("GET", path, self._headers, limits=self._limits))

    async def _body(self, upstream: Upstream, node: Node, path: str) -> bytes:
        """The body of a 200, else nothing."""
        try:
            answer = await self._get(upstream, node, path)
        except UpstreamError:
            return b""
        return answer.body if answer.status == 200 else b""


def forget(engine: Engine) -> Engine:
    """What stays known of a node whose process is a new one: how it is set up, nothing that turns taught."""
    return Engine(
        version=engine.version,
        models=engine.models,
        block_size=engine.block_size,
        num_blocks=engine.num_blocks,
        prefix_cache=engine.prefix_cache,
    )


def restarted(known: Engine, seen: Engine) -> bool:
    """Whether another process answers than the one that is known."""
    if known.started_at_s is None or seen.started_at_s is None:
        return False
    return abs(known.started_at_s - seen.started_at_s) > SAME_START_S


def updated(known: Engine, seen: Engine) -> Engine:
    """What is known after a probe.

    What the probe did not see is kept, except for the load, which would be out of date. After a restart
    nothing is kept: the new process may be set up otherwise.
    """
    if restarted(known, seen):
        return seen
    return replace(
        known,
        version=seen.version if seen.version is not None else known.version,
        models=seen.models or known.models,
        block_size=seen.block_size if seen.block_size is not None else known.block_size,
        num_blocks=seen.num_blocks if seen.num_blocks is not None else known.num_blocks,
        prefix_cache=seen.prefix_cache if seen.prefix_cache is not None else known.prefix_cache,
        started_at_s=seen.started_at_s if seen.started_at_s is not None else known.started_at_s,
        kv_usage=seen.kv_usage,
        running=seen.running,
        waiting=seen.waiting,
    )


def _ranks(text: bytes) -> set[int]:
    """The data-parallel engines that ``/metrics`` names."""
    named = {sample.labels.get("engine", "") for sample in samples(text, (RUNNING,))}
    return {
        int(name) for name in named if name.isascii() and name.isdigit() and len(name) <= _MAX_RANK_DIGITS
    }


def engine_in_metrics(text: bytes, *, rank: int | None = None) -> Engine:
    """What ``/metrics`` tells of an engine, or of one rank of it.

    A data-parallel server has one sample for each of its engines: counts and blocks are summed, the usage is
    averaged, and the block size is that of all of them.
    """
    found: dict[str, list[float]] = {}
    sizes: list[int] = []
    blocks: list[int] = []
    prefix_cache: bool | None = None
    for sample in samples(text, _FAMILIES):
        if rank is not None and sample.labels.get("engine", str(rank)) != str(rank):
            continue
        if sample.name == CACHE_CONFIG:
            _add_count(sizes, sample.labels.get("block_size"))
            _add_count(blocks, sample.labels.get("num_gpu_blocks"))
            prefix_cache = _FLAGS.get(sample.labels.get("enable_prefix_caching", ""), prefix_cache)
        elif math.isfinite(sample.value):
            found.setdefault(sample.name, []).append(sample.value)
    usage = found.get(KV_USAGE) or found.get(KV_USAGE_BEFORE_0_11)
    started = found.get(STARTED_AT)
    return Engine(
        block_size=sizes[0] if sizes and len(set(sizes)) == 1 else None,
        num_blocks=sum(blocks) if blocks else None,
        prefix_cache=prefix_cache,
        started_at_s=started[0] if started and abs(started[0]) < _MAX_COUNT else None,
        kv_usage=sum(usage) / len(usage) if usage else None,
        running=_total(found.get(RUNNING)),
        waiting=_total(found.get(WAITING)),
    )


def _add_count(counts: list[int], text: str | None) -> None:
    if text is not None and len(text) <= _MAX_DIGITS and text.isascii() and text.isdigit() and int(text) > 0:
        counts.append(int(text))


def _total(values: list[float] | None) -> int | None:
    total = sum(values) if values else math.inf
    return int(total) if abs(total) < _MAX_COUNT else None


def _version(body: bytes) -> str | None:
    try:
        return _VERSION.decode(body).version
    except _UNREADABLE:
        return None


def _models(body: bytes) -> tuple[str, ...]:
    try:
        return tuple(model.id for model in _MODELS.decode(body).data)
    except _UNREADABLE:
        return ()


def _failed(node: Node, fault: Fault, reason: str) -> Probed:
    """A node that never was ready is still starting, as far as one can tell; any other has failed."""
    state = State.STARTING if node.state is State.STARTING else State.EJECTED
    return Probed(state, reason, fault)


def _fault(error: UpstreamError) -> Fault:
    if isinstance(error, TimedOut):
        return Fault.TIMED_OUT
    if isinstance(error, NeverSent):
        return Fault.REFUSED
    return Fault.BROKEN
