"""Two turns through one pair, and what shows whether they went right.

1. A cold turn, its answer not streamed. D's handle comes with it.
2. A small streamed turn: does the stream carry a handle?
3. The second turn: the tokens of the first, its answer's, and some more, with the handle.
4. The reference: the same tokens, computed under a ``cache_salt`` that nobody has used.
5. The handles that are left are released, and D's KV usage has to fall.

Where an engine's prefix cache would hide what was pulled, the second turn has a salt of its own. It cannot
have one where the engines verify, as a salt is part of their block hashes; there the first answer is so long
that P cannot have the rest in its cache.

Every handle is used or released. What a stock engine before 0.33 pins for a streamed turn nobody can release:
its handle is never seen. That turn is as small as a turn can be.
"""

from __future__ import annotations

import asyncio
import secrets
from array import array
from contextlib import suppress
from dataclasses import replace
from typing import Any

import msgspec

from router.check import prompts
from router.check.compare import answered, has_fallen, parting, sizes_differ
from router.check.exchange import Engines
from router.check.observed import (
    Assumed,
    Divergence,
    HandlePlace,
    LegSeen,
    PairSeen,
    ParamsSeen,
    ReleaseSeen,
    ReuseSeen,
    StreamSeen,
    TurnSeen,
)
from router.engines import nixl
from router.fleet.node import Node
from router.turn.handle import Finish, Lifetime, Sendable, Unusable, accept, fit
from router.turn.request import Endpoint, Request

RELEASE_WAIT_S = 4.0
"""How long D may take to free released blocks; on a running 0.32.0 it took less than 2 s."""
_POLL_S = 0.1
_CLEAN_UP_S = 10.0
_COMPARED_TOKENS = 16
_MORE_TOKENS = 8
_REFUSED = frozenset({400, 404, 405, 422, 501})
"""Answers of an engine whose model has no chat template, or that serves no chat."""


class _Stopped(Exception):
    """Nothing further can be tried with this pair; the text says why."""


async def play(engines: Engines, prefill: Node, decode: Node, *, model: str, assumed: Assumed) -> PairSeen:
    """Play both turns. Raises nothing but ``asyncio.CancelledError``; also then, handles are released."""
    turns = _Turns(engines, PairSeen(prefill, decode, model), assumed)
    try:
        await turns.run()
    finally:
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLEAN_UP_S):
                await turns.give_up()
    return turns.seen


class _Turns:
    """The turns of one pair. ``seen`` grows as they go on."""

    def __init__(self, engines: Engines, seen: PairSeen, assumed: Assumed) -> None:
        self.seen = seen
        self._engines, self._assumed = engines, assumed
        self._endpoint = Endpoint.CHAT
        self._held: list[ParamsSeen] = []
        """Handles that were neither used nor released."""
        self._token = 0
        """Some token of the model's."""
        self._second_ids = array("I")

    async def run(self) -> None:
        try:
            first = await self._first()
            await self._streamed()
            await self._second(first)
            await self._compare()
        except _Stopped as stopped:
            self.seen = replace(self.seen, stopped=str(stopped))
        if self._held:
            self.seen = replace(self.seen, release=await self._release())

    async def give_up(self) -> None:
        """Release what is left."""
        while self._held:
            await self._release_one(self._held.pop())

    # -- the first turn --------------------------------------------------------------------------------------

    async def _first(self) -> tuple[array[int], array[int]]:
        """The prompt's and the answer's tokens. Sets ``first`` and ``route``."""
        seen, nonce = self.seen, secrets.token_hex(8)
        request = self._opening(nonce, prompts.ANSWER_TOKENS)
        leg = await self._engines.prefill(seen.prefill, request, nixl.COLD_PARAMS, salt=None)
        if leg.status in _REFUSED:
            self._endpoint = Endpoint.COMPLETIONS
            request = self._opening(nonce, prompts.ANSWER_TOKENS)
            leg = await self._engines.prefill(seen.prefill, request, nixl.COLD_PARAMS, salt=None)
        self.seen = replace(self.seen, first=TurnSeen(leg))
        if not leg.is_good:
            raise _Stopped("the prefill node answers no prefill leg")
        if leg.params is None or not leg.params.read.do_remote_prefill:
            raise _Stopped("the prefill node gives no params to decode with")
        request = self._opening(nonce, self._answer_tokens(leg.params))
        decoded = await self._engines.decode(seen.decode, request, leg.params.raw, salt=None)
        self._keep(decoded)
        self.seen = replace(self.seen, first=TurnSeen(leg, decoded))
        asked = leg.answer.prompt_token_ids if leg.answer is not None else None
        self.seen = replace(self.seen, route=await self._engines.route(seen.prefill, request, asked))
        return self._tokens(asked, decoded)

    def _tokens(self, asked: array[int] | None, decoded: LegSeen) -> tuple[array[int], array[int]]:
        """Prompt and answer, where they are fit to go on with."""
        if not decoded.is_good or decoded.answer is None:
            raise _Stopped("the decode node answers no decode leg")
        if decoded.params is None:
            raise _Stopped("the decode node returns no handle")
        if decoded.params.read.push_mode:
            raise _Stopped("handles of a connector in push mode cannot be reused")
        given, read = decoded.answer.answer_token_ids, decoded.answer.prompt_token_ids
        if not asked or not given or not read:
            raise _Stopped("the engines return no token ids (return_token_ids)")
        if asked != read:
            raise _Stopped("both nodes read the same request as different tokens")
        self._token = asked[0]
        return asked, given

    def _opening(self, nonce: str, max_tokens: int) -> Request:
        seen = self.seen
        sizes = [size for size in (seen.prefill.engine.block_size, seen.decode.engine.block_size) if size]
        tokens = prompts.wanted_tokens(self._assumed.threshold_tokens, max(sizes, default=None))
        return prompts.opening(self._endpoint, seen.model, nonce=nonce, tokens=tokens, max_tokens=max_tokens)

    def _answer_tokens(self, params: ParamsSeen) -> int:
        """So many that a P that verifies has to pull: its own cache may hold the prompt, never the answer."""
        engine = self.seen.prefill.engine
        if params.read.verified_tokens is None or engine.prefix_cache is False:
            return prompts.ANSWER_TOKENS
        return self._assumed.threshold_tokens + (engine.block_size or prompts.UNKNOWN_BLOCK_TOKENS) + 1

    # -- the streamed turn -----------------------------------------------------------------------------------

    async def _streamed(self) -> None:
        seen = self.seen
        request = prompts.opening(
            self._endpoint, seen.model, nonce=secrets.token_hex(8), tokens=2, max_tokens=4, stream=True
        )
        leg = await self._engines.prefill(seen.prefill, request, nixl.COLD_PARAMS, salt=None)
        if leg.params is None:
            self.seen = replace(seen, streamed=StreamSeen(TurnSeen(leg), HandlePlace.NONE))
            return
        streamed, place = await self._engines.stream(seen.decode, request, leg.params.raw, salt=None)
        self._keep(streamed)
        self.seen = replace(seen, streamed=StreamSeen(TurnSeen(leg, streamed), place))

    # -- the second turn -------------------------------------------------------------------------------------

    async def _second(self, first: tuple[array[int], array[int]]) -> None:
        prompt, answer = first
        held = prompt + answer
        ids = held + prompt[-_MORE_TOKENS:]
        sendable = self._sendable(len(prompt), len(held), len(ids))
        if not isinstance(sendable, Sendable):
            self.seen = replace(self.seen, unfit=sendable)
            raise _Stopped(f"the handle cannot be sent: {sendable}")
        seen, by_engine = self.seen, self.seen.by_engine
        self._second_ids = ids
        request = prompts.by_ids(seen.model, ids, max_tokens=_COMPARED_TOKENS)
        salt = None if by_engine else secrets.token_hex(16)
        handle = self._held.pop(0)
        leg = await self._engines.prefill(seen.prefill, request, sendable.params, salt=salt)
        reuse = ReuseSeen(
            turn=TurnSeen(leg),
            by_engine=by_engine,
            prompt_tokens=len(ids),
            sent_tokens=sendable.tokens,
            local_tokens=self._local_tokens(len(prompt)) if by_engine else 0,
        )
        self.seen = replace(seen, second=reuse)
        if not leg.is_good or leg.params is None:
            # D may not have been told; released, a handle reads nothing, so this is safe also if it has.
            self._held.append(handle)
            if leg.timed_out:
                others = await self._engines.post(
                    seen.prefill, prompts.COMPLETIONS_PATH, prompts.bare(seen.model, self._token)
                )
                self.seen = replace(seen, second=replace(reuse, serves_others=others.is_good))
            raise _Stopped("the prefill leg with the handle failed")
        decoded = await self._engines.decode(seen.decode, request, leg.params.raw, salt=salt)
        self._keep(decoded)
        self.seen = replace(seen, second=replace(reuse, turn=TurnSeen(leg, decoded)))
        if not decoded.is_good:
            raise _Stopped("the decode leg of the second turn failed")
        self.seen = replace(self.seen, reference=await self._cold(request))

    def _sendable(self, prompt_tokens: int, held_tokens: int, new_prompt_tokens: int) -> Sendable | str:
        """The first handle as it may go to P; or why not. By the router's own rules."""
        seen, assumed = self.seen, self._assumed
        handle, first = seen.handle, seen.first
        if handle is None or first is None or first.decode is None:
            return Unusable.NO_PARAMS
        prefill, decode = seen.prefill.engine, seen.decode.engine
        if sizes_differ(prefill, decode) and prefill.prefix_cache is not False:
            return "block_size"
        lifetime = Lifetime(assumed.ttl_s, margin_s=0.0, explicit=True)
        finish = Finish(
            params=handle.raw,
            decode=seen.decode.key,
            sent_at_s=first.decode.began_s,
            waited_from_s=first.decode.began_s,
            prompt_tokens=prompt_tokens,
            held=None,
            media_depth=0,
        )
        accepted = accept(finish, lifetime, assumed.threshold_tokens)
        if isinstance(accepted, Unusable):
            return accepted
        if seen.by_engine:
            return Sendable(accepted.params, accepted.tokens, whole=True)
        return fit(
            accepted,
            proven_tokens=held_tokens - 1,  # the last token of an answer has no KV yet
            prompt_tokens=new_prompt_tokens,
            prefill_block=prefill.block_size,
            decode_block=decode.block_size,
            threshold_tokens=assumed.threshold_tokens,
        )

    def _local_tokens(self, prompt_tokens: int) -> int:
        engine = self.seen.prefill.engine
        if engine.prefix_cache is False:
            return 0
        return prompt_tokens // engine.block_size * engine.block_size if engine.block_size else prompt_tokens

    # -- the reference ---------------------------------------------------------------------------------------

    async def _cold(self, request: Request) -> TurnSeen:
        """The same request, computed where no cache can help."""
        seen, salt = self.seen, secrets.token_hex(16)
        leg = await self._engines.prefill(seen.prefill, request, nixl.COLD_PARAMS, salt=salt)
        if leg.params is None:
            return TurnSeen(leg)
        decoded = await self._engines.decode(seen.decode, request, leg.params.raw, salt=salt)
        self._keep(decoded)
        return TurnSeen(leg, decoded)

    async def _compare(self) -> None:
        seen = self.seen
        if seen.second is None or seen.reference is None:
            return
        at = parting(seen.second.turn, seen.reference)
        if at is None:
            return
        request = prompts.by_ids(seen.model, self._second_ids, max_tokens=_COMPARED_TOKENS, logprobs=2)
        again = await self._cold(request)
        expected, got = answered(seen.reference), answered(again)
        same = got is not None and expected is not None and got[: at + 1] == expected[: at + 1]
        gap = _gap(again.decode.body, at) if same and again.decode is not None else None
        self.seen = replace(seen, divergence=Divergence(at, same, gap))

    # -- early release ---------------------------------------------------------------------------------------

    def _keep(self, leg: LegSeen) -> None:
        if leg.params is not None and leg.params.read.is_handle:
            self._held.append(leg.params)

    async def _release(self) -> ReleaseSeen:
        """Release all handles that are left, and watch D's KV usage."""
        node, loads = self.seen.decode, [await self._engines.load(self.seen.decode)]
        count = len(self._held)
        blocks = sum(sum(handle.read.block_counts) for handle in self._held)
        faults = []
        while self._held:
            leg = await self._release_one(self._held.pop())
            if leg.fault:
                faults.append(leg.fault)
            if leg.timed_out:
                self._held.clear()  # a P that does not answer will not take the others either
        share = blocks / node.engine.num_blocks if node.engine.num_blocks else None
        before, began_s = loads[0].kv_usage, self._engines.now()
        waited_s = 0.0
        hung = self.seen.second is not None and self.seen.second.turn.prefill.timed_out
        while before is not None and share is not None and not faults and not hung:
            loads.append(await self._engines.load(node))
            waited_s = self._engines.now() - began_s
            usage = loads[-1].kv_usage
            if waited_s > RELEASE_WAIT_S or usage is None or has_fallen(before, usage, share):
                break
            await asyncio.sleep(_POLL_S)
        return ReleaseSeen(
            handles=count,
            pinned_share=share,
            before=before,
            after=loads[-1].kv_usage if len(loads) > 1 else None,
            waited_s=waited_s,
            is_busy=any((load.running or 0) + (load.waiting or 0) > 0 for load in loads),
            fault=faults[0] if faults else "",
        )

    async def _release_one(self, handle: ParamsSeen) -> LegSeen:
        request = prompts.by_ids(self.seen.model, [self._token], max_tokens=1)
        return await self._engines.prefill(self.seen.prefill, request, nixl.released(handle.raw), salt=None)


def _gap(body: bytes, at: int) -> float | None:
    """How far the two best log-probabilities of a completion's token ``at`` are apart; None if not told."""
    try:
        document: Any = msgspec.json.decode(body)
        told = document["choices"][0]["logprobs"]["top_logprobs"][at]
        best = sorted((float(value) for value in told.values()), reverse=True)
        return best[0] - best[1]
    except (msgspec.MsgspecError, RecursionError, LookupError, TypeError, ValueError, AttributeError):
        return None
