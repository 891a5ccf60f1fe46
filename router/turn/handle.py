"""What may be done with a handle: accept it, send it whole, cut it, or leave it. Pure.

The rules of a cut (why they are needed: ``docs/engine-behaviour.md``): P trims the remote block list from its
end to the number of blocks it misses, so a handle that holds more than the prompt shares must be shortened
by us, tokens and blocks together, to whole blocks. That is sound only with one KV cache group, no decode
context parallelism, equal block sizes on both sides, and a block list that agrees with the token count.
Elsewhere a handle goes whole (the prompt is longer than what is held, and all is verified) or not at all.
"""

from dataclasses import dataclass
from enum import StrEnum

from router.engines import nixl
from router.ledger.store import Handle
from router.turn.digest import Digests
from router.values import value


class Unusable(StrEnum):
    """Why D's params of a finished turn are not kept."""

    NO_PARAMS = "no_params"
    NOT_A_HANDLE = "not_a_handle"
    PUSH_MODE = "push_mode"
    NO_EXPIRY = "no_expiry"
    """An engine from before 0.26, which would read freed blocks; usable once its TTL is set explicitly."""
    TOO_SHORT = "too_short"


@dataclass(frozen=True, slots=True)
class Lifetime:
    """How long D keeps the blocks of a handle, in seconds."""

    ttl_s: float
    margin_s: float
    """How much earlier than D we stop; P itself refuses the last 5 s."""
    explicit: bool = False
    """An operator set the TTL; only then are handles without an expiry of their own used."""


@value
class Finish:
    """What is known when a decode leg ended well. Times on the ledger's clock."""

    params: bytes | None
    decode: str
    sent_at_s: float
    """When the decode leg was sent: D cannot have finished before."""
    waited_from_s: float
    """When the read before the last one ended: D finished after that, if our reads keep up with D.

    Of an answer that is not streamed, when its headers came, which D sends as soon as it has finished.
    """
    prompt_tokens: int
    held: Digests | None
    media_depth: int
    started_at_s: float | None = None
    """When D's process started, as far as it is known."""


def accept(finish: Finish, lifetime: Lifetime, threshold_tokens: int) -> Handle | Unusable:
    """The handle of a finished turn, or why there is none worth keeping."""
    if finish.params is None:
        return Unusable.NO_PARAMS
    try:
        params = nixl.read(finish.params)
    except nixl.NotParams:
        return Unusable.NOT_A_HANDLE
    if params.push_mode:
        return Unusable.PUSH_MODE
    if not params.is_handle:
        return Unusable.NOT_A_HANDLE
    if not params.expires and not lifetime.explicit:
        return Unusable.NO_EXPIRY
    if params.tokens < max(threshold_tokens, 1):
        return Unusable.TOO_SHORT
    since_s = finish.waited_from_s if params.expires else finish.sent_at_s
    return Handle(
        params=finish.params,
        decode=finish.decode,
        engine_id=params.engine_id,
        tokens=params.tokens,
        prompt_tokens=min(finish.prompt_tokens, params.tokens),
        deadline_s=since_s + lifetime.ttl_s - lifetime.margin_s,
        started_at_s=finish.started_at_s,
        stamped=params.stamped,
        held=finish.held,
        media_depth=finish.media_depth,
    )


class Uncut(StrEnum):
    """Why a handle that is verified in part, or longer than the prompt, cannot be used."""

    DIVERGED = "diverged"
    """Too little of it is the prompt's own."""
    GROUPS = "kv_groups"
    CONTEXT_PARALLEL = "context_parallel"
    BLOCK_SIZE = "block_size"
    """Unknown, or different on the two sides."""
    BLOCK_COUNT = "block_count"


@dataclass(frozen=True, slots=True)
class Sendable:
    """A handle as it may go into a prefill leg."""

    params: bytes
    tokens: int
    """How many tokens P can read with it."""
    whole: bool


def fit(
    handle: Handle,
    *,
    proven_tokens: int,
    prompt_tokens: int,
    prefill_block: int | None,
    decode_block: int | None,
    threshold_tokens: int,
) -> Sendable | Uncut:
    """Shorten a handle to what is proven to be the prompt's.

    ``proven_tokens`` are the leading tokens that handle and prompt are known to share; tokens past them are
    never sent, whatever the handle claims to hold. P always keeps one token of the prompt to compute.
    """
    if proven_tokens >= handle.tokens and prompt_tokens > handle.tokens:
        if _miscounted(nixl.read(handle.params), decode_block):
            return Uncut.BLOCK_COUNT
        return Sendable(handle.params, handle.tokens, whole=True)
    shared = min(proven_tokens, prompt_tokens - 1, handle.tokens)
    if shared < threshold_tokens:
        return Uncut.DIVERGED
    params = nixl.read(handle.params)
    if len(params.block_counts) != 1:
        return Uncut.GROUPS
    if params.dcp_size != 1:
        return Uncut.CONTEXT_PARALLEL
    if not prefill_block or prefill_block != decode_block:
        return Uncut.BLOCK_SIZE
    if _miscounted(params, prefill_block):
        return Uncut.BLOCK_COUNT
    tokens = shared // prefill_block * prefill_block
    if tokens == 0 or tokens < threshold_tokens:
        return Uncut.DIVERGED
    return Sendable(nixl.cut(handle.params, tokens=tokens, block_size=prefill_block), tokens, whole=False)


def _miscounted(params: nixl.Params, block: int | None) -> bool:
    """Whether the block list does not fit the token count, as far as that can be told.

    P takes as many blocks as it misses from the list's end: of a list that is too long it reads the wrong
    ones, also of a whole handle, and one that is too short trips an assertion of the engine.
    """
    if not block or len(params.block_counts) != 1 or params.dcp_size != 1:
        return False
    return params.block_counts[0] != -(-params.tokens // block)
