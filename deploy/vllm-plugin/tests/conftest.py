"""What all tests share; and the engine's tests run only where they are named."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from boomerang_vllm import guard

ENGINE = Path(__file__).with_name("engine")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave ``tests/engine`` out unless it is named; ``--ignore`` depends on where pytest is started."""
    if collection_path != ENGINE:
        return None
    named = [config.invocation_params.dir / argument.split("::")[0] for argument in config.args]
    return None if any(path.is_relative_to(ENGINE) for path in named) else True


@pytest.fixture(autouse=True)
def unsaid() -> Iterator[None]:
    """Warnings that are given once per process are given once per test."""
    guard._said.clear()
    yield
    guard._said.clear()
