"""Answers in vLLM's shapes: whole objects and stream chunks, chat and completions.

Key order, which keys are present as null, and where token ids and usage stand are those of vLLM 0.32.0.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from router.sim.ask import Job
from router.sim.config import EngineConfig
from router.sim.model import Answer, Delta
from router.sim.sequence import Prompt
from router.sim.tokens import decode, token_bytes

Chunk = dict[str, Any]


@dataclass(slots=True)
class Outcome:
    """One finished generation of a request."""

    index: int
    prompt: Prompt
    answer: Answer
    cached_tokens: int
    params: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Writer:
    """Writes the answer of one request."""

    job: Job
    config: EngineConfig
    answer_id: str
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def _fingerprint(self) -> str:
        return f"vllm-{self.config.version}-sim"

    # -- whole answers -----------------------------------------------------------------------------------

    def whole(self, outcomes: Sequence[Outcome], params: dict[str, Any] | None) -> Chunk:
        job = self.job
        choices = [self._chat_choice(o) if job.chat else self._text_choice(o) for o in outcomes]
        answer: Chunk = {
            "id": self.answer_id,
            "object": "chat.completion" if job.chat else "text_completion",
            "created": self.created,
            "model": job.model,
            "choices": choices,
            "service_tier": None,
            "system_fingerprint": self._fingerprint,
            "usage": self._usage(outcomes),
        }
        if job.chat:
            answer["prompt_logprobs"] = self._prompt_logprobs(outcomes[0].prompt)
            answer["prompt_token_ids"] = list(outcomes[0].prompt.ids) if job.return_token_ids else None
            answer["prompt_text"] = None
        return answer | {"kv_transfer_params": params, "ec_transfer_params": None, "metrics": None}

    def _chat_choice(self, outcome: Outcome) -> Chunk:
        answer = outcome.answer
        message: Chunk = {
            "role": "assistant",
            "content": answer.text("content") or None,
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
        }
        calls = answer.complete_calls()
        if calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in calls
            ]
        elif message["content"] is None and not answer.text("reasoning"):
            message["content"] = ""
        message["reasoning"] = answer.text("reasoning") or None
        return {
            "index": outcome.index,
            "message": message,
            "logprobs": self._chat_logprobs(answer.ids),
            "finish_reason": answer.client_reason,
            "stop_reason": answer.stop_reason,
            "token_ids": list(answer.ids) if self.job.return_token_ids else None,
            "routed_experts": None,
        }

    def _text_choice(self, outcome: Outcome) -> Chunk:
        answer, job, prompt = outcome.answer, self.job, outcome.prompt
        text = "".join(text for deltas in answer.deltas for _, _, text in deltas)
        ids = list(answer.ids)
        if job.echo:
            text, ids = decode(prompt.ids) + text, list(prompt.ids) + ids
        return {
            "index": outcome.index,
            "text": text,
            "logprobs": self._text_logprobs(ids, 0, first_is_prompt=job.echo),
            "finish_reason": answer.client_reason,
            "stop_reason": answer.stop_reason,
            "token_ids": list(answer.ids) if job.return_token_ids else None,
            "prompt_logprobs": self._prompt_logprobs(prompt),
            "prompt_token_ids": list(prompt.ids) if job.return_token_ids else None,
            "routed_experts": None,
        }

    # -- streams -----------------------------------------------------------------------------------------

    def _chunk(self, choices: list[Chunk]) -> Chunk:
        kind = "chat.completion.chunk" if self.job.chat else "text_completion"
        return {
            "id": self.answer_id,
            "object": kind,
            "created": self.created,
            "model": self.job.model,
            "choices": choices,
        }

    def opening(self, index: int, prompt: Prompt) -> Iterator[Chunk]:
        """What a chat stream begins with: the role."""
        if not self.job.chat:
            return
        delta = {"role": "assistant", "content": ""}
        chunk = self._chunk([{"index": index, "delta": delta, "logprobs": None, "finish_reason": None}])
        if self.job.continuous_usage:
            chunk["usage"] = self._running_usage(len(prompt.ids), 0)
        chunk["prompt_token_ids"] = list(prompt.ids) if self.job.return_token_ids else None
        yield chunk | {"prompt_text": None}

    def token(self, outcome: Outcome, at: int, finish_reason: str | None) -> Chunk | None:
        """The chunk of the answer's token ``at``; None where vLLM sends none for it."""
        choice = self._chat_token(outcome, at) if self.job.chat else self._text_token(outcome, at)
        if choice is None and finish_reason is None:
            return None
        choice = choice or {"index": outcome.index, "delta": {}, "logprobs": None, "finish_reason": None}
        choice["finish_reason"] = finish_reason
        if finish_reason is not None:
            choice["stop_reason"] = outcome.answer.stop_reason
        if self.job.chat:
            choice["token_ids"] = [outcome.answer.ids[at]] if self.job.return_token_ids else None
        chunk = self._chunk([choice])
        if finish_reason is not None and not self.job.include_usage:
            chunk["system_fingerprint"] = self._fingerprint
        if self.job.continuous_usage:
            chunk["usage"] = self._running_usage(len(outcome.prompt.ids), at + 1)
        return chunk

    def _chat_token(self, outcome: Outcome, at: int) -> Chunk | None:
        answer, ids = outcome.answer, outcome.answer.ids[at : at + 1]
        logprobs = self._chat_logprobs(ids)
        delta = self._delta(answer, at)
        parsed = self.config.reasoning or self.job.ask.tools
        if not delta:
            if parsed and logprobs is None and not self.job.return_token_ids:
                return None
            delta = {} if parsed else {"content": ""}
        return {"index": outcome.index, "delta": delta, "logprobs": logprobs, "finish_reason": None}

    def _delta(self, answer: Answer, at: int) -> Chunk:
        delta: Chunk = {}
        for kind, index, text in answer.deltas[at]:
            if kind in ("content", "reasoning"):
                delta[kind] = delta.get(kind, "") + text
            elif kind == "call":
                delta.setdefault("tool_calls", []).extend(self._call_deltas(answer, at, index, text))
        return delta

    def _call_deltas(self, answer: Answer, at: int, index: int, text: str) -> Iterator[Chunk]:
        if not any(_touches(deltas, index) for deltas in answer.deltas[:at]):
            call = answer.calls[index]
            function = {"name": call.name, "arguments": ""}
            yield {"id": call.id, "type": "function", "index": index, "function": function}
        yield {"index": index, "function": {"arguments": text}}

    def _text_token(self, outcome: Outcome, at: int) -> Chunk:
        answer, job, prompt = outcome.answer, self.job, outcome.prompt
        text = "".join(text for _, _, text in answer.deltas[at])
        ids, first = list(answer.ids[at : at + 1]), at == 0
        if job.echo and first:
            text, ids = decode(prompt.ids) + text, list(prompt.ids) + ids
        offset = 0 if first else len(decode(answer.ids[:at])) + (len(decode(prompt.ids)) if job.echo else 0)
        echoed = job.echo and first
        return {
            "index": outcome.index,
            "text": text,
            "logprobs": self._text_logprobs(ids, offset, first_is_prompt=echoed),
            "finish_reason": None,
            "stop_reason": None,
            "prompt_token_ids": list(prompt.ids) if first and job.return_token_ids else None,
            "token_ids": [answer.ids[at]] if job.return_token_ids else None,
        }

    def closing(self, outcomes: Sequence[Outcome]) -> Iterator[Chunk]:
        """The usage chunk, for those who asked for one."""
        if self.job.include_usage:
            usage = {key: value for key, value in self._usage(outcomes).items() if value is not None}
            yield self._chunk([]) | {"usage": usage, "system_fingerprint": self._fingerprint}

    def params_only(self, params: dict[str, Any]) -> Chunk:
        """A chunk without choices that carries the params, as the engine-mode plugin adds one."""
        return self._chunk([]) | {"kv_transfer_params": params}

    # -- numbers -----------------------------------------------------------------------------------------

    def _usage(self, outcomes: Sequence[Outcome]) -> Chunk:
        prompts = {outcome.index // self.job.n: len(outcome.prompt.ids) for outcome in outcomes}
        prompt, completion = sum(prompts.values()), sum(len(o.answer.ids) for o in outcomes)
        details = {"cached_tokens": outcomes[0].cached_tokens} if self.config.prompt_tokens_details else None
        return {
            "prompt_tokens": prompt,
            "total_tokens": prompt + completion,
            "completion_tokens": completion,
            "prompt_tokens_details": details,
            "completion_tokens_details": None,
        }

    @staticmethod
    def _running_usage(prompt: int, completion: int) -> Chunk:
        return {
            "prompt_tokens": prompt,
            "total_tokens": prompt + completion,
            "completion_tokens": completion,
            "completion_tokens_details": None,
        }

    def _chat_logprobs(self, ids: Sequence[int]) -> Chunk | None:
        if self.job.logprobs is None:
            return None
        content = []
        for token in ids:
            ranked = [_logprob_entry(*pair) for pair in _ranked(token, max(self.job.logprobs, 1))]
            content.append({**ranked[0], "top_logprobs": ranked[: self.job.logprobs]})
        return {"content": content}

    def _text_logprobs(self, ids: Sequence[int], offset: int, *, first_is_prompt: bool) -> Chunk | None:
        if self.job.logprobs is None:
            return None
        offsets, tokens, values, tops = [], [], [], []
        for at, token in enumerate(ids):
            ranked = _ranked(token, max(self.job.logprobs, 1))
            text = decode((token,), skip_specials=False)
            offsets.append(offset)
            tokens.append(text)
            known = not (first_is_prompt and at == 0)
            values.append(ranked[0][1] if known else None)
            tops.append({decode((t,), skip_specials=False): lp for t, lp in ranked} if known else None)
            offset += len(text)
        return {"text_offset": offsets, "token_logprobs": values, "tokens": tokens, "top_logprobs": tops}

    def _prompt_logprobs(self, prompt: Prompt) -> list[Chunk | None] | None:
        if self.job.prompt_logprobs is None:
            return None
        listed: list[Chunk | None] = [None]
        for token in prompt.ids[1:]:
            text = decode((token,), skip_specials=False)
            listed.append(
                {str(token): {"logprob": _ranked(token, 1)[0][1], "rank": 1, "decoded_token": text}}
            )
        return listed


def _touches(deltas: Sequence[Delta], index: int) -> bool:
    return any(kind == "call" and at == index for kind, at, _ in deltas)


def _ranked(token: int, count: int) -> list[tuple[int, float]]:
    """The token, and ``count - 1`` less likely ones: made up, but the same everywhere."""
    ranked = []
    for rank in range(count):
        raw = blake2b(token.to_bytes(4, "big") + bytes((rank,)), digest_size=4).digest()
        value = -(int.from_bytes(raw[:2], "big") % 100) / 1000 - rank
        other = 1 << 30 | 1 << 28 | (97 + raw[2] % 26) << 7 | (97 + raw[3] % 26)
        ranked.append((token if rank == 0 else other, value))
    return ranked


def _logprob_entry(token: int, logprob: float) -> Chunk:
    raw = token_bytes(token)
    return {"token": raw.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(raw)}
