"""A prefill and a decode engine in process, with a third one to compare with, and a naive hand-over."""

import json
from typing import Any

from router.engines.upstream import Call
from router.sim.clock import VirtualClock
from router.sim.config import EngineConfig
from router.sim.engine import SimEngine
from router.sim.fabric import LocalFabric
from router.sim.upstream import SimUpstream

CHAT = "/v1/chat/completions"
COLD: dict[str, Any] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
Message = dict[str, Any]


def system(words: int = 400) -> Message:
    return {"role": "system", "content": " ".join(f"rule{i}" for i in range(words))}


def user(text: str = "what now, then?") -> Message:
    return {"role": "user", "content": text}


class Pool:
    """``options`` configure both engines; ``prefill`` and ``decode`` one of them on top."""

    def __init__(
        self,
        *,
        prefill: dict[str, Any] | None = None,
        decode: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.clock, fabric = VirtualClock(), LocalFabric()
        configs = {
            "p": EngineConfig(role="prefill", **{**options, **(prefill or {})}),
            "d": EngineConfig(role="decode", **{**options, **(decode or {})}),
            "x": EngineConfig(**{**options, **(decode or {})}),
        }
        self.engines = {
            name: SimEngine(config, fabric=fabric, clock=self.clock) for name, config in configs.items()
        }
        self.p, self.d, self.x = self.engines.values()
        self.upstream = SimUpstream(self.engines)

    async def post(self, at: str, body: dict[str, Any], path: str = CHAT) -> tuple[int, dict[str, Any]]:
        answer = await self.upstream.send(at, Call("POST", path, (), json.dumps(body).encode()))
        return answer.status, json.loads(answer.body)

    async def ask(self, at: str, body: dict[str, Any], path: str = CHAT) -> dict[str, Any]:
        status, answer = await self.post(at, body, path)
        assert status == 200, answer
        return answer

    async def prefill(self, messages: list[Message], handle: object = None, **fields: Any) -> dict[str, Any]:
        return await self.ask(
            "p", {"messages": messages, "max_tokens": 1, "kv_transfer_params": handle or COLD, **fields}
        )

    async def turn(
        self, messages: list[Message], handle: object = None, **fields: Any
    ) -> tuple[Message, dict[str, Any]]:
        """Both legs of a turn; the answer's message and the handle."""
        first = await self.prefill(messages, handle, **fields)
        params = first["kv_transfer_params"]
        answer = await self.ask("d", {"messages": messages, "kv_transfer_params": params, **fields})
        return answer["choices"][0]["message"], answer["kv_transfer_params"]

    async def direct(self, messages: list[Message], **fields: Any) -> Message:
        """What an engine says that computes all by itself, with nothing in its cache."""
        self.x.pool.clear()
        answer = await self.ask("x", {"messages": messages, **fields})
        message: Message = answer["choices"][0]["message"]
        return message

    def kinds(self) -> set[str]:
        """Every kind of corruption that any engine has seen."""
        return {record.kind for engine in self.engines.values() for record in engine.corruptions}

    def reused(self, answer: dict[str, Any]) -> int:
        tokens: int = answer["kv_transfer_params"]["remote_prefill_cached_tokens"]
        return tokens
