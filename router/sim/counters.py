"""What a simulated engine counts for ``/metrics``."""

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    kv_expired: int = 0
    """``vllm:nixl_num_kv_expired_reqs``: leases and handles that ran out, and reads declined for that."""
    notifications_after_expiry: int = 0
    failed_transfers: int = 0
    transfers: int = 0
    transferred_tokens: int = 0
    transfer_s: float = 0.0
    finished: int = 0
    prompt_tokens: int = 0
    computed_tokens: int = 0
    prefill_busy_s: float = 0.0
    """How long prompts were being computed, one at a time."""
    generation_tokens: int = 0
    cache_queries: int = 0
    cache_hits: int = 0
    external_hits: int = 0
