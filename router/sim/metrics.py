"""``/metrics`` of a simulated engine: the names and labels of vLLM's that a router reads."""

from collections.abc import Iterator

from router.sim.engine import SimEngine


def exposition(engine: SimEngine) -> str:
    """The Prometheus text of an engine, now."""
    return "\n".join(_lines(engine)) + "\n"


def _lines(engine: SimEngine) -> Iterator[str]:
    engine.expire()
    config, counters = engine.config, engine.counters
    labels = f'engine="0",model_name="{config.model}"'
    yield "# HELP process_start_time_seconds Start time of the process since unix epoch in seconds."
    yield "# TYPE process_start_time_seconds gauge"
    yield f"process_start_time_seconds {engine.started_at_s}"
    gauges = {
        "num_requests_running": len(engine.running),
        "num_requests_waiting": len(engine.waiting),
        "kv_cache_usage_perc": engine.pool.usage,
    }
    for name, value in gauges.items():
        yield f"# TYPE vllm:{name} gauge"
        yield f"vllm:{name}{{{labels}}} {float(value)}"
    totals: dict[str, float] = {
        "prefix_cache_queries": counters.cache_queries,
        "prefix_cache_hits": counters.cache_hits,
        "external_prefix_cache_hits": counters.external_hits,
        "prompt_tokens": counters.prompt_tokens,
        "generation_tokens": counters.generation_tokens,
        "nixl_num_failed_transfers": counters.failed_transfers,
        "nixl_num_kv_expired_reqs": counters.kv_expired,
        "nixl_num_notifications_after_expiry": counters.notifications_after_expiry,
    }
    for name, value in totals.items():
        yield f"# TYPE vllm:{name} counter"
        yield f"vllm:{name}_total{{{labels}}} {float(value)}"
    yield "# TYPE vllm:nixl_xfer_time_seconds summary"
    yield f"vllm:nixl_xfer_time_seconds_count{{{labels}}} {float(counters.transfers)}"
    yield f"vllm:nixl_xfer_time_seconds_sum{{{labels}}} {counters.transfer_s}"
    yield "# TYPE vllm:cache_config_info gauge"
    info = {
        "block_size": config.block_size,
        "effective_attention_block_size": config.block_size,
        "enable_prefix_caching": config.prefix_cache,
        "engine": 0,
        "kv_cache_size_tokens": config.num_blocks * config.block_size,
        "num_gpu_blocks": config.num_blocks,
        "prefix_caching_hash_algo": "sha256",
    }
    listed = ",".join(f'{name}="{value}"' for name, value in info.items())
    yield f"vllm:cache_config_info{{{listed}}} 1.0"
