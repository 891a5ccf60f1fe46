"""How long a simulated engine takes.

``qwen3-32b`` and ``glm-5-fp8`` are lines through two published points each: 1P1D at 2,000 and 24,000 (GLM:
20,000) prompt tokens (the figures of vLLM's bi-directional KV transfer, two hosts with eight H200 each). They
are made of the figures without transfer, and of the transfer's own (``router/bench/published.py``; a test
compares). For Qwen3-32B:

* Prefill, total without reuse, 153 ms and 744 ms: (744 - 153) / 22,000 = 0.02686 ms a token, and
  153 - 2,000 * 0.02686 = 99.3 ms for any prefill.
* D to P, 30 ms and 130 ms: (130 - 30) / 22,000 = 0.004545 ms a token, and 30 - 2,000 * 0.004545 = 20.9 ms.
* P to D, and D's step to the first token: what the time to first token without reuse has over the prefill,
  158 - 153 = 5 ms and 778 - 744 = 34 ms: (34 - 5) / 22,000 = 0.001318 ms a token, and 2.4 ms.

20 ms per further output token is an assumption of ours: the source does not say.
"""

from dataclasses import dataclass, replace
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Durations in milliseconds. Prefill is one by one, decode is batched up to ``concurrency``."""

    prefill_ms: float = 0.0
    """What a prefill takes at least."""
    prefill_ms_per_token: float = 0.0
    """Per prompt token that is computed, not reused."""
    transfer_ms: float = 0.0
    """From D to P, the way back."""
    transfer_ms_per_token: float = 0.0
    delivery_ms: float = 0.0
    """From P to D, and D's step to the first token."""
    delivery_ms_per_token: float = 0.0
    output_ms_per_token: float = 0.0
    concurrency: int = 256
    """Requests that run at the same time; more of them wait."""

    def scaled(self, factor: float) -> "Profile":
        """The same engine, ``factor`` times as slow: for a machine that cannot keep up with the real one."""
        return replace(
            self,
            prefill_ms=self.prefill_ms * factor,
            prefill_ms_per_token=self.prefill_ms_per_token * factor,
            transfer_ms=self.transfer_ms * factor,
            transfer_ms_per_token=self.transfer_ms_per_token * factor,
            delivery_ms=self.delivery_ms * factor,
            delivery_ms_per_token=self.delivery_ms_per_token * factor,
            output_ms_per_token=self.output_ms_per_token * factor,
        )

    def prefill_s(self, tokens: int) -> float:
        """Seconds to compute ``tokens`` prompt tokens.

        A single one is what D computes of a prompt that P has delivered: part of the delivery.
        """
        return (self.prefill_ms + self.prefill_ms_per_token * tokens) / 1e3 if tokens > 1 else 0.0

    def transfer_s(self, tokens: int) -> float:
        """Seconds for P to pull the KV of ``tokens`` tokens from D."""
        return (self.transfer_ms + self.transfer_ms_per_token * tokens) / 1e3

    def delivery_s(self, tokens: int) -> float:
        """Seconds for D to pull the KV of ``tokens`` tokens from P."""
        return (self.delivery_ms + self.delivery_ms_per_token * tokens) / 1e3


INSTANT: Final = Profile()

PROFILES: Final[dict[str, Profile]] = {
    "instant": INSTANT,
    "qwen3-32b": Profile(
        prefill_ms=99.3,
        prefill_ms_per_token=0.02686,
        transfer_ms=20.9,
        transfer_ms_per_token=0.004545,
        delivery_ms=2.4,
        delivery_ms_per_token=0.001318,
        output_ms_per_token=20.0,
    ),
    "glm-5-fp8": Profile(
        prefill_ms=296.6,
        prefill_ms_per_token=0.10172,
        transfer_ms=20.0,
        transfer_ms_per_token=0.0045,
        # Nothing and 3 ms: the line would begin below zero, so it goes from there through the far point.
        delivery_ms=0.0,
        delivery_ms_per_token=0.00015,
        output_ms_per_token=20.0,
    ),
}
