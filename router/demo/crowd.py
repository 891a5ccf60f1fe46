"""Agents that talk all the time, each in a thread of its own: something to watch on the live page."""

import contextlib
import random
import threading
from collections.abc import Iterator
from itertools import count

import httpx
import openai

from router.demo.agent import Agent

TURNS = (4, 12)
"""How long a conversation is, least and most."""
PAUSE_S = (0.4, 3.0)
"""What passes between an answer and the next turn."""
AGAIN_S = 2.0
"""What passes before a new conversation, where one was cut off."""


@contextlib.contextmanager
def crowd(base_url: str, model: str, agents: int, seed: int = 1) -> Iterator[None]:
    """Let ``agents`` agents talk to a router; at the end each is stopped after the turn that it is in."""
    stop = threading.Event()
    threads = [
        threading.Thread(
            target=_talk,
            args=(base_url, model, seed + number, stop),
            name=f"agent {number}",
            daemon=True,
        )
        for number in range(agents)
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(timeout=5.0)


def _talk(base_url: str, model: str, seed: int, stop: threading.Event) -> None:
    """One conversation after the other."""
    draw = random.Random(seed)  # noqa: S311 - a play that can be repeated
    stop.wait(draw.uniform(0, PAUSE_S[1]))
    for number in count():
        turns = Agent(base_url, model, f"{seed}-{number}").turns(draw.randint(*TURNS))
        try:
            with contextlib.closing(turns):
                for _ in turns:
                    if stop.wait(draw.uniform(*PAUSE_S)):
                        return
        except (openai.OpenAIError, httpx.HTTPError):
            # A node or the router went away: agents try again, as people do.
            if stop.wait(AGAIN_S):
                return
