"""The control: the comparison sees wrong KV when there is some.

Without it, every equality in this directory could hold because nothing looks.
"""

import pytest

from tests.engine.conversation import SYSTEM, Message, notes
from tests.engine.exchange import Engines, Verdict, chat_body, compare, salted
from tests.engine.report import CONTROL


def prompt(subject: str, lines: int) -> list[Message]:
    return [SYSTEM, {"role": "user", "content": notes(subject, lines)}]


def test_a_handle_of_another_prompt_gives_another_answer(
    engines: Engines, request: pytest.FixtureRequest
) -> None:
    held = engines.two_legs(chat_body(prompt("harbour", 14))).decode
    assert held.params is not None
    other = prompt("orchard", 18)
    # Longer than what is held, so that P reads all of the handle and trims nothing.
    assert len(engines.tokenize(other)) > held.params["remote_num_tokens"]

    misled = engines.two_legs(salted(other), held.params)
    assert misled.prefill.params is not None
    assert misled.prefill.params["remote_prefill_cached_tokens"] == held.params["remote_num_tokens"]

    reference = engines.reference(other)
    verdicts = compare(misled.prefill.ids, reference.prefill), compare(misled.decode.ids, reference.decode)
    equal = sum(ours == theirs for ours, theirs in zip(misled.decode.ids, reference.decode.ids, strict=True))
    request.config.stash[CONTROL] = (
        f"is seen: P's first token {verdicts[0].value}, answer {verdicts[1].value}"
        f" ({equal} of {len(reference.decode.ids)} tokens equal)"
    )
    assert Verdict.DIFFERENT in verdicts
