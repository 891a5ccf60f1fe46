import pytest

from router.sim.profiles import PROFILES

QWEN = PROFILES["qwen3-32b"]


@pytest.mark.parametrize(("tokens", "milliseconds"), [(2_000, 153), (24_000, 744)])
def test_the_published_prefill_times(tokens: int, milliseconds: float) -> None:
    assert QWEN.prefill_s(tokens) * 1e3 == pytest.approx(milliseconds, abs=0.5)


@pytest.mark.parametrize(("tokens", "milliseconds"), [(2_000, 30), (24_000, 130)])
def test_the_published_transfer_times(tokens: int, milliseconds: float) -> None:
    assert QWEN.transfer_s(tokens) * 1e3 == pytest.approx(milliseconds, abs=0.5)


def test_nothing_to_do_takes_no_time() -> None:
    assert QWEN.transfer_s(0) == 0
    assert PROFILES["instant"].prefill_s(100_000) == 0
