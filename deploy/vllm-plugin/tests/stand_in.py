"""A stand-in for the parts of vLLM that the plugin touches, in vLLM's own shapes.

It counts on a handle and begins a read as vLLM 0.32 does, so that what the plugin changes is seen in what
would have been read. Whether the real engine is as it is shown here is for ``tests/engine`` to say.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

BLOCK = 16
SCHEDULER = "vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_scheduler"
HASHES = "vllm.v1.core.kv_cache_utils"


def module(monkeypatch: pytest.MonkeyPatch, path: str, **names: Any) -> ModuleType:
    """Make a module importable by its path, with its parents."""
    parts = path.split(".")
    for depth in range(1, len(parts) + 1):
        name = ".".join(parts[:depth])
        if name not in sys.modules:
            made = ModuleType(name)
            made.__path__ = []
            monkeypatch.setitem(sys.modules, name, made)
    found = sys.modules[path]
    for name, value in names.items():
        monkeypatch.setattr(found, name, value, raising=False)
    return found


def block_hashes(ids: Sequence[int], first: bytes, salt: str | None) -> list[bytes]:
    made, previous = [], first
    for at in range(0, len(ids) - BLOCK + 1, BLOCK):
        extra = salt if at == 0 and salt else ""
        previous = sha256(previous + repr((list(ids[at : at + BLOCK]), extra)).encode()).digest()
        made.append(previous)
    return made


@dataclass
class Request:
    """vLLM's request, as far as it is looked at."""

    prompt: list[int]
    kv_transfer_params: dict[str, Any] | None = None
    output: list[int] = field(default_factory=list)
    request_id: str = "r-1"
    lora_request: Any = None
    cache_salt: str | None = None
    mm_features: list[Any] = field(default_factory=list)
    prompt_embeds: Any = None
    resumable: bool = False
    extra_args: dict[str, Any] | None = None
    num_in_flight_tokens: int = 0
    ahead: int = 0
    """Positions computed past the last token that has KV."""

    @property
    def sampling_params(self) -> Any:
        return SimpleNamespace(extra_args=self.extra_args)

    @property
    def all_token_ids(self) -> list[int]:
        return self.prompt + self.output

    @property
    def num_tokens(self) -> int:
        return len(self.all_token_ids)

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt)

    @property
    def num_computed_tokens(self) -> int:
        return self.num_tokens - 1 + self.ahead

    @property
    def block_hashes(self) -> list[bytes]:
        first = sys.modules[HASHES].NONE_HASH if HASHES in sys.modules else b""
        return block_hashes(self.all_token_ids, first, self.cache_salt)


class PullScheduler:
    """The three methods that are wrapped, as vLLM 0.32 has them, without the transfer itself."""

    def __init__(self, *, bidirectional: bool = True, algorithm: str = "sha256", groups: int = 1) -> None:
        self.block_size = BLOCK
        self.kv_cache_config = SimpleNamespace(kv_cache_groups=[object()] * groups, hash_block_size=BLOCK)
        self.vllm_config = SimpleNamespace(
            parallel_config=SimpleNamespace(decode_context_parallel_size=1),
            cache_config=SimpleNamespace(prefix_caching_hash_algo=algorithm),
        )
        self.is_bidirectional_kv_xfer_enabled = bidirectional
        self.decoder_kv_blocks_ttl = 480
        self.use_host_buffer = False
        self._has_mamba = False
        self._reqs_need_recv: dict[str, Any] = {}
        self._reqs_need_save: dict[str, Any] = {}
        self._reqs_in_batch: set[str] = set()
        self._reqs_not_processed: set[str] = set()

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int, bool]:
        params = request.kv_transfer_params
        if params and params.get("do_remote_decode") and params.get("remote_block_ids"):
            count = min(params["remote_num_tokens"], request.num_prompt_tokens) - num_computed_tokens
            if count >= 64:
                return count, True
        return 0, False

    def update_state_after_alloc(self, request: Request, blocks: Any, num_external_tokens: int) -> None:
        params = request.kv_transfer_params
        if not params:
            return
        if params.get("do_remote_decode"):
            self._reqs_in_batch.add(request.request_id)
            if self.is_bidirectional_kv_xfer_enabled and not params.get("_remote_blocks_processed"):
                if params.get("remote_block_ids"):
                    read = params["remote_block_ids"] if num_external_tokens else ()
                    self._reqs_need_recv[request.request_id] = read
                params["_remote_blocks_processed"] = True

    def request_finished(
        self, request: Request, block_ids: Sequence[Sequence[int]]
    ) -> tuple[bool, dict[str, Any] | None]:
        params = request.kv_transfer_params
        if not params:
            return False, None
        on_prefill = bool(params.get("do_remote_decode"))
        if not on_prefill and not self.is_bidirectional_kv_xfer_enabled:
            return False, None
        return True, {
            "do_remote_prefill": on_prefill,
            "do_remote_decode": not on_prefill,
            "remote_block_ids": tuple(list(group) for group in block_ids),
            "remote_engine_id": "engine",
            "remote_request_id": request.request_id,
            "remote_host": "127.0.0.1",
            "remote_port": 5600,
            "dcp_size": 1,
            "remote_num_tokens": request.num_computed_tokens,
            "remote_blocks_expiry_time": None if on_prefill else 9e18,
            "transfer_mode": "pull",
        }
