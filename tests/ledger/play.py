"""Turns played against a ledger: made-up histories, handles and a clock."""

from collections.abc import Callable
from hashlib import blake2b
from itertools import count

from router.ledger.store import Found, Handle, Ledger, Put, Query, Trace
from router.turn.digest import chain

TTL_S = 470.0
MESSAGE_TOKENS = 100
MESSAGE_BYTES = 400
_serial = count(1)


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self, now_s: float = 1_000.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s

    def advance(self, by_s: float) -> None:
        self.now_s += by_s


Make = Callable[..., Ledger]
"""Keyword limits, each optional: max_branches, max_bytes, trace_ttl_s, max_siblings."""


def keys_of(*history: str, tenant: str = "t") -> tuple[bytes, ...]:
    """The boundaries of a history, chained as a lineage is."""
    keys, previous = [], tenant.encode()
    for message in history:
        previous = blake2b(previous + b"\0" + message.encode(), digest_size=16).digest()
        keys.append(previous)
    return tuple(keys)


def asking(
    *history: str, conversation: str = "", own_depth: int = 1, take_share: float = 0.5, tenant: str = "t"
) -> Query:
    """A turn that sends ``history``."""
    return Query(
        keys=keys_of(*history, tenant=tenant),
        sizes_bytes=tuple(MESSAGE_BYTES * depth for depth in range(1, len(history) + 1)),
        own_depth=own_depth,
        conversation=conversation,
        take_share=take_share,
    )


def handle_of(prompt_tokens: int, deadline_s: float, *, answer_tokens: int = 50) -> Handle:
    """A handle unlike any other."""
    return Handle(
        params=b'{"remote_request_id":"%d","remote_block_ids":[[1,2]]}' % next(_serial),
        decode="http://d:8200",
        engine_id="engine-1",
        tokens=prompt_tokens + answer_tokens,
        prompt_tokens=prompt_tokens,
        deadline_s=deadline_s,
        held=chain(range(prompt_tokens + answer_tokens)),
        media_depth=1,
    )


class Play:
    """Turns against one ledger, as the relay plays them."""

    def __init__(self, ledger: Ledger, clock: Clock) -> None:
        self.ledger, self.clock = ledger, clock

    async def find(self, query: Query) -> Found:
        found = await self.ledger.find(query)
        assert found is not None
        assert (found.handle is None) != (found.absence is None)
        return found

    async def finish(
        self, query: Query, found: Found | None, *, ttl_s: float = TTL_S, answer_tokens: int = 50
    ) -> tuple[str, Handle]:
        """End a turn well; its branch, and the handle it left behind."""
        depth = len(query.keys)
        handle = handle_of(depth * MESSAGE_TOKENS, self.clock.now_s + ttl_s, answer_tokens=answer_tokens)
        branch = await self.ledger.put(Put(query.keys, found, self.trace(depth), handle, query.conversation))
        return branch, handle

    async def turn(self, query: Query) -> tuple[Found | None, Handle]:
        found = await self.ledger.find(query)
        _, handle = await self.finish(query, found)
        return found, handle

    def trace(self, depth: int) -> Trace:
        return Trace(
            prefill="http://p:8100",
            decode="http://d:8200",
            prompt_tokens=depth * MESSAGE_TOKENS,
            prompt_bytes=depth * MESSAGE_BYTES,
            reused_tokens=0,
            computed_at_s=self.clock.now_s,
        )
