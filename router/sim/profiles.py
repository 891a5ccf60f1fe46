"""How long a simulated engine takes.

``qwen3-32b`` is a line through two published points each (Qwen3-32B, 1P1D, prefill totals without reuse and
KV transfer times, at 2,000 and 24,000 prompt tokens):

* prefill 153 ms and 744 ms: (744 - 153) / 22,000 = 0.02686 ms a token, and 153 - 2,000 * 0.02686 = 99.3 ms;
* transfer 30 ms and 130 ms: (130 - 30) / 22,000 = 0.004545 ms a token, and 30 - 2,000 * 0.004545 = 20.9 ms.

The same figures serve both directions of a transfer. 20 ms per output token is an assumption of ours: the
source does not say.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Durations in milliseconds. Prefill is one by one, decode is batched up to ``concurrency``."""

    prefill_ms: float = 0.0
    """What a prefill takes at least."""
    prefill_ms_per_token: float = 0.0
    """Per prompt token that is computed, not reused."""
    transfer_ms: float = 0.0
    transfer_ms_per_token: float = 0.0
    output_ms_per_token: float = 0.0
    concurrency: int = 256
    """Requests that run at the same time; more of them wait."""

    def prefill_s(self, tokens: int) -> float:
        """Seconds to compute ``tokens`` prompt tokens; a single one is an output step of a running batch."""
        if tokens <= 1:
            return self.output_ms_per_token / 1e3
        return (self.prefill_ms + self.prefill_ms_per_token * tokens) / 1e3

    def transfer_s(self, tokens: int) -> float:
        """Seconds to move the KV of ``tokens`` tokens; nothing to move takes no time."""
        return (self.transfer_ms + self.transfer_ms_per_token * tokens) / 1e3 if tokens else 0.0


INSTANT: Final = Profile()

PROFILES: Final[dict[str, Profile]] = {
    "instant": INSTANT,
    "qwen3-32b": Profile(
        prefill_ms=99.3,
        prefill_ms_per_token=0.02686,
        transfer_ms=20.9,
        transfer_ms_per_token=0.004545,
        output_ms_per_token=20.0,
    ),
}
