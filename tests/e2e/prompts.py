"""A simulated client of ``/v1/completions``: a prompt as text or as token ids, that grows or is edited."""

from dataclasses import dataclass, field
from random import Random

from router.sim.tokens import encode
from tests.e2e.answers import Spoken
from tests.e2e.asks import COMPLETIONS, MODEL, TENANTS, Ask, Body, passage, phrase, with_options
from tests.e2e.conversations import Move, Sent


@dataclass(slots=True)
class Writer:
    """One plain prompt that its client goes on writing. A text is sent as ids where ``as_ids``."""

    tenant: str
    session: str
    as_ids: bool
    streams: float
    text: str = ""
    ids: list[int] = field(default_factory=list)

    def moves(self, move: Move, random: Random) -> list[Sent]:
        """Grow, cut, or begin anew; any other move is one of these to a plain prompt."""
        if (
            move is Move.ANEW
            or len(self.text) > 9_000
            or len(self.ids) > 3_000
            or not (self.text or self.ids)
        ):
            start = passage(random.randint(0, 3), random.choice((3, 40, 300)))
            self.text, self.ids = start, list(encode(start))
        elif move in (Move.EDIT, Move.TRUNCATE, Move.COMPACT):
            at = random.randrange(max(len(self.text), 1)), random.randrange(max(len(self.ids), 1))
            self.text, self.ids = self.text[: at[0]] + "!", [*self.ids[: at[1]], *encode(phrase(random))]
        elif move is not Move.REGENERATE:
            more = " " + phrase(random)
            self.text, self.ids = self.text + more, [*self.ids, *encode(more)]
        body: Body = {"model": MODEL, "prompt": self.ids if self.as_ids else self.text}
        if random.random() < 0.7:
            body["max_tokens"] = random.randint(1, 40)
        if self.as_ids:
            body["return_token_ids"] = True
        if random.random() < 0.03:
            body["echo"] = True
        if random.random() < 0.03:
            body["truncate_prompt_tokens"] = random.randint(20, 400)
        ask = Ask(COMPLETIONS, body, self.tenant, self.session)
        main = Sent(with_options(ask, random, streams=self.streams), [])
        if move in (Move.FORK, Move.RESEND):
            return [main, Sent(with_options(ask, random, streams=self.streams))]
        return [main]

    def heard(self, sent: Sent, spoken: Spoken, random: Random) -> None:
        choice = spoken.choices.get(0)
        if sent.history is None or choice is None:
            return
        if not sent.ask.body.get("echo"):
            self.text += choice.content
            # Its own ids as the engine made them, or those of the text, which may be others.
            own = choice.token_ids or list(encode(choice.content))
            self.ids = [*self.ids, *(own if random.random() < 0.8 else encode(choice.content))]


def writer(random: Random, session: str) -> Writer:
    return Writer(random.choice(TENANTS), session, random.random() < 0.5, random.choice((0.0, 1.0)))
