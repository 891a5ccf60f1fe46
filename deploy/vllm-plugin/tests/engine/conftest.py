"""The real nodes, once for all tests. ``BOOMERANG_TEST_PREFIX_CACHE=on`` runs P with its prefix cache."""

from collections.abc import Iterator

import httpx
import pytest
from legs import Engines
from nodes import PREFIX_CACHE, Nodes, serve_nodes

SHAKES = 5


@pytest.fixture(scope="session")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    logs = tmp_path_factory.mktemp("engine-logs")
    with serve_nodes(logs, prefix_cache=PREFIX_CACHE) as started:
        yield started


@pytest.fixture(scope="session")
def engines(nodes: Nodes) -> Iterator[Engines]:
    # vLLM closes idle connections after 5 s, and turns can be further apart.
    limits = httpx.Limits(max_keepalive_connections=0)
    with httpx.Client(timeout=240.0, limits=limits) as client:
        spoken_to = Engines(client, nodes.prefill, nodes.decode)
        for node in (nodes.prefill, nodes.stock_prefill, nodes.deaf_prefill):
            shake_hands(spoken_to, node)
        yield spoken_to


def shake_hands(engines: Engines, node: str) -> None:
    """Let a P and D meet: the first time they do, a busy machine is too slow for vLLM's limit of 5 s."""
    messages = [{"role": "user", "content": "Good morning. " * 60}]
    for attempt in range(SHAKES):
        try:
            _, answer = engines.turn(messages, node=node)
            engines.turn(messages, answer.handle, node=node)
        except AssertionError:
            if attempt == SHAKES - 1:
                raise
        else:
            return
