"""Pools of engines as they are found in the field, for each way of verifying."""

from dataclasses import dataclass, fields, replace
from random import Random
from typing import Any, Final, Literal

from router.sim.config import EngineConfig
from router.sim.profiles import Profile
from router.sim.template import TemplateOptions
from tests.e2e.asks import ADAPTER

Mode = Literal["engine", "router", "auto", "lineage"]

BRISK: Final = Profile(
    prefill_ms=2.0,
    prefill_ms_per_token=0.01,
    transfer_ms=1.0,
    transfer_ms_per_token=0.002,
    output_ms_per_token=2.0,
)
"""Fast, but not in no time: turns that run at the same time take each other's place at every step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """A router's settings, and the engines behind it."""

    verify: Mode
    prefills: tuple[EngineConfig, ...]
    decodes: tuple[EngineConfig, ...]
    ttl_s: float = 60.0
    margin_s: float = 10.0
    answer_tokens: bool = True
    take_share: float = 0.5
    max_branches: int = 100_000
    policy: str = "sticky"
    stay_max_tokens: int = 0


def pair(verify: Mode, **engine: Any) -> Setup:
    """One P and one D of the same kind. ``engine`` are members of ``EngineConfig``."""
    usual = EngineConfig(profile=BRISK, ttl_s=60.0, render="open", plugin=verify == "engine")
    config = replace(usual, **engine)
    return Setup(
        verify=verify,
        prefills=(replace(config, role="prefill"),),
        decodes=(replace(config, role="decode"),),
    )


def drawn(verify: Mode, random: Random) -> Setup:
    """A pool with traits of its own: versions, block sizes, caches, templates, counting, plugins."""
    block_size = random.choice((16, 16, 16, 128))
    common = EngineConfig(
        profile=random.choice((BRISK, replace(BRISK, output_ms_per_token=0.0))),
        answer_words=(3, 16),
        version=random.choice(("0.32.0", "0.33.0", "0.33.0")),
        block_size=block_size,
        num_blocks=random.choice((16_384, 2_400)) * 16 // block_size,
        prefix_cache=random.random() < 0.75,
        ttl_s=60.0,
        expiry_field=random.random() < 0.9,
        failure_policy="fail" if random.random() < 0.9 else "recompute",
        kv_groups=random.choice((1, 1, 1, 1, 2)),
        dcp_size=random.choice((1,) * 15 + (2,)),
        adapters=(ADAPTER,),
        overcount_tokens=random.choice((0, 0, 0, 1, 5)),
        plugin=verify == "engine",
        render=random.choice(("open", "403")),
        template=TemplateOptions(strip_reasoning=random.random() < 0.7),
        reasoning=random.random() < 0.5,
        retokenise=random.choice((0.0, 0.0, 0.02, 0.3, 1.0)),
    )
    size = random.choice((1, 1, 2))
    other_block = random.choice((16, 128))
    prefill_block = block_size if random.random() < 0.8 else other_block
    prefill = replace(
        common,
        role="prefill",
        block_size=prefill_block,
        num_blocks=common.num_blocks * block_size // prefill_block,
        prefix_cache=random.random() < 0.8,
    )
    # D's own cache and P's larger or smaller blocks do not go together in any pool, with or without a router.
    decode = replace(common, role="decode", prefix_cache=common.prefix_cache and prefill_block == block_size)
    trait = random.random()
    if trait < 0.04:
        decode = replace(decode, push_mode=True)
    elif trait < 0.08:
        prefill = replace(prefill, bidirectional=False)
    if verify == "auto":
        size = 2
    prefills, decodes = (prefill,) * size, (decode,) * size
    if verify == "auto":
        prefills = tuple(replace(c, plugin=at == 0) for at, c in enumerate(prefills))
        decodes = tuple(replace(c, plugin=random.random() < 0.5) for c in decodes)
    return Setup(
        verify=verify,
        prefills=prefills,
        decodes=decodes,
        answer_tokens=random.random() < 0.85,
        take_share=random.choice((0.01, 0.5)),
        max_branches=random.choice((100_000, 100_000, 12)),
        policy=random.choice(("planned", "planned", "planned", "round_robin", "least_load", "sticky")),
        stay_max_tokens=random.choice((0, 256)),
    )


def told(setup: Setup) -> str:
    """A setup in few words: what is not as usual."""
    parts = [f"verify={setup.verify}, ttl_s={setup.ttl_s:g}, answer_tokens={setup.answer_tokens}"]
    parts.append(f"policy={setup.policy}, stay_max_tokens={setup.stay_max_tokens}")
    for config in (*setup.prefills, *setup.decodes):
        usual = EngineConfig(profile=BRISK, ttl_s=60.0, adapters=(ADAPTER,))
        odd = [
            f"{one.name}={getattr(config, one.name)}"
            for one in fields(config)
            if getattr(config, one.name) != getattr(usual, one.name)
        ]
        parts.append(", ".join(odd))
    return "; ".join(parts)
