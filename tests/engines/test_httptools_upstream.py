"""The conformance suite, run against ``HttptoolsUpstream``."""

import ssl
from collections.abc import AsyncIterator

import pytest

from router.engines.httptools_upstream import HttptoolsUpstream
from router.engines.upstream import Upstream
from tests.engines.conformance import FaultsConformance, MakeUpstream
from tests.engines.conformance_answers import AnswersConformance
from tests.engines.conformance_connections import ConnectionsConformance


@pytest.fixture
async def make_upstream() -> AsyncIterator[MakeUpstream]:
    made: list[HttptoolsUpstream] = []

    def make(*, keepalive_s: float = 4.0, tls: ssl.SSLContext | None = None) -> Upstream:
        made.append(HttptoolsUpstream(keepalive_s=keepalive_s, tls=tls))
        return made[-1]

    yield make
    for upstream in made:
        await upstream.close()


class TestFaults(FaultsConformance):
    pass


class TestAnswers(AnswersConformance):
    pass


class TestConnections(ConnectionsConformance):
    pass
