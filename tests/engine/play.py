"""Play the conversations through the router, later take the references, and keep what both said."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from tests.engine.conversation import STEPS, Conversation, Message, Step
from tests.engine.exchange import Engines, Generated, Reference, Verdict, chat_body, compare, read
from tests.engine.recorder import Exchange, Recorder

Json = dict[str, Any]
CHAT = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Turn:
    """One routed turn: what the client got, and the legs that the recorder saw for it."""

    step: Step
    messages: tuple[Message, ...]
    answer: Generated
    plan: str
    reason: str
    reused_tokens: int
    prefill_legs: tuple[Exchange, ...]
    decode_legs: tuple[Exchange, ...]
    shared_tokens: int
    """Leading tokens of the prompt that D held when the turn began; P always computes one itself."""

    @property
    def first(self) -> Generated:
        """The answer of the prefill leg that counted: P's one token, which the router throws away."""
        response = self.prefill_legs[-1].response
        assert response is not None
        return read(response)

    @property
    def held_ids(self) -> tuple[int, ...]:
        """The tokens whose KV D holds afterwards: the last sampled token was never computed."""
        return self.answer.prompt_ids + self.answer.ids[:-1]


@dataclass(frozen=True, slots=True)
class Checked:
    """A turn beside its reference."""

    turn: Turn
    reference: Reference

    @property
    def answer_verdict(self) -> Verdict:
        return compare(self.turn.answer.ids, self.reference.decode)

    @property
    def first_verdict(self) -> Verdict:
        return compare(self.turn.first.ids, self.reference.prefill)


def shared_prefix_tokens(held: Sequence[int], prompt: Sequence[int]) -> int:
    shared = 0
    for ours, theirs in zip(held, prompt[:-1], strict=False):
        if ours != theirs:
            break
        shared += 1
    return shared


def play(router_url: str, recorder: Recorder, client: httpx.Client) -> dict[str, Turn]:
    """Every step through the router, one after the other; by name."""
    conversations: dict[str, Conversation] = {}
    turns: dict[str, Turn] = {}
    for step in STEPS:
        conversation = conversations.setdefault(step.conversation, Conversation())
        messages = conversation.next_request(step)
        before = len(recorder.exchanges)
        response = client.post(f"{router_url}{CHAT}", json=chat_body(messages))
        assert response.status_code == 200, f"{step.name}: {response.status_code} {response.text}"
        answer = read(response.json())
        held = turns[step.builds_on].held_ids if step.builds_on else ()
        legs = [leg for leg in recorder.exchanges[before:] if _is_leg_of(messages, leg)]
        turns[step.name] = Turn(
            step=step,
            messages=tuple(messages),
            answer=answer,
            plan=response.headers["x-boomerang-plan"],
            reason=response.headers["x-boomerang-reason"],
            reused_tokens=int(response.headers["x-boomerang-reused-tokens"]),
            prefill_legs=tuple(leg for leg in legs if leg.role == "prefill"),
            decode_legs=tuple(leg for leg in legs if leg.role == "decode"),
            shared_tokens=shared_prefix_tokens(held, answer.prompt_ids),
        )
        if step.change == "ask":
            conversation.hear(answer.text)
    return turns


def _is_leg_of(messages: list[Message], exchange: Exchange) -> bool:
    return exchange.path == CHAT and (exchange.request or {}).get("messages") == messages


def check(turns: dict[str, Turn], engines: Engines) -> dict[str, Checked]:
    """The turns beside their references, which are taken now that all turns are over; by name."""
    return {name: Checked(turn, engines.reference(turn.messages)) for name, turn in turns.items()}
