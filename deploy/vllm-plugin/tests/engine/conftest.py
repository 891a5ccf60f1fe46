"""The real nodes, once for all tests. ``BOOMERANG_TEST_PREFIX_CACHE=on`` runs P with its prefix cache."""

from collections.abc import Iterator

import httpx
import pytest
from legs import Engines
from nodes import PREFIX_CACHE, Nodes, serve_nodes


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
        yield Engines(client, nodes.prefill, nodes.decode)
