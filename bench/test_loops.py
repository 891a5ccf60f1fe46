"""The core loops under pytest-benchmark: `make bench-loops`."""

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.loops.cases import LOOPS


@pytest.mark.parametrize("name", LOOPS)
def test_loop(benchmark: BenchmarkFixture, name: str) -> None:
    benchmark(LOOPS[name]())
