"""The routes of a simulated engine that generate nothing: /tokenize, /render, embeddings."""

from __future__ import annotations

import secrets
from array import array
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from router.sim.ask import chat_prompt, check_model, completion_prompts, missing, read_job
from router.sim.engine import SimEngine
from router.sim.faults import Fault
from router.sim.openai import Chunk
from router.sim.reply import Reply
from router.sim.sequence import Prompt
from router.sim.tokens import token_bytes

Fields = dict[str, Any]


async def tokenize(
    engine: SimEngine, path: str, _headers: Mapping[str, str], fields: Fields, _fault: Fault | None
) -> Reply:
    """The template and nothing else: what /tokenize does not know it leaves out."""
    check_model(fields, engine.config)
    if "messages" in fields:
        known = {key: fields[key] for key in _TOKENIZE_FIELDS if key in fields}
        prompt = chat_prompt(known, engine.config)
    else:
        if not isinstance(fields.get("prompt"), str):
            raise missing("prompt", fields)
        prompt = completion_prompts(fields)[0]
    strings = [token_bytes(token).decode("utf-8", "replace") for token in prompt.ids]
    return Reply.json(
        {
            "count": len(prompt.ids),
            "max_model_len": engine.config.max_model_len,
            "tokens": list(prompt.ids),
            "token_strs": strings if fields.get("return_token_strs") else None,
        }
    )


_TOKENIZE_FIELDS = (
    "messages",
    "add_generation_prompt",
    "continue_final_message",
    "chat_template",
    "chat_template_kwargs",
    "tools",
)


async def render(
    engine: SimEngine, path: str, _headers: Mapping[str, str], fields: Fields, _fault: Fault | None
) -> Reply:
    if engine.config.render == "403":
        hint = "Restart vllm serve with --enable-scale-out to enable them."
        return Reply.error(f"Scale-out endpoints are disabled. {hint}", 403, "PermissionDeniedError")
    chat = path.startswith("/v1/chat")
    job = read_job(fields, engine.config, chat=chat)
    rendered = [
        {
            "request_id": secrets.token_hex(16),
            "token_ids": list(prompt.ids),
            "features": _features(prompt),
            "sampling_params": {"max_tokens": job.ask.max_tokens},
            "model": job.model,
        }
        for prompt in job.prompts
    ]
    return Reply.json(rendered[0] if chat else rendered)


def _features(prompt: Prompt) -> Chunk | None:
    """Hashes of a prompt's media, where it has any."""
    if prompt.content is prompt.ids:
        return None
    media = array(
        "I", (seen for seen, token in zip(prompt.content, prompt.ids, strict=True) if seen != token)
    )
    return {"mm_hashes": {"image": [blake2b(media.tobytes(), digest_size=16).hexdigest()]}}


async def embeddings(
    engine: SimEngine, path: str, _headers: Mapping[str, str], fields: Fields, _fault: Fault | None
) -> Reply:
    model, _ = check_model(fields, engine.config)
    if "input" not in fields:
        raise missing("input", fields)
    prompts = completion_prompts({"prompt": fields["input"]})
    data = []
    for index, prompt in enumerate(prompts):
        raw = blake2b(prompt.content.tobytes(), digest_size=16).digest()
        vector = [byte / 255 - 0.5 for byte in raw]
        data.append({"index": index, "object": "embedding", "embedding": vector})
    count = sum(len(prompt.ids) for prompt in prompts)
    usage = {"prompt_tokens": count, "total_tokens": count, "completion_tokens": 0}
    return Reply.json({"id": "embd-sim", "object": "list", "model": model, "data": data, "usage": usage})
