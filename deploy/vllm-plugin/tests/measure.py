"""What stamping and checking cost, per 100,000 tokens: `python tests/measure.py [TOKENS]`.

Prints milliseconds, the least of several runs, for D's side (stamp) and P's side (check), with token digests
and with the engine's own hashes (which the engine computes anyway, and which are not counted). The least,
because what is above it is the machine's other work.
"""

import json
import random
import sys
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

from stand_in import PullScheduler  # noqa: E402

from boomerang_vllm import node, scheduler  # noqa: E402
from boomerang_vllm.settings import Settings  # noqa: E402

RUNS = 15


def least_ms(run: Callable[[], Any]) -> float:
    times = []
    for _ in range(RUNS):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return min(times) * 1000


def request(ids: list[int], hashes: list[bytes]) -> Any:
    """A request in plain attributes: the engine's own has no properties that take time either."""
    return SimpleNamespace(
        request_id="r",
        all_token_ids=ids,
        num_tokens=len(ids),
        num_prompt_tokens=len(ids),
        num_computed_tokens=len(ids) - 1,
        num_in_flight_tokens=0,
        block_hashes=hashes,
        mm_features=[],
        lora_request=None,
        cache_salt=None,
        prompt_embeds=None,
        kv_transfer_params=None,
    )


def measure(digests: str, tokens: int) -> str:
    ids = random.Random(7).choices(range(151_643), k=tokens + 1)  # noqa: S311 - reproducible noise
    hashes = [sha256(str(index).encode()).digest() for index in range(len(ids) // 16)]
    own = node.of(PullScheduler())
    hooks = scheduler._Hooks(Settings(digests=digests))
    held, leg = request(ids, hashes), request(ids, hashes)
    handle: dict[str, Any] = {
        "do_remote_decode": True,
        "remote_engine_id": "e",
        "remote_request_id": "r",
        "remote_host": "h",
        "remote_port": 1,
        "remote_num_tokens": tokens,
        "remote_block_ids": [list(range(-(-tokens // 16)))],
        "dcp_size": 1,
    }
    stamp_ms = least_ms(lambda: hooks._stamp(own, held, handle))
    leg.kv_transfer_params = json.loads(json.dumps(handle))
    check_ms = least_ms(lambda: hooks._check(own, leg))
    outcome = hooks._check(own, leg)
    if outcome.verified_tokens != tokens:
        sys.exit(f"verified {outcome.verified_tokens} of {tokens} tokens: {outcome.reason}")
    size_bytes = len(json.dumps(handle["boomerang"]))
    return f"{digests}: stamp {stamp_ms:.2f} ms, check {check_ms:.2f} ms, {size_bytes:,} bytes of stamp"


def main() -> None:
    tokens = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    sys.modules["vllm.v1.core.kv_cache_utils"] = SimpleNamespace(NONE_HASH=b"0" * 32)  # type: ignore[assignment]
    for digests in ("tokens", "blocks"):
        print(measure(digests, tokens))


if __name__ == "__main__":
    main()
