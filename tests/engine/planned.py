"""A conversation through a router that plans, as it does by default, before a pair that others use, too."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.engine import front
from tests.engine.conversation import Message, opening
from tests.engine.exchange import Engines, Generated, Verdict, chat_body, compare, read
from tests.engine.pair import Pair

ANSWER_DEADLINE_S = 120.0
QUESTIONS = ("And then?", "Who says so?", "Where was that?", "Why not later?")


@dataclass(frozen=True, slots=True)
class Planned:
    """One turn of it."""

    messages: tuple[Message, ...]
    plan: str
    answer: Generated


def play(engine_pair: Pair, log: Path, subject: str) -> list[Planned]:
    """Five turns, each but the first with a short question more; the router is its own, and new."""
    messages, played = opening(subject, 24), list[Planned]()
    with (
        front.serve(engine_pair.prefill.url, engine_pair.decode.url, log, policy=()) as router,
        httpx.Client(base_url=router.url, timeout=ANSWER_DEADLINE_S) as client,
    ):
        router.wait_serving()
        for question in (*QUESTIONS, ""):
            answer = client.post("/v1/chat/completions", json=chat_body(messages))
            assert answer.status_code == 200, answer.text
            said = read(answer.json())
            played.append(Planned(tuple(messages), answer.headers["x-boomerang-plan"], said))
            following = {"role": "assistant", "content": said.text}, {"role": "user", "content": question}
            messages = [*messages, *following]
        assert router.is_idle()
    return played


def check(played: Sequence[Planned], engines: Engines, engine_pair: Pair) -> str:
    """All answers are those of the cold path; turns stayed where P has no cache of its own. The plans."""
    plans = [turn.plan for turn in played]
    verdicts = [compare(turn.answer.ids, engines.reference(turn.messages).decode) for turn in played]
    assert Verdict.DIFFERENT not in verdicts, (plans, verdicts)
    assert plans[0] == "cold"
    # A P that still has the prompt is as soon done with a short question as D is.
    told = httpx.get(f"{engine_pair.prefill.url}/metrics", timeout=10).text
    others = set() if 'enable_prefix_caching="False"' in told else {"local", "pull"}
    assert set(plans[1:]) <= {"stay", *others}, plans
    return ", ".join(plans)
