"""The price of remembering: how much of a decode node's KV handles pin, and which one to give up first. Pure.

A decode node keeps the blocks of every finished turn until somebody reads them or its time to live is over.
What is kept is not there for running turns. So a share of each node's KV (``budget``) is the most that
handles may pin; above it those are released that would save least for the room that they take.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from router.fleet.node import Engine
from router.ledger.gaps import Gaps
from router.ledger.store import Candidate

FIXED_TOKENS: Final = 3_500
"""What going without a handle costs besides its tokens, in tokens. From the published points of vLLM's
bi-directional KV transfer (Qwen3-32B): a prefill takes 78.4 ms more than a pull whatever its length, and
22.3 us more for each token."""
RELEASE_FROM: Final = 0.85
"""Of the budget: release begins here, so that what comes until it takes effect stays within."""
URGENT_FROM: Final = 0.9
"""Of the budget: from here on no handle waits for a leg that it could ride along with."""


def capacity_tokens(engine: Engine) -> int | None:
    """How many tokens fit into a node's KV; None where its metrics do not tell."""
    if engine.num_blocks is None or engine.block_size is None:
        return None
    return engine.num_blocks * engine.block_size


def excess_tokens(
    pinned_tokens: int, capacity: int | None, budget: float, *, above: float = RELEASE_FROM
) -> int:
    """How many pinned tokens are to go; 0 where there are few enough, or nobody knows how many fit.

    ``budget`` is the share of ``capacity`` tokens that may be pinned, and ``above`` the share of that which
    is to be left, 0 to 1.
    """
    if capacity is None:
        return 0
    return max(pinned_tokens - int(capacity * budget * above), 0)


@dataclass(frozen=True, slots=True)
class Choice:
    """A handle to be released, and how likely its conversation was to come back for it, 0 to 1."""

    candidate: Candidate
    likelihood: float

    @property
    def loss(self) -> float:
        """What its release is expected to cost for the room that it makes."""
        tokens = max(self.candidate.tokens, 1)
        return self.likelihood * (tokens + FIXED_TOKENS) / tokens


def least_likely(candidates: Iterable[Candidate], gaps: Gaps, now_s: float) -> Choice | None:
    """The one of least expected loss per pinned token; of equals the one that has waited longest."""
    choices = [
        Choice(one, gaps.returns(one.finish, now_s - one.waits_since_s, one.deadline_s - now_s))
        for one in candidates
    ]
    return min(choices, key=lambda choice: (choice.loss, choice.candidate.waits_since_s), default=None)
