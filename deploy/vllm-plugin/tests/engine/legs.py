"""The two legs of a turn by hand, and the reference that an answer is compared with."""

import json
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx

MODEL = "tiny"
ANSWER_TOKENS = 20
COLD: dict[str, Any] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
# In float32 a batch of another shape moves a log-probability by far less than this.
ROUNDING_LOGPROB = 1e-3

Json = dict[str, Any]


def body(messages: Sequence[Json], **more: Any) -> Json:
    """A chat request whose answer has a fixed length and shows its token ids."""
    return {
        "model": MODEL,
        "messages": list(messages),
        "max_tokens": ANSWER_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
        **more,
    }


@dataclass(frozen=True, slots=True)
class Leg:
    ids: tuple[int, ...]
    text: str
    params: Json | None
    leads: tuple[tuple[int, float], ...] = ()
    """Per token, the second likeliest and how far it is behind; empty unless asked for."""
    events: tuple[str, ...] = ()

    @property
    def handle(self) -> Json:
        assert self.params is not None
        return self.params


class Engines:
    """Nodes, spoken to directly. An answer that is not 200 fails the test with the engine's text."""

    def __init__(self, client: httpx.Client, prefill: str, decode: str) -> None:
        self._client, self._prefill, self._decode = client, prefill, decode

    def post(self, url: str, request: Json) -> Json:
        response = self._client.post(url, json=request)
        assert response.status_code == 200, response.text
        answer: Json = response.json()
        return answer

    def prefill(self, request: Json, params: Json = COLD, *, node: str = "") -> Leg:
        url = f"{node or self._prefill}/v1/chat/completions"
        return _read(self.post(url, request | {"max_tokens": 1, "kv_transfer_params": params}))

    def decode(self, request: Json, params: Json | None) -> Leg:
        asked = request if params is None else request | {"kv_transfer_params": params}
        return _read(self.post(f"{self._decode}/v1/chat/completions", asked))

    def stream(self, path: str, request: Json, params: Json | None) -> list[str]:
        """The events of a streamed decode leg, as they came."""
        asked = request | {"stream": True}
        if params is not None:
            asked["kv_transfer_params"] = params
        with self._client.stream("POST", f"{self._decode}{path}", json=asked) as response:
            text = response.read().decode()
            assert response.status_code == 200, text
        return [event for event in text.split("\n\n") if event]

    def decode_stream(self, request: Json, params: Json | None) -> Leg:
        events = self.stream("/v1/chat/completions", request, params)
        assert events[-1] == "data: [DONE]"
        chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-1]]
        assert not any("error" in chunk for chunk in chunks), chunks[-1]
        choices = [choice for chunk in chunks for choice in chunk["choices"]]
        handles = [chunk["kv_transfer_params"] for chunk in chunks if chunk.get("kv_transfer_params")]
        assert len(handles) <= 1, "a stream has one handle"
        return Leg(
            ids=tuple(token for choice in choices for token in choice.get("token_ids") or ()),
            text="".join(choice["delta"].get("content") or "" for choice in choices),
            params=handles[0] if handles else None,
            events=tuple(events),
        )

    def turn(self, messages: Sequence[Json], params: Json = COLD, *, node: str = "") -> tuple[Leg, Leg]:
        """Both legs, the second streamed."""
        first = self.prefill(body(messages), params, node=node)
        return first, self.decode_stream(body(messages), first.handle)

    def reference(self, messages: Sequence[Json]) -> tuple[Leg, Leg]:
        """The cold path under a fresh salt, so that no prefix cache answers."""
        salted = body(messages, cache_salt=uuid.uuid4().hex, logprobs=True, top_logprobs=2)
        first = self.prefill(salted | {"return_tokens_as_token_ids": True})
        return first, self.decode(salted | {"return_tokens_as_token_ids": True}, first.handle)

    def metric(self, name: str, *, node: str) -> float:
        text = self._client.get(f"{node}/metrics").text
        found = re.search(rf"^{re.escape(name)}(?:\{{[^}}]*\}})? (\S+)$", text, re.MULTILINE)
        assert found, f"{node} has no {name}"
        return float(found.group(1))


def _read(answer: Json) -> Leg:
    choice = answer["choices"][0]
    positions = (choice.get("logprobs") or {}).get("content") or []
    leads = []
    for position in positions:
        one, two = sorted(position["top_logprobs"], key=lambda entry: -float(entry["logprob"]))[:2]
        second = int(two["token"].removeprefix("token_id:"))
        leads.append((second, float(one["logprob"]) - float(two["logprob"])))
    return Leg(
        ids=tuple(choice["token_ids"]),
        text=choice["message"]["content"] or "",
        params=answer.get("kv_transfer_params"),
        leads=tuple(leads),
    )


def is_equal(seen: Leg, reference: Leg) -> bool:
    """Whether an answer is the reference, up to a token that could as well have been the other one."""
    for position, (token, expected) in enumerate(zip(seen.ids, reference.ids, strict=False)):
        if token != expected:
            second, lead = reference.leads[position]
            return token == second and lead < ROUNDING_LOGPROB
    return len(seen.ids) == len(reference.ids) > 0
