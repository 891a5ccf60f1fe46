"""The core of a simulated engine: scheduling, prefix cache, pulls and pins, as vLLM 0.32 does them.

The rules are those of ``nixl/pull_scheduler.py`` and ``pull_worker.py``. The engine itself never compares
tokens, just as vLLM does not; what it does besides is to compare the *values* of the blocks it uses with what
they ought to be, and to write down every difference (``corruptions``).
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections import deque
from random import getrandbits
from typing import Any, Final
from uuid import uuid4

from router.sim import kv_params, plugin
from router.sim.blocks import BlockPool, Kv, context_value, differing, extend, make
from router.sim.clock import Clock, RealClock
from router.sim.config import EXPIRY_MARGIN_S, EngineConfig
from router.sim.counters import Counters
from router.sim.fabric import Fabric, KvRead, LocalFabric, ReadAnswer
from router.sim.faults import FaultPlan
from router.sim.pins import Pin, Pins
from router.sim.pull import pull
from router.sim.record import AbortRecord, Corruption, CorruptionRecord, Received
from router.sim.sequence import ConnectionCut, EngineDead, LoadFailed, Prompt, Sequence, expected_blocks
from router.turn.digest import STAMP_FIELD

CLOCK_ZERO_S: Final = time.time() - time.monotonic()
"""When a real clock was at zero. A virtual one begins there, so that its restarts are apart, too."""


class SimEngine:
    """One simulated engine. Everything but ``prefill`` is immediate; one event loop."""

    def __init__(
        self, config: EngineConfig | None = None, *, fabric: Fabric | None = None, clock: Clock | None = None
    ) -> None:
        self.config = config or EngineConfig()
        self.fabric: Fabric = fabric or LocalFabric()
        self.clock: Clock = clock or RealClock()
        self.address = self.fabric.join(self, self.config.side_channel)
        self.faults = FaultPlan()
        self.corruptions: list[CorruptionRecord] = []
        self.aborts: list[AbortRecord] = []
        self.received: deque[Received] = deque(maxlen=1_000)
        self.open_requests: dict[str, int] = {}
        self.epoch = 0
        self._start()

    def _start(self) -> None:
        config = self.config
        self.engine_id = config.engine_id or str(uuid4())
        self.pool = BlockPool(config.num_blocks, config.block_size, caching=config.prefix_cache)
        self.pins = Pins()
        self.counters = Counters()
        self.dead = False
        self.running: dict[str, Sequence] = {}
        self.waiting: deque[tuple[Sequence, asyncio.Future[None]]] = deque()
        self.started_at_s = CLOCK_ZERO_S + self.clock.now()
        self.died: asyncio.Event = asyncio.Event()
        self._prefilling = asyncio.Lock()
        self._idle_from_s = 0.0

    def restart(self) -> None:
        """Forget everything but the records for tests; requests that are open break off."""
        self.died.set()
        waiting, self.epoch = list(self.waiting), self.epoch + 1
        self._start()
        for _, future in waiting:
            if not future.done():
                future.set_exception(ConnectionCut())

    def expire(self) -> None:
        """Free what is overdue."""
        for pin in self.pins.expired(self.clock.now()):
            self.counters.kv_expired += 1
            self._release(pin.blocks)

    def expire_all(self) -> None:
        """End the life of every pin now, whatever its deadline; for tests."""
        for pin in self.pins.expired(float("inf")):
            self._release(pin.blocks)

    # -- the life of a request ---------------------------------------------------------------------------

    def sequence(
        self,
        prompt: Prompt,
        *,
        answer_id: str,
        path: str,
        bound_tokens: int,
        params: dict[str, Any] | None = None,
        salt: str = "",
        adapter: str = "",
        stays: bool = False,
        fresh: bool = False,
        began_s: float | None = None,
    ) -> Sequence:
        """A request that is ready for ``prefill``. ``params`` become the engine's own copy.

        ``began_s``: when it came, where that was before now.
        """
        expected = expected_blocks(prompt, self.config.block_size, adapter)
        own = dict(params) if params else None
        verified = None
        if own and self.config.plugin and own.get("do_remote_decode"):
            verified = 0
            if kv_params.names_remote(own):
                checked = plugin.verify(own, prompt.content, adapter, self.config)
                own, verified = checked.params, checked.tokens
        if own:
            own.pop(STAMP_FIELD, None)
        return Sequence(
            request_id=f"{answer_id}-{getrandbits(32):08x}",
            path=path,
            prompt=prompt,
            params=own,
            salt=salt,
            adapter=adapter,
            bound_tokens=bound_tokens,
            epoch=self.epoch,
            at_s=self.clock.now() if began_s is None else began_s,
            expected=expected,
            stays=stays and not own and self.config.plugin,
            fresh=fresh,
            verified_tokens=verified,
        )

    async def prefill(self, sequence: Sequence) -> None:
        """Get a prompt's KV: from the prefix cache, from a peer, by computing. Sets its ``seed``.

        Raises EngineError or ConnectionCut; waits for ever where vLLM does (T7). Whoever calls has to end the
        sequence with ``finish`` or ``abort``.
        """
        self.check(sequence)
        self.expire()
        try:
            remote = kv_params.remote(sequence.params) if sequence.params else None
        except ValueError:
            raise LoadFailed from None
        if remote and sequence.params and sequence.params.get("do_remote_prefill"):
            sequence.notify_on_abort = True
            self.fabric.hold(remote.address, remote.engine_id, remote.request_id)
        await self._admit(sequence)
        sequence.phase = "prefill"
        pulled = await pull(self, sequence, remote)
        await self._compute(sequence, pulled)
        sequence.phase = "decode"

    def finish(self, sequence: Sequence, ids: array[int], *, by_stop_string: bool) -> dict[str, Any] | None:
        """End a request that has generated ``ids``; its params, if it leaves any behind."""
        self.check(sequence)
        sequence.phase = "done"
        self.running.pop(sequence.request_id, None)
        self._write_answer(sequence, ids)
        counters = self.counters
        counters.finished += 1
        counters.prompt_tokens += len(sequence.prompt.ids)
        counters.generation_tokens += len(ids)
        left = None if by_stop_string else self._pin(sequence, ids)
        if left is None:
            self._release(sequence.blocks)
        self._admit_waiting()
        return left

    def abort(self, sequence: Sequence) -> None:
        """End a request whose client has left. Nothing is kept; what has finished stays as it is."""
        if sequence.phase != "done":
            phase, now = sequence.phase, self.clock.now()
            self.aborts.append(AbortRecord(sequence.request_id, sequence.path, phase, now))
            self.drop(sequence)

    def drop(self, sequence: Sequence) -> None:
        """End a request that failed. Nothing is kept."""
        if sequence.epoch != self.epoch or sequence.phase == "done":
            return
        sequence.phase = "done"
        if sequence.notify_on_abort and sequence.params:
            self.refuse(sequence.params)
        self.running.pop(sequence.request_id, None)
        self._release(sequence.blocks)
        self._admit_waiting()

    def refuse(self, params: dict[str, Any]) -> None:
        """A decode that is turned away, or left before its read, frees P's blocks (T10)."""
        try:
            remote = kv_params.remote(params)
        except ValueError:
            return
        if remote and params.get("do_remote_prefill"):
            self.fabric.notify(remote.address, remote.engine_id, remote.request_id)

    def check(self, sequence: Sequence) -> None:
        """Raises EngineDead, or ConnectionCut for a request from before a restart."""
        if sequence.epoch != self.epoch:
            raise ConnectionCut
        if self.dead:
            raise EngineDead

    def corrupt(self, sequence: Sequence, kind: Corruption, detail: str) -> None:
        """Write a corruption down, each kind at most once per request."""
        if kind not in sequence.corrupt:
            sequence.corrupt.add(kind)
            self.corruptions.append(CorruptionRecord(kind, sequence.request_id, detail))

    async def pause(self, sequence: Sequence, seconds: float) -> None:
        """Let time pass for a request, less what the simulation itself has taken since the last time.

        Raises as ``check``.
        """
        if seconds > 0:
            sequence.at_s += seconds
            await self.clock.sleep(max(sequence.at_s - self.clock.now(), 0.0))
            self.check(sequence)

    # -- admission ---------------------------------------------------------------------------------------

    def _needed_blocks(self, sequence: Sequence) -> int:
        tokens = len(sequence.prompt.ids) + sequence.bound_tokens + self.config.overcount_tokens
        return -(-tokens // self.config.block_size)

    def _try_admit(self, sequence: Sequence) -> bool:
        if len(self.running) >= self.config.profile.concurrency:
            return False
        needed = self._needed_blocks(sequence)
        limit = 0 if sequence.fresh else (len(sequence.prompt.ids) - 1) // self.config.block_size
        hits = self.pool.hits(sequence.salt, sequence.expected, limit)
        rest = self.pool.allocate(needed - len(hits))
        if rest is None:
            self.pool.release(hits)
            return False
        sequence.blocks, sequence.hit_blocks = hits + rest, len(hits)
        sequence.loaded_tokens = len(hits) * self.config.block_size
        self.running[sequence.request_id] = sequence
        self.counters.cache_queries += len(sequence.prompt.ids)
        self.counters.cache_hits += sequence.loaded_tokens
        return True

    async def _admit(self, sequence: Sequence) -> None:
        if not self.waiting and self._try_admit(sequence):
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (sequence, future)
        self.waiting.append(entry)
        try:
            while not future.done():
                await self._until_room(future)
            future.result()
        finally:
            if entry in self.waiting:
                self.waiting.remove(entry)
        sequence.at_s = max(sequence.at_s, self.clock.now())
        self.check(sequence)

    async def _until_room(self, future: asyncio.Future[None]) -> None:
        """Wait for other requests to end, or for the next pin to expire."""
        deadline = self.pins.next_deadline()
        if deadline is None:
            await asyncio.wait({future})
            return
        sleeper = asyncio.ensure_future(self.clock.sleep(max(deadline - self.clock.now(), 0.001)))
        try:
            await asyncio.wait({future, sleeper}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleeper.cancel()
        self.expire()

    def _admit_waiting(self) -> None:
        while self.waiting and self._try_admit(self.waiting[0][0]):
            _, future = self.waiting.popleft()
            if not future.done():
                future.set_result(None)

    def _release(self, blocks: list[int]) -> None:
        self.pool.release(blocks)
        if self.waiting:
            self._admit_waiting()

    # -- computing ---------------------------------------------------------------------------------------

    async def _compute(self, sequence: Sequence, pulled: list[Kv]) -> None:
        size, pool, expected = self.config.block_size, self.pool, sequence.expected
        prompt_tokens = len(sequence.prompt.ids)
        hits = [pool.read(block) for block in sequence.blocks[: sequence.hit_blocks]]
        wrong = differing(hits, expected)
        if wrong is not None:
            self.corrupt(sequence, Corruption.TAINTED_CACHE, f"block {wrong} of {len(hits)} cached ones")
        computed = max(prompt_tokens - sequence.loaded_tokens, 1)
        sequence.cached_tokens = prompt_tokens - computed
        seconds = self.config.profile.prefill_s(computed)
        if seconds:
            async with self._prefilling:
                sequence.at_s = max(sequence.at_s, self._idle_from_s)
                await self.pause(sequence, seconds)
                self._idle_from_s = sequence.at_s
                self.counters.prefill_busy_s += seconds
        actual = extend(hits + pulled, expected, sequence.loaded_tokens, size)
        for index in range(sequence.hit_blocks, len(actual)):
            pool.write(sequence.blocks[index], actual[index])
        for index in range(sequence.hit_blocks, prompt_tokens // size):
            pool.file(sequence.blocks[index], sequence.salt, expected[index])
        sequence.seed, sequence.clean = context_value(actual, expected)
        self.counters.computed_tokens += computed

    def _write_answer(self, sequence: Sequence, ids: array[int]) -> None:
        """The KV of all generated tokens but the last, and its blocks in the prefix cache."""
        if len(ids) < 2:
            return
        size = self.config.block_size
        full = len(sequence.prompt.ids) // size
        content = (sequence.prompt.content[full * size :] + ids[:-1]).tobytes()
        right = wrong = sequence.expected[full - 1].value if full else sequence.expected[0].before
        if not sequence.clean:
            wrong = sequence.seed
        for index, offset in enumerate(range(0, len(content), size * 4), start=full):
            piece = content[offset : offset + size * 4]
            expected = make(right, piece)
            actual = expected if sequence.clean else make(wrong, piece)
            right, wrong = expected.value, actual.value
            self.pool.write(sequence.blocks[index], actual)
            if len(piece) == size * 4:
                self.pool.file(sequence.blocks[index], sequence.salt, expected)

    # -- what is left behind -----------------------------------------------------------------------------

    def _pin(self, sequence: Sequence, ids: array[int]) -> dict[str, Any] | None:
        config, params = self.config, sequence.params
        if not params and not sequence.stays:
            return None
        on_prefill = bool(params and params.get("do_remote_decode"))
        if not on_prefill and not config.bidirectional:
            return None
        real = len(sequence.prompt.ids) + max(len(ids) - 1, 0)
        tokens = real if on_prefill else real + config.overcount_tokens
        kept = -(-tokens // config.block_size)
        blocks = sequence.blocks[:kept]
        self._release(sequence.blocks[kept:])
        end = self.clock.now() + (config.lease_s if on_prefill else config.ttl_s)
        pin = Pin(
            sequence.request_id,
            blocks,
            tokens,
            end if sequence.tracked or sequence.stays else None,
            "prefill" if on_prefill else "decode",
        )
        self.pins.add(pin)
        left = kv_params.finished(
            as_prefill=on_prefill,
            groups=kv_params.clip_groups(blocks, config.kv_groups),
            engine_id=self.engine_id,
            request_id=sequence.request_id,
            address=self.address,
            dcp_size=config.dcp_size,
            num_tokens=tokens,
            expiry_s=None if on_prefill else end,
            expiry_field=config.expiry_field,
            push_mode=config.push_mode,
        )
        if on_prefill:
            left["remote_prefill_cached_tokens"] = sequence.cached_tokens
        if config.plugin:
            held = sequence.prompt.content + ids[:-1]
            verified = sequence.verified_tokens or 0
            left[STAMP_FIELD] = (
                plugin.report(verified) if on_prefill else plugin.stamp(held, sequence.adapter)
            )
        return left

    # -- the side that peers see -------------------------------------------------------------------------

    def serve_read(self, ask: KvRead) -> ReadAnswer:
        self.expire()
        if ask.engine_id != self.engine_id or self.dead:
            return ReadAnswer("engine_gone")
        if ask.expiry_s is not None and self.clock.now() + EXPIRY_MARGIN_S >= ask.expiry_s:
            return ReadAnswer("declined", block_size=self.config.block_size)
        state = self.pins.state(ask.request_id)
        pin = self.pins.by_request.get(ask.request_id)
        if pin is not None:
            pin.reads += 1
        kvs = tuple(self.pool.read(block) for block in ask.blocks)
        return ReadAnswer("ok", state, kvs, self.config.block_size, len(pin.blocks) if pin else 0)

    def serve_notify(self, engine_id: str, request_id: str) -> None:
        if engine_id != self.engine_id:
            return
        self.expire()
        pin = self.pins.free(request_id)
        if pin is None:
            self.counters.notifications_after_expiry += 1
        else:
            self._release(pin.blocks)

    def serve_hold(self, engine_id: str, request_id: str) -> None:
        self.expire()
        if engine_id == self.engine_id and (pin := self.pins.by_request.get(request_id)):
            pin.held = True
