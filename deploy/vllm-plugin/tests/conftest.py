"""Warnings that are given once per process are given once per test."""

from collections.abc import Iterator

import pytest

from boomerang_vllm import guard


@pytest.fixture(autouse=True)
def unsaid() -> Iterator[None]:
    guard._said.clear()
    yield
    guard._said.clear()
