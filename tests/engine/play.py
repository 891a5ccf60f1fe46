"""Play conversations through the router with the openai client, later take the references, and keep both."""

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import openai

from tests.engine.conversation import Change, Conversation, Message, Step
from tests.engine.exchange import Engines, Generated, Reference, Verdict, chat_body, compare, read
from tests.engine.recorder import INFERENCE, Exchange, Recorder

Json = dict[str, Any]
CLIENT_TIMEOUT_S = 240.0


@dataclass(frozen=True, slots=True)
class Turn:
    """One routed turn: what the client got, and the legs that the recorder saw for it."""

    name: str
    streamed: bool
    messages: tuple[Message, ...]
    answer: Generated
    plan: str
    reason: str
    told_tokens: int
    """Reused tokens, as the router tells."""
    legs: tuple[Exchange, ...]
    builds_on: str | None
    shared_tokens: int
    """Leading tokens of the prompt that D held when the turn began; P always computes one itself."""
    known_tokens: int
    """Leading tokens of the prompt that either node had computed for any earlier turn."""

    @property
    def prefill_legs(self) -> tuple[Exchange, ...]:
        return tuple(leg for leg in self.legs if leg.role == "prefill")

    @property
    def decode_legs(self) -> tuple[Exchange, ...]:
        return tuple(leg for leg in self.legs if leg.role == "decode")

    @property
    def first(self) -> Generated:
        """The answer of the prefill leg that counted: P's one token, which the router throws away."""
        response = self.prefill_legs[-1].response
        assert response is not None
        return read(response)

    @property
    def reused_tokens(self) -> int:
        """Prompt tokens that P did not compute, as P tells."""
        return self.first.cached_tokens or 0

    @property
    def handle(self) -> Json:
        """What D gave for the finished turn."""
        given = self.decode_legs[-1].handle
        assert given is not None, f"{self.name}: D gave no handle"
        return given

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

    @property
    def is_right(self) -> bool:
        return Verdict.DIFFERENT not in (self.answer_verdict, self.first_verdict)


def shared_prefix_tokens(held: Sequence[int], prompt: Sequence[int]) -> int:
    shared = 0
    for ours, theirs in zip(held, prompt[:-1], strict=False):
        if ours != theirs:
            break
        shared += 1
    return shared


class Player:
    """A client of the router that remembers every turn; may be used by several threads."""

    def __init__(self, client: openai.OpenAI, recorder: Recorder) -> None:
        self._client = client
        self._recorder = recorder
        self.turns: dict[str, Turn] = {}

    def turn(
        self, name: str, messages: Sequence[Message], *, streamed: bool, builds_on: str | None = None
    ) -> Turn:
        """Play one turn. Raises openai.APIError where the router does not answer well."""
        before, earlier = len(self._recorder.exchanges), list(self.turns.values())
        held = self.turns[builds_on].held_ids if builds_on else ()
        answer, headers = self._ask(messages, streamed=streamed)
        played = Turn(
            name=name,
            streamed=streamed,
            messages=tuple(messages),
            answer=answer,
            plan=headers["x-boomerang-plan"],
            reason=headers["x-boomerang-reason"],
            told_tokens=int(headers["x-boomerang-reused-tokens"]),
            legs=tuple(leg for leg in self._recorder.exchanges[before:] if _is_of(messages, leg)),
            builds_on=builds_on,
            shared_tokens=shared_prefix_tokens(held, answer.prompt_ids),
            known_tokens=max(
                (shared_prefix_tokens(each.held_ids, answer.prompt_ids) for each in earlier), default=0
            ),
        )
        self.turns[name] = played
        return played

    def script(self, steps: Sequence[Step], *, streamed: bool) -> dict[str, Turn]:
        """Every step, one after the other; by name."""
        conversations: dict[str, Conversation] = {}
        for step in steps:
            conversation = conversations.setdefault(step.conversation, Conversation())
            messages = conversation.next_request(step.change, step.text)
            played = self.turn(step.name, messages, streamed=streamed, builds_on=step.builds_on)
            conversation.hear(step.change, played.answer.text)
        return {step.name: self.turns[step.name] for step in steps}

    def grow(self, name: str, texts: Sequence[str], *, streamed: bool) -> list[Turn]:
        """One conversation that only grows. Its turns are named ``name`` and a number from 1 on."""
        conversation, played = Conversation(), list[Turn]()
        for number, text in enumerate(texts, start=1):
            messages = conversation.next_request(Change.ASK, text)
            before = played[-1].name if played else None
            played.append(self.turn(f"{name} {number}", messages, streamed=streamed, builds_on=before))
            conversation.hear(Change.ASK, played[-1].answer.text)
        return played

    def grow_many(
        self, texts: Mapping[str, Sequence[str]], *, streamed: bool, at_once: int
    ) -> dict[str, list[Turn]]:
        """Growing conversations, ``at_once`` of them at a time; by name."""
        with ThreadPoolExecutor(at_once) as threads:
            running = {
                name: threads.submit(self.grow, name, said, streamed=streamed) for name, said in texts.items()
            }
            return {name: each.result() for name, each in running.items()}

    def _ask(self, messages: Sequence[Message], *, streamed: bool) -> tuple[Generated, dict[str, str]]:
        body = chat_body(messages)
        ours = {name: body.pop(name) for name in ("ignore_eos", "return_token_ids")}
        create: Any = self._client.chat.completions.with_raw_response.create
        raw = create(**body, stream=streamed, extra_body=ours)
        headers = {name.lower(): value for name, value in raw.headers.items()}
        if not streamed:
            return read(json.loads(raw.text)), headers
        with raw.parse() as stream:
            return _of_stream([chunk.to_dict() for chunk in stream]), headers


def following(turn: Turn, question: str) -> list[Message]:
    """The messages of the turn after this one."""
    said = {"role": "assistant", "content": turn.answer.text}
    return [*turn.messages, said, {"role": "user", "content": question}]


def _of_stream(chunks: Sequence[Json]) -> Generated:
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    asked = [chunk["prompt_token_ids"] for chunk in chunks if chunk.get("prompt_token_ids")]
    return Generated(
        prompt_ids=tuple(asked[0]),
        ids=tuple(token for choice in choices for token in choice.get("token_ids") or ()),
        text="".join(choice["delta"].get("content") or "" for choice in choices),
        candidates=(),
        params=None,
    )


def _is_of(messages: Sequence[Message], leg: Exchange) -> bool:
    return leg.path in INFERENCE and (leg.request or {}).get("messages") == list(messages)


@contextmanager
def playing(router_url: str, recorder: Recorder) -> Iterator[Player]:
    """A player with a client that sends nothing twice by itself."""
    with openai.OpenAI(
        base_url=f"{router_url}/v1", api_key="a-tenant", max_retries=0, timeout=CLIENT_TIMEOUT_S
    ) as client:
        yield Player(client, recorder)


def check(turns: Sequence[Turn], engines: Engines) -> dict[str, Checked]:
    """The turns beside their references, which are to be taken when all turns are over; by name."""
    taken: dict[str, Reference] = {}
    checked = {}
    for turn in turns:
        asked = json.dumps(turn.messages)
        if asked not in taken:
            taken[asked] = engines.reference(turn.messages)
        checked[turn.name] = Checked(turn, taken[asked])
    return checked
