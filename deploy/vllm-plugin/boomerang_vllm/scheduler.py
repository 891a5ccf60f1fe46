"""What is wrapped in vLLM's NIXL pull scheduler, which lives in the engine core process.

| method | here |
|---|---|
| ``get_num_new_matched_tokens`` | P: verify and cut a handle, once, before vLLM counts on it; D: ``stay`` |
| ``update_state_after_alloc`` | D: let vLLM track the pin of a turn that stays |
| ``request_finished`` | D: stamp the handle; P: report; a release leg pins nothing |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from boomerang_vllm import blocks, check, clock, content, cut, digest, guard, late, node
from boomerang_vllm.settings import Settings

_CLASSES = (
    ("vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_scheduler", "NixlPullConnectorScheduler"),
    ("vllm.distributed.kv_transfer.kv_connector.v1.nixl.scheduler", "NixlConnectorScheduler"),
)
STAY_FIELD = "boomerang_stay"
"""In ``vllm_xargs``: a decode-only turn wants a handle."""
_HELD_AS = "_boomerang_checked"
_MET_AS = "_boomerang_met"
_MET_S = 600.0
"""vLLM forgets an engine that it has not read from for an hour, by default."""
_MET_ENGINES = 1024
_HASHES_FIELD = "hashes"
_CACHED_FIELD = "remote_prefill_cached_tokens"
"""vLLM's own: prompt tokens that P did not compute. 0.32 has it, 0.29 does not yet."""
_CACHED_AS = "_boomerang_cached"
_USED = "_remote_blocks_processed"
"""vLLM's own mark on a handle whose read was begun."""

_Original = Callable[..., Any]


@dataclass(frozen=True)
class _Checked:
    """What became of a request's handle. On the request, which no client can write to."""

    tokens: int
    reason: str


def install(settings: Settings) -> bool:
    """Wrap the scheduler, once the process has it. False where it is not there."""

    def wrap(owner: type) -> None:
        hooks = _Hooks(settings)
        # All are looked up before one is replaced: half of it would be worse than nothing.
        wanted = (
            ("get_num_new_matched_tokens", ("request", "num_computed_tokens"), hooks.matched),
            ("update_state_after_alloc", ("request", "blocks", "num_external_tokens"), hooks.allocated),
            ("request_finished", ("request", "block_ids"), hooks.finished),
        )
        for name, parameters, _ in wanted:
            guard.method(owner, name, parameters)
        for name, parameters, make in wanted:
            guard.wrap(owner, name, parameters, make)

    return late.with_class("stamp and verify", _CLASSES, wrap)


class _Hooks:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._parts = settings.parts

    # -- before anything is read ---------------------------------------------------------------------------

    def matched(self, original: _Original) -> _Original:
        def get_num_new_matched_tokens(
            scheduler: Any, request: Any, *arguments: Any, **named: Any
        ) -> tuple[int | None, bool]:
            if "verify" in self._parts and cut.is_handle(request.kv_transfer_params):
                if request.kv_transfer_params.get(_USED):
                    # Preempted after the read, or the read failed: vLLM would count on a second one that it
                    # never begins. What it has lost is computed.
                    return 0, False
                self._verify(scheduler, request)
            elif "stay" in self._parts and request.kv_transfer_params is None:
                self._stay(scheduler, request)
            result: tuple[int | None, bool] = original(scheduler, request, *arguments, **named)
            _note_cached(request, arguments, named, result)
            return result

        return get_num_new_matched_tokens

    def _verify(self, scheduler: Any, request: Any) -> None:
        """Cut the handle in place. Whatever goes wrong here, nothing unverified is read with a stamp."""
        if hasattr(request, _HELD_AS):
            return
        params = request.kv_transfer_params
        try:
            own = node.of(scheduler)
        except guard.NotAsExpected as error:
            # Not reported as verified either, so the router does it.
            guard.say_once("node", "Boomerang: nothing is stamped or verified: %s", error)
            return
        try:
            outcome = self._check(own, request)
        except Exception as error:  # the engine must live on
            guard.say_once("verify", "Boomerang: a handle could not be verified, computing", error=error)
            outcome = check.Outcome(0, cut.nothing(None), "error")
        params.update(outcome.edits)
        setattr(request, _HELD_AS, _Checked(outcome.verified_tokens, outcome.reason))
        guard.log.debug(
            "Boomerang: handle of %s: %d tokens verified (%s)",
            request.request_id,
            outcome.verified_tokens,
            outcome.reason,
        )

    def _check(self, own: node.Node, request: Any) -> check.Outcome:
        def proven(stamp: digest.Stamp, wire: Mapping[str, Any]) -> int:
            if not content.is_whole(request):
                return 0
            count = request.num_prompt_tokens
            try:
                if stamp.kind == "blocks":
                    return 0 if own.hashing is None else _proven_blocks(stamp, wire, request, own.hashing)
                ids, media = content.tokens(request), content.media(request, stamp.stride)
                return digest.proven(stamp, ids, count, content.origin(request), media)
            except (digest.NotAStamp, OverflowError):
                return 0

        return check.check(
            request.kv_transfer_params,
            prompt_tokens=request.num_prompt_tokens,
            proven=proven,
            side=own.side,
            rules=check.Rules(
                can_read=own.can_read,
                takes_unstamped=self._settings.unstamped == "pass",
                drops_expired=self._settings.expired == "drop",
            ),
            now=clock.here(),
        )

    # -- a decode-only turn that wants a handle -------------------------------------------------------------

    def _stay(self, scheduler: Any, request: Any) -> None:
        """Give the request params without a direction: vLLM then pins it and returns a handle."""
        try:
            asked = (getattr(request.sampling_params, "extra_args", None) or {}).get(STAY_FIELD)
            if asked in (True, 1, "1", "true") and node.of(scheduler).pins:
                request.kv_transfer_params = {
                    "do_remote_prefill": False,
                    "do_remote_decode": False,
                    STAY_FIELD: True,
                }
        except Exception as error:  # a turn without a handle is no harm
            guard.say_once("stay", "Boomerang: a turn that stays gets no handle", error=error)

    def allocated(self, original: _Original) -> _Original:
        def update_state_after_alloc(scheduler: Any, request: Any, *arguments: Any, **named: Any) -> None:
            original(scheduler, request, *arguments, **named)
            params = request.kv_transfer_params
            if params and params.get(STAY_FIELD) is True and "stay" in self._parts:
                # Without it the worker never learns of the deadline, and the blocks stay pinned for ever.
                scheduler._reqs_in_batch.add(request.request_id)

        return update_state_after_alloc

    # -- when a request is finished --------------------------------------------------------------------------

    def finished(self, original: _Original) -> _Original:
        def request_finished(
            scheduler: Any, request: Any, *arguments: Any, **named: Any
        ) -> tuple[bool, dict[str, Any] | None]:
            if "release" in self._parts and self._is_release(scheduler, request):
                # As vLLM does with an aborted prefill: the worker forgets it, and its block is free at once.
                scheduler._reqs_not_processed.add(request.request_id)
                scheduler._reqs_need_save.pop(request.request_id, None)
                return False, None
            result: tuple[bool, dict[str, Any] | None]
            result = original(scheduler, request, *arguments, **named)
            _, params = result
            if params:
                try:
                    self._describe(scheduler, request, params)
                except Exception as error:  # a handle without a stamp is a cold turn
                    guard.say_once("stamp", "Boomerang: a handle could not be stamped", error=error)
            return result

        return request_finished

    def _is_release(self, scheduler: Any, request: Any) -> bool:
        """A prompt of one token with a handle: nothing can be read for it, and nobody will read from it.

        Not where P has not met that D lately. The handshake then still goes on, and an engine without a
        request stops in the middle of it and tells D nothing: the lease keeps it going.
        """
        if not hasattr(request, _HELD_AS) and not cut.is_handle(request.kv_transfer_params):
            return False
        is_met = self._meets(scheduler, request.kv_transfer_params)
        return (
            request.num_prompt_tokens == 1
            and is_met
            and hasattr(scheduler, "_reqs_not_processed")
            and hasattr(scheduler, "_reqs_need_save")
        )

    def _meets(self, scheduler: Any, params: Mapping[str, Any]) -> bool:
        """Note that P turns to the D of these params; whether it has before, or need not."""
        if not params.get("remote_block_ids"):
            return True
        met: dict[object, float] = scheduler.__dict__.setdefault(_MET_AS, {})
        engine, now_s = params.get("remote_engine_id"), clock.here().monotonic_s
        is_met = now_s - met.get(engine, -_MET_S) < _MET_S
        if len(met) >= _MET_ENGINES:
            met.clear()
        met[engine] = now_s
        return is_met

    def _describe(self, scheduler: Any, request: Any, params: dict[str, Any]) -> None:
        own = node.of(scheduler)
        if params.get("do_remote_decode"):
            if "stamp" in self._parts and params.get("remote_block_ids") and content.is_whole(request):
                self._stamp(own, request, params)
        elif params.get("do_remote_prefill") and "verify" in self._parts:
            params[digest.STAMP_FIELD] = self._report(own, request)
            cached = getattr(request, _CACHED_AS, None)
            if cached is not None:
                params.setdefault(_CACHED_FIELD, cached)

    def _report(self, own: node.Node, request: Any) -> dict[str, Any]:
        """What P says of a prefill leg, also of one without a handle: that is how it is known to verify."""
        checked: _Checked | None = getattr(request, _HELD_AS, None)
        report: dict[str, Any] = {
            "v": digest.STAMP_VERSION,
            "verified_tokens": checked.tokens if checked else 0,
            "bidirectional": own.can_read,
        }
        if checked:
            report["reason"] = checked.reason
        if own.hashing is not None:
            # D reads it in the decode leg, and stamps the engine's hashes only for one that hashes alike.
            report[_HASHES_FIELD] = own.hashing.root.hex()
        return report

    def _stamp(self, own: node.Node, request: Any, params: dict[str, Any]) -> None:
        held = content.held_tokens(request)
        edits = cut.trim(cut.claim(params), held, own.side.block_tokens, keeps_states=own.keeps_states)
        try:
            stamp = self._wire(own, request, held)
        except (digest.NotAStamp, OverflowError) as error:
            guard.log.debug("Boomerang: no stamp for %s: %s", request.request_id, error)
        else:
            stamp |= clock.stamped(own.ttl_s, clock.here())
            stamp[check.BLOCK_FIELD] = own.side.block_tokens
            params[digest.STAMP_FIELD] = stamp
        params.update(edits)

    def _wire(self, own: node.Node, request: Any, held: int) -> dict[str, Any]:
        """The stamp's digests. Raises NotAStamp where nothing can be said of the tokens."""
        if own.hashing is not None and self._stamps_blocks(own.hashing, request):
            # The lengths show that the block size of the hashes is what it is believed to be.
            if len(request.block_hashes) == request.num_tokens // own.hashing.block_tokens:
                stamp, last = blocks.stamp(request.block_hashes, held, own.hashing)
                more = {blocks.LAST_FIELD: last, blocks.REST_FIELD: _rest(own.hashing, request, held)}
                return stamp.to_wire() | more
            guard.say_once("blocks", "Boomerang: block hashes are not as expected, stamping token digests")
        ids, media = content.tokens(request), content.media(request, digest.STRIDE_TOKENS)
        return digest.chain(ids, held, content.origin(request), media).to_wire()

    def _stamps_blocks(self, hashing: blocks.Hashing, request: Any) -> bool:
        if self._settings.digests != "auto":
            return self._settings.digests == "blocks"
        if request.cache_salt:
            # The salt is in every hash, and the next turn may come without it or with another.
            return False
        said = (request.kv_transfer_params or {}).get(digest.STAMP_FIELD)
        return isinstance(said, dict) and said.get(_HASHES_FIELD) == hashing.root.hex()


def _note_cached(request: Any, arguments: tuple[Any, ...], named: Mapping[str, Any], result: Any) -> None:
    """Remember what P has itself and what it is about to read, for engines that do not tell."""
    own = named.get("num_computed_tokens", arguments[0] if arguments else None)
    if isinstance(result, tuple) and type(own) is int:
        setattr(request, _CACHED_AS, own + (result[0] or 0))


def _proven_blocks(
    stamp: digest.Stamp, wire: Mapping[str, Any], request: Any, hashing: blocks.Hashing
) -> int:
    count = request.num_prompt_tokens
    proven = blocks.proven(stamp, wire, request.block_hashes, count, hashing)
    said = wire.get(blocks.REST_FIELD)
    is_next = said and proven == stamp.tokens // hashing.block_tokens * hashing.block_tokens
    if is_next and count >= stamp.tokens and said == _rest(hashing, request, stamp.tokens):
        return stamp.tokens
    return proven


def _rest(hashing: blocks.Hashing, request: Any, held: int) -> str:
    """What is said of the tokens past the last full block; empty where nothing can be."""
    full = held // hashing.block_tokens
    try:
        ids = digest.little_endian(content.tokens(request)[full * hashing.block_tokens : held])
        media = content.media(request, hashing.block_tokens).get(full, b"")
    except (digest.NotAStamp, OverflowError):
        return ""
    return blocks.rest(request.block_hashes[:full][-1:], hashing, content.origin(request), ids, media)
