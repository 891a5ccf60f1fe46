"""What a simulated engine is like: one frozen value per engine."""

from dataclasses import dataclass, field
from typing import Final, Literal

from router.sim.profiles import INSTANT, Profile
from router.sim.template import TemplateOptions

Version = Literal["0.32.0", "0.33.0"]
EXPIRY_MARGIN_S: Final = 5.0
"""How long before a handle's end P refuses to read it (vLLM's safety margin)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """An engine's switches; the defaults are a stock vLLM 0.32 with a connector that pulls both ways."""

    role: Literal["prefill", "decode", "both"] = "both"
    """A label for faults and metrics. The engine itself is both, as vLLM's ``kv_both`` is."""
    model: str = "sim-qwen3"
    adapters: tuple[str, ...] = ()
    """Names of LoRA adapters: models of their own to a client, and other KV."""
    version: Version = "0.32.0"
    engine_id: str | None = None
    """``remote_engine_id`` of every start; None for a fresh uuid at each, as vLLM does."""
    side_channel: tuple[str, int] | None = None
    """Host and port that peers read KV from; None lets the fabric or the server choose."""
    block_size: int = 16
    num_blocks: int = 16_384
    prefix_cache: bool = True
    max_model_len: int = 131_072

    bidirectional: bool = True
    """Off on a P, a handle with anything to pull hangs (T7); off on a D, there are no handles."""
    ttl_s: float = 480.0
    lease_s: float = 30.0
    recompute_threshold: int = 64
    """P does not pull fewer tokens than that, but D is notified."""
    expiry_field: bool = True
    """Off is an engine before 0.26: it names no end of a handle's life, and reads anyway (T4)."""
    failure_policy: Literal["fail", "recompute"] = "fail"
    push_mode: bool = False
    kv_groups: int = 1
    dcp_size: int = 1
    overcount_tokens: int = 0
    """How many positions past the real tokens ``remote_num_tokens`` counts (T9)."""

    plugin: bool = False
    """The engine-mode plugin: D stamps handles, P verifies and cuts them, any stream carries them."""
    plugin_refuse_unstamped: bool = False

    render: Literal["open", "403"] = "403"
    template: TemplateOptions = field(default_factory=TemplateOptions)
    reasoning: bool = False
    """The model thinks before it answers, and a reasoning parser is on."""
    retokenise: float = 0.0
    """Share of an answer's tokens that are not what its text encodes to, 0 to 1."""
    tool_rate: float = 0.5
    """How often an answer to a user message that may call tools does so."""
    answer_words: tuple[int, int] = (6, 24)
    prompt_tokens_details: bool = True
    """vLLM's ``--enable-prompt-tokens-details``."""
    keep_alive_s: int = 5
    profile: Profile = INSTANT
