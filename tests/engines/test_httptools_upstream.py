"""The conformance suite, run against ``HttptoolsUpstream``."""

from collections.abc import AsyncIterator

import pytest

from router.engines.httptools_upstream import HttptoolsUpstream
from tests.engines.clients import making
from tests.engines.conformance import FaultsConformance, MakeUpstream
from tests.engines.conformance_answers import AnswersConformance
from tests.engines.conformance_connections import ConnectionsConformance
from tests.engines.conformance_pump import PumpConformance


@pytest.fixture
async def make_upstream() -> AsyncIterator[MakeUpstream]:
    async with making(HttptoolsUpstream) as make:
        yield make


class TestFaults(FaultsConformance):
    pass


class TestAnswers(AnswersConformance):
    pass


class TestConnections(ConnectionsConformance):
    pass


class TestPump(PumpConformance):
    pass
