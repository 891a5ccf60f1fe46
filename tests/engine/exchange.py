"""The two legs of a turn, done by hand: what the router's turns are compared with.

A reference is the same prompt on the cold path, under a fresh ``cache_salt`` on both legs. Without the salt a
node's prefix cache, filled by the very turn under test, would answer instead of a new computation, and
equality would prove nothing.
"""

import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import httpx

from tests.engine.pair import MODEL

Json = dict[str, Any]

ANSWER_TOKENS = 20

CACHED = "remote_prefill_cached_tokens"
"""In P's params: prompt tokens that it did not compute."""
SHAKES = 5

# Nothing to read for P: compute, and keep the blocks for D.
COLD: Json = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}

# A pulled block may have been computed in another batch than the reference's, with sums rounded in another
# order. In float32 that moves a log-probability by far less than this; two candidates closer than this may
# change places.
ROUNDING_LOGPROB = 1e-3


@dataclass(frozen=True, slots=True)
class Candidates:
    """The two likeliest tokens of a position, and by how much (in log-probability) the first leads."""

    second_id: int
    lead: float


@dataclass(frozen=True, slots=True)
class Generated:
    """What one leg answered."""

    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    text: str
    candidates: tuple[Candidates, ...]
    """One per generated token; empty where log-probabilities were not asked for."""
    params: Json | None
    cached_tokens: int | None = None
    """Prompt tokens that were not computed, as the engine tells; None where it does not."""


@dataclass(frozen=True, slots=True)
class Reference:
    prefill: Generated
    """P's leg: one token."""
    decode: Generated


class Verdict(StrEnum):
    EQUAL = "equal"
    ROUNDING = "rounding"
    """Equal up to a position at which the reference itself could as well have gone the other way."""
    DIFFERENT = "different"


def compare(seen: Sequence[int], reference: Generated) -> Verdict:
    """How generated tokens stand to a reference with candidates."""
    for position, (token, expected) in enumerate(zip(seen, reference.ids, strict=False)):
        if token != expected:
            candidates = reference.candidates[position]
            is_close = token == candidates.second_id and candidates.lead < ROUNDING_LOGPROB
            return Verdict.ROUNDING if is_close else Verdict.DIFFERENT
    return Verdict.EQUAL if len(seen) == len(reference.ids) else Verdict.DIFFERENT


def chat_body(messages: Sequence[Json]) -> Json:
    """A chat request whose answer has a fixed length and shows its token ids."""
    return {
        "model": MODEL,
        "messages": list(messages),
        "max_tokens": ANSWER_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    }


def read(answer: Json) -> Generated:
    """A non-streamed chat answer that was asked for with ``return_token_ids``."""
    choice = answer["choices"][0]
    positions = (choice.get("logprobs") or {}).get("content") or []
    return Generated(
        prompt_ids=tuple(answer["prompt_token_ids"]),
        ids=tuple(choice["token_ids"]),
        text=choice["message"]["content"] or "",
        candidates=tuple(_candidates(position["top_logprobs"]) for position in positions),
        params=answer.get("kv_transfer_params"),
        cached_tokens=_cached_tokens(answer),
    )


def _cached_tokens(answer: Json) -> int | None:
    told = (answer.get("kv_transfer_params") or {}).get(CACHED)
    if told is None:  # vLLM before 0.32 tells it in the usage alone, which pair.py switches on
        told = ((answer.get("usage") or {}).get("prompt_tokens_details") or {}).get("cached_tokens")
    return None if told is None else int(told)


def _candidates(top: list[Json]) -> Candidates:
    first, second = sorted(top, key=lambda entry: -float(entry["logprob"]))[:2]
    # With return_tokens_as_token_ids a token is written "token_id:17".
    return Candidates(
        second_id=int(second["token"].removeprefix("token_id:")),
        lead=float(first["logprob"]) - float(second["logprob"]),
    )


class Engines:
    """The two nodes, spoken to directly. An answer that is not 200 fails the test with the engine's text."""

    def __init__(self, prefill_url: str, decode_url: str, client: httpx.Client) -> None:
        self._prefill_url = prefill_url
        self._decode_url = decode_url
        self._client = client

    def prefill(self, body: Json, params: Json = COLD) -> Generated:
        return self._post(self._prefill_url, body | {"max_tokens": 1, "kv_transfer_params": params})

    def decode(self, body: Json, params: Json) -> Generated:
        return self._post(self._decode_url, body | {"kv_transfer_params": params})

    def two_legs(self, body: Json, params: Json = COLD) -> Reference:
        prefill = self.prefill(body, params)
        assert prefill.params is not None, "the prefill leg's answer has no kv_transfer_params"
        return Reference(prefill, self.decode(body, prefill.params))

    def reference(self, messages: Sequence[Json]) -> Reference:
        """The cold path under a fresh salt, with candidates. Leaves nothing pinned on D."""
        taken = self.two_legs(salted(messages))
        if taken.decode.params is not None:
            self.release(taken.decode.params)
        return taken

    def release(self, handle: Json) -> None:
        """Give a handle back: P reads nothing for a prompt of one token, and D is told all the same."""
        body = {"model": MODEL, "prompt": [1], "max_tokens": 1, "kv_transfer_params": handle}
        response = self._client.post(f"{self._prefill_url}/v1/completions", json=body)
        assert response.status_code == 200, response.text

    def metric(self, role: str, name: str) -> float:
        """A metric of one engine; the sum of its samples."""
        url = self._prefill_url if role == "prefill" else self._decode_url
        return sample(self._client.get(f"{url}/metrics").text, name)

    def meet(self) -> None:
        """Let P and D shake hands, both ways. A busy machine can be too slow for vLLM's limit of 5 s."""
        for attempt in range(SHAKES):
            messages = [{"role": "user", "content": f"Good morning {attempt}. " * 40}]
            try:
                held = self.two_legs(chat_body(messages)).decode.params
                assert held is not None, "the decode leg's answer has no kv_transfer_params"
                self.release((self.two_legs(chat_body(messages), held)).decode.params or COLD)
            except AssertionError:
                if attempt == SHAKES - 1:
                    raise
            else:
                return

    def tokenize(self, messages: Sequence[Json]) -> list[int]:
        response = self._client.post(
            f"{self._prefill_url}/tokenize", json={"model": MODEL, "messages": list(messages)}
        )
        assert response.status_code == 200, response.text
        return list(response.json()["tokens"])

    def _post(self, url: str, body: Json) -> Generated:
        response = self._client.post(f"{url}/v1/chat/completions", json=body)
        assert response.status_code == 200, response.text
        return read(response.json())


def sample(metrics: str, name: str) -> float:
    """The sum of a metric's samples in Prometheus text."""
    found = re.findall(rf"^{re.escape(name)}(?:\{{[^}}]*\}})? (\S+)$", metrics, re.MULTILINE)
    assert found, f"there is no {name}"
    return sum(map(float, found))


def salted(messages: Sequence[Json]) -> Json:
    """A request that no prefix cache can answer, with the candidates of each position."""
    return chat_body(messages) | {
        "cache_salt": uuid.uuid4().hex,
        "logprobs": True,
        "top_logprobs": 2,
        "return_tokens_as_token_ids": True,
    }
