"""Pulling a peer's KV: how much, which blocks, and whether it was the right KV.

The first half of each function is what vLLM does; the ``_judge`` part is the simulation's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from router.sim.blocks import Kv, chain, cut, differing, garbage, origin
from router.sim.fabric import KvRead, ReadAnswer
from router.sim.kv_params import Remote
from router.sim.record import Corruption
from router.sim.sequence import ConnectionCut, EngineDead, LoadFailed, Sequence

if TYPE_CHECKING:
    from router.sim.engine import SimEngine


def external_tokens(sequence: Sequence, remote: Remote | None, threshold: int) -> int:
    """How many prompt tokens the scheduler expects from the peer."""
    params, prompt_tokens = sequence.params, len(sequence.prompt.ids)
    if params is None:
        return 0
    if params.get("do_remote_prefill"):
        return prompt_tokens - sequence.loaded_tokens
    if params.get("do_remote_decode") and remote:
        count = min(remote.num_tokens, prompt_tokens) - sequence.loaded_tokens
        return count if count > 0 and count >= threshold else 0
    return 0


async def pull(engine: SimEngine, sequence: Sequence, remote: Remote | None) -> list[Kv]:
    """Load what a peer has for a sequence; the KV of the blocks after its prefix-cache hits.

    Raises LoadFailed, EngineDead, ConnectionCut. Waits for ever where vLLM does.
    """
    config, params = engine.config, sequence.params
    if params is None:
        return []
    wanted = external_tokens(sequence, remote, config.recompute_threshold)
    from_prefill = bool(params.get("do_remote_prefill"))
    from_decode = bool(params.get("do_remote_decode"))
    sequence.tracked = from_decode or (from_prefill and config.bidirectional)
    if not from_prefill and not (from_decode and config.bidirectional):
        if wanted:
            await _hang(engine)
        return []
    if remote is None:
        if wanted:
            await _hang(engine)
        return []
    sequence.notify_on_abort = False
    params["do_remote_prefill"] = False
    if not wanted:
        engine.fabric.notify(remote.address, remote.engine_id, remote.request_id)
        return []
    profile = engine.config.profile
    seconds = profile.delivery_s(wanted) if from_prefill else profile.transfer_s(wanted)
    answer = await _read(engine, sequence, remote, wanted, seconds)
    if answer.status != "ok":
        if answer.status == "declined":
            engine.counters.kv_expired += 1
        else:
            engine.counters.failed_transfers += 1
        if config.failure_policy == "fail":
            raise LoadFailed
        return []
    values = _trim(engine, sequence, remote, answer, wanted)
    _file(engine, sequence, values, wanted)
    engine.counters.external_hits += wanted
    return values


async def _hang(engine: SimEngine) -> None:
    """What vLLM does with a request whose external tokens nobody loads: nothing, until its client leaves."""
    await engine.died.wait()
    raise ConnectionCut


async def _read(
    engine: SimEngine, sequence: Sequence, remote: Remote, wanted: int, seconds: float
) -> ReadAnswer:
    expiry = remote.expiry_s if engine.config.bidirectional and engine.config.expiry_field else None
    ask = KvRead(remote.engine_id, remote.request_id, remote.blocks, expiry)
    answer = await engine.fabric.read(remote.address, ask)
    if answer.status != "ok":
        return answer
    engine.counters.transfers += 1
    engine.counters.transferred_tokens += wanted
    engine.counters.transfer_s += seconds
    try:
        await engine.pause(sequence, seconds)
    finally:  # a transfer that has begun ends, and notifies, also when its request is gone
        engine.fabric.notify(remote.address, remote.engine_id, remote.request_id)
    return answer


def _trim(engine: SimEngine, sequence: Sequence, remote: Remote, answer: ReadAnswer, wanted: int) -> list[Kv]:
    """The end-trim: the last blocks of the remote list, as many as are missing here; then the judgement."""
    size, first = engine.config.block_size, sequence.hit_blocks
    total = sequence.loaded_tokens + wanted
    missing = -(-total // size) - first
    if answer.block_size != size:
        return _rechunk(engine, sequence, remote, answer, total)
    if missing > len(remote.blocks) or len(remote.groups) != engine.config.kv_groups:
        engine.corrupt(
            sequence, Corruption.BAD_TRIM, f"{missing} blocks missing, {len(remote.blocks)} offered"
        )
        engine.dead = True
        raise EngineDead
    skipped = len(remote.blocks) - missing
    counts = [min(size, total - index * size) for index in range(first, first + missing)]
    values = [cut(kv, count) for kv, count in zip(answer.kvs[skipped:], counts, strict=True)]
    expected = [
        cut(want, count)
        for want, count in zip(sequence.expected[first : first + missing], counts, strict=True)
    ]
    partial = answer.pinned_blocks != len(remote.blocks) or remote.num_tokens > len(sequence.prompt.ids)
    grouped = engine.config.kv_groups > 1 or engine.config.dcp_size > 1
    if partial and grouped and answer.kept == "kept":
        values = [garbage(b"another group", kv.value) for kv in values]
        engine.corrupt(sequence, Corruption.BAD_TRIM, "a cut handle, with more than one KV group or DCP rank")
    _judge(engine, sequence, answer, values, expected, misaligned=skipped != first)
    return values


def _judge(
    engine: SimEngine,
    sequence: Sequence,
    answer: ReadAnswer,
    values: list[Kv],
    expected: list[Kv],
    *,
    misaligned: bool,
) -> None:
    wrong = differing(values, expected)
    where = f"{len(values)} blocks pulled after {sequence.hit_blocks} cached ones"
    if answer.kept == "used":
        engine.corrupt(sequence, Corruption.REPLAYED, where)
    elif answer.kept != "kept":
        engine.corrupt(sequence, Corruption.EXPIRED_READ, f"{where}, {answer.kept}")
    elif misaligned:
        engine.corrupt(sequence, Corruption.BAD_TRIM, f"{where}, not the ones that are missing")
    elif wrong is not None and not sequence.corrupt:
        engine.corrupt(sequence, Corruption.FOREIGN_KV, f"{where}, wrong from the one at {wrong}")


def _rechunk(
    engine: SimEngine, sequence: Sequence, remote: Remote, answer: ReadAnswer, total: int
) -> list[Kv]:
    """Blocks of another size: sound only where nothing is cut, trimmed or cached here."""
    size, theirs = engine.config.block_size, answer.block_size
    own = [
        cut(want, min(size, total - index * size))
        for index, want in enumerate(sequence.expected)
        if index * size < total
    ]
    sound = (
        not sequence.hit_blocks and total == remote.num_tokens and len(remote.blocks) == -(-total // theirs)
    )
    content = sequence.prompt.content[:total].tobytes()
    expected = chain(content, theirs, origin(sequence.adapter))
    values = [cut(kv, want.tokens) for kv, want in zip(answer.kvs, expected, strict=False)]
    _judge(engine, sequence, answer, values, list(expected), misaligned=not sound)
    if sound and differing(values, expected) is None:
        return own
    missing = own[sequence.hit_blocks :]
    return [garbage(b"another size", kv.value) for kv in missing]


def _file(engine: SimEngine, sequence: Sequence, values: list[Kv], wanted: int) -> None:
    """Write what was pulled, and let later prompts find it under the hashes of *this* prompt (T1)."""
    size, first = engine.config.block_size, sequence.hit_blocks
    sequence.loaded_tokens += wanted
    for index, kv in enumerate(values, start=first):
        engine.pool.write(sequence.blocks[index], kv)
    for index in range(first, sequence.loaded_tokens // size):
        engine.pool.file(sequence.blocks[index], sequence.salt, sequence.expected[index])
