"""Simulated agents: what they keep of a conversation, and the ways in which they send it again.

An agent knows nothing of the router. It has a history, changes it as real clients do, and sends it whole.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import Any, Final

from tests.e2e.answers import Choice, Spoken
from tests.e2e.asks import (
    ADAPTER,
    CHAT,
    MODEL,
    TENANTS,
    Ask,
    Body,
    Message,
    image,
    passage,
    phrase,
    tool,
    with_options,
)

_LONGEST_CHARS: Final = 11_000
"""About 3,000 tokens; an agent whose history is longer compacts, truncates or begins anew."""


class Move(StrEnum):
    """What an agent does next. Several requests of one move run at the same time."""

    GROW = "grow"
    REGENERATE = "regenerate"
    EDIT = "edit"
    FORK = "fork"
    COMPACT = "compact"
    TITLE = "title"
    OTHER_SYSTEM = "other_system"
    TRUNCATE = "truncate"
    PICTURE = "picture"
    EDIT_PICTURE = "edit_picture"
    PREFIX = "prefix"
    TOOLS = "tools"
    TEMPLATE = "template"
    SUB_AGENTS = "sub_agents"
    RESEND = "resend"
    """The very same request twice at once, as an impatient client sends it."""
    ANEW = "anew"


@dataclass(frozen=True, slots=True)
class Sent:
    """A request of an agent. ``history`` is what the conversation becomes with the answer, if it does."""

    ask: Ask
    history: list[Message] | None = None


@dataclass(frozen=True, slots=True)
class Habits:
    """What one client always does."""

    tenant: str
    system: str
    tools: tuple[str, ...]
    reasoning: str
    """The member in which reasoning comes back: ``reasoning``, ``reasoning_content``, or empty for not."""
    respaces: bool
    """It parses tool arguments and writes them anew."""
    streams: float
    """How many of its requests are streamed, 0 to 1."""
    names_session: str
    """The header or body member with its session id; empty for none."""
    nulls: bool
    """It sends optional members as null."""
    model: str = MODEL
    salt: str = ""


def habits(random: Random) -> Habits:
    """A client. Few systems and tools, so that clients share beginnings, also across tenants."""
    words = random.choice((0, 0, 12, 60, 250, 700))
    return Habits(
        tenant=random.choice(TENANTS),
        system=passage(words, words) if words else "",
        tools=random.choice(((), ("read",), ("read", "grep"))),
        reasoning=random.choice(("", "", "reasoning", "reasoning_content")),
        respaces=random.random() < 0.3,
        streams=random.choice((0.0, 0.3, 1.0)),
        names_session=random.choice(("", "x-session-id", "x-claude-code-session-id", "conversation_id")),
        nulls=random.random() < 0.2,
        model=random.choice((MODEL,) * 5 + (ADAPTER,)),
        salt=random.choice(("",) * 7 + ("own",)),
    )


@dataclass(slots=True)
class Agent:
    """One chat client and its conversation."""

    habits: Habits
    session: str
    history: list[Message] = field(default_factory=list)
    tools: tuple[str, ...] = ()
    template: Body = field(default_factory=dict)
    pictures: int = 0

    def __post_init__(self) -> None:
        self.tools = self.habits.tools
        self._begin()

    def _begin(self) -> None:
        self.history = [{"role": "system", "content": self.habits.system}] if self.habits.system else []

    def moves(self, move: Move, random: Random) -> list[Sent]:
        """What it sends now."""
        if sum(len(str(message)) for message in self.history) > _LONGEST_CHARS:
            move = random.choice((Move.COMPACT, Move.TRUNCATE, Move.ANEW))
        sent = _MOVES[move](self, random)
        return [Sent(with_options(one.ask, random, streams=self.habits.streams), one.history) for one in sent]

    def heard(self, sent: Sent, spoken: Spoken, random: Random) -> None:
        """Take an answer into the history."""
        choice = spoken.choices.get(0)
        if sent.history is None or choice is None:
            return
        last = sent.history[-1]
        if last["role"] == "assistant":  # it went on from a prefix
            whole = {"role": "assistant", "content": str(last["content"]) + choice.content}
            self.history = [*sent.history[:-1], whole]
        else:
            self.history = [*sent.history, *self.message(choice, random)]

    def message(self, choice: Choice, random: Random) -> list[Message]:
        """The assistant's message as this client sends it back, and what its tools say."""
        message: Message = {"role": "assistant", "content": choice.content or None}
        if choice.reasoning and self.habits.reasoning:
            message[self.habits.reasoning] = choice.reasoning
        if self.habits.nulls:
            message |= {"refusal": None, "audio": None}
        calls = [call for call in choice.calls.values() if _is_json(call["arguments"])]
        if not calls:
            return [message | {"content": choice.content}]
        message["tool_calls"] = [self._call(call) for call in calls]
        results = [
            {"role": "tool", "tool_call_id": call["id"], "content": phrase(random, 60)} for call in calls
        ]
        return [message, *results]

    def _call(self, call: dict[str, str]) -> Body:
        arguments = call["arguments"]
        if self.habits.respaces:
            arguments = json.dumps(json.loads(arguments), separators=(",", ":"))
        return {
            "id": call["id"],
            "type": "function",
            "function": {"name": call["name"], "arguments": arguments},
        }

    # -- requests ----------------------------------------------------------------------------------------

    def _sent(self, messages: list[Message], *, keep: bool = True, **members: Any) -> Sent:
        body: Body = {"model": self.habits.model, "messages": messages}
        if self.habits.salt:
            body["cache_salt"] = self.habits.salt
        if self.tools:
            body["tools"] = [tool(name) for name in self.tools]
        if self.template:
            body["chat_template_kwargs"] = self.template
        body |= members
        headers: tuple[tuple[str, str], ...] = ()
        if self.habits.names_session == "conversation_id":
            body["conversation_id"] = self.session
        elif self.habits.names_session:
            headers = ((self.habits.names_session, self.session),)
        return Sent(Ask(CHAT, body, self.habits.tenant, self.session, headers), messages if keep else None)

    def _waits_for_model(self) -> bool:
        return bool(self.history) and self.history[-1]["role"] in ("tool", "user")

    def _grown(self, random: Random) -> list[Message]:
        if self._waits_for_model():
            return list(self.history)
        return [*self.history, {"role": "user", "content": phrase(random)}]

    def _spoken_at(self, role: str) -> list[int]:
        return [at for at, message in enumerate(self.history) if message["role"] == role]

    def _grow(self, random: Random) -> list[Sent]:
        return [self._sent(self._grown(random))]

    def _regenerate(self, random: Random) -> list[Sent]:
        answers = self._spoken_at("assistant")
        return [self._sent(self.history[: answers[-1]])] if answers else self._grow(random)

    def _edit(self, random: Random) -> list[Sent]:
        """An old message of the user becomes another one; what came after it stays, or not."""
        asked = self._spoken_at("user")
        if not asked:
            return self._grow(random)
        at = random.choice(asked)
        edited = {"role": "user", "content": phrase(random)}
        rest = self.history[at + 1 :] if random.random() < 0.5 else []
        if rest and rest[-1]["role"] == "assistant":
            rest = [*rest, {"role": "user", "content": phrase(random)}]
        return [self._sent([*self.history[:at], edited, *rest])]

    def _fork(self, random: Random) -> list[Sent]:
        """Two ways to go on from here, at once; the first one is gone on with."""
        if self._waits_for_model():
            return self._grow(random)
        ways = [[*self.history, {"role": "user", "content": phrase(random)}] for _ in range(2)]
        return [self._sent(ways[0]), self._sent(ways[1], keep=False)]

    def _compact(self, random: Random) -> list[Sent]:
        kept = [m for m in self.history[:1] if m["role"] == "system"]
        summary = {"role": "user", "content": f"So far: {phrase(random, 80)}"}
        asked = self._spoken_at("user")
        tail = self.history[asked[-1] :] if len(asked) > 1 and random.random() < 0.7 else []
        again = [*kept, summary, *tail]
        if again[-1]["role"] == "assistant":
            again.append({"role": "user", "content": phrase(random)})
        return [self._sent(again)]

    def _title(self, random: Random) -> list[Sent]:
        """A side request over the whole history, while the main line goes on."""
        question: Message = {"role": "user", "content": "Give this conversation a title of three words."}
        side = self._sent([*self.history, question], keep=False, max_tokens=8)
        return [side, *self._grow(random)] if random.random() < 0.5 else [side]

    def _other_system(self, random: Random) -> list[Sent]:
        """A side request with a system prompt of its own, over what the user said last."""
        asked = self._spoken_at("user")
        messages: list[Message] = [{"role": "system", "content": "Summarise in one line."}]
        messages += [self.history[asked[-1]]] if asked else [{"role": "user", "content": phrase(random)}]
        return [self._sent(messages, keep=False), *self._grow(random)]

    def _truncate(self, random: Random) -> list[Sent]:
        """Drop the oldest turns, as clients do whose window is full."""
        asked = self._spoken_at("user")
        if len(asked) < 2:
            return self._grow(random)
        kept = [m for m in self.history[:1] if m["role"] == "system"]
        self.history = [*kept, *self.history[random.choice(asked[1:]) :]]
        return self._grow(random)

    def _picture(self, random: Random) -> list[Sent]:
        if self._waits_for_model():
            return self._grow(random)
        self.pictures += 1
        content = [{"type": "text", "text": phrase(random)}, image(random.randint(0, 10_000))]
        return [self._sent([*self.history, {"role": "user", "content": content}])]

    def _edit_picture(self, random: Random) -> list[Sent]:
        """Another picture in an old message: not one token changes."""
        shown = [at for at, message in enumerate(self.history) if isinstance(message.get("content"), list)]
        if not shown:
            return self._picture(random)
        at = random.choice(shown)
        parts = [
            image(random.randint(0, 10_000)) if p["type"] == "image_url" else p
            for p in self.history[at]["content"]
        ]
        self.history = [*self.history[:at], {**self.history[at], "content": parts}, *self.history[at + 1 :]]
        return self._grow(random)

    def _prefix(self, random: Random) -> list[Sent]:
        """The client writes the beginning of the answer."""
        messages = [*self._grown(random), {"role": "assistant", "content": phrase(random, 6)}]
        return [self._sent(messages, continue_final_message=True, add_generation_prompt=False)]

    def _change_tools(self, random: Random) -> list[Sent]:
        self.tools = random.choice((self.habits.tools, (), ("read",), ("grep", "read")))
        sent = self._grow(random)
        if self.tools and random.random() < 0.3:
            choice = random.choice(("auto", "none", "required"))
            sent = [Sent(one.ask.with_body(tool_choice=choice), one.history) for one in sent]
        return sent

    def _change_template(self, random: Random) -> list[Sent]:
        self.template = random.choice(({}, {"enable_thinking": False}, {"persona": phrase(random, 2)}))
        return self._grow(random)

    def _sub_agents(self, random: Random) -> list[Sent]:
        """Children with the parent's session id and system prompt, beside the parent."""
        start = [m for m in self.history[:1] if m["role"] == "system"]
        children = [
            self._sent([*start, {"role": "user", "content": phrase(random)}], keep=False)
            for _ in range(random.randint(1, 3))
        ]
        return [*self._grow(random), *children]

    def _resend(self, random: Random) -> list[Sent]:
        sent = self._grow(random)[0]
        return [sent, Sent(sent.ask)]

    def _anew(self, random: Random) -> list[Sent]:
        self._begin()
        self.tools = self.habits.tools
        return self._grow(random)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


_MOVES: Final[dict[Move, Callable[[Agent, Random], list[Sent]]]] = {
    Move.GROW: Agent._grow,
    Move.REGENERATE: Agent._regenerate,
    Move.EDIT: Agent._edit,
    Move.FORK: Agent._fork,
    Move.COMPACT: Agent._compact,
    Move.TITLE: Agent._title,
    Move.OTHER_SYSTEM: Agent._other_system,
    Move.TRUNCATE: Agent._truncate,
    Move.PICTURE: Agent._picture,
    Move.EDIT_PICTURE: Agent._edit_picture,
    Move.PREFIX: Agent._prefix,
    Move.TOOLS: Agent._change_tools,
    Move.TEMPLATE: Agent._change_template,
    Move.SUB_AGENTS: Agent._sub_agents,
    Move.RESEND: Agent._resend,
    Move.ANEW: Agent._anew,
}
LIKELY: Final[tuple[Move, ...]] = (*Move, *[Move.GROW] * 22)
"""Moves as often as they come: mostly, conversations grow."""
