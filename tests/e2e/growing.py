"""What D holds after a turn and what the next prompt shares with it, as the engine's own token ids tell."""

from collections.abc import Sequence
from dataclasses import dataclass

from tests.e2e.asks import Ask
from tests.e2e.stage import Reference


@dataclass(frozen=True, slots=True)
class Ids:
    """Token ids of a turn."""

    prompt: Sequence[int]
    answer: Sequence[int]

    @property
    def held(self) -> Sequence[int]:
        """What D has KV of: all but the token that was generated last."""
        return [*self.prompt, *self.answer[:-1]]


async def ids_of(reference: Reference, ask: Ask) -> Ids:
    """The ids of a request's prompt and answer."""
    body = {key: value for key, value in ask.body.items() if key not in ("stream", "stream_options")}
    document = await reference.document(Ask(ask.path, {**body, "return_token_ids": True}, "", ""))
    choice = document["choices"][0]
    return Ids(document.get("prompt_token_ids") or choice["prompt_token_ids"], choice["token_ids"])


def shared(held: Sequence[int], prompt: Sequence[int]) -> int:
    """How many leading tokens are the same."""
    pairs = zip(held, prompt, strict=False)
    return next((at for at, (one, other) in enumerate(pairs) if one != other), min(len(held), len(prompt)))
