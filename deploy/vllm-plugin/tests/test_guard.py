"""Where vLLM is not as expected, a part stays off, says so once, and touches nothing."""

import pytest

from boomerang_vllm import guard
from boomerang_vllm.register import register


class Engine:
    def finish(self, request: str) -> str:
        return request


@pytest.mark.parametrize(("name", "parameters"), [("start", ()), ("finish", ("block_ids",))])
def test_a_missing_method_or_parameter(name: str, parameters: tuple[str, ...]) -> None:
    with pytest.raises(guard.NotAsExpected):
        guard.method(Engine, name, parameters)


def test_a_method_is_wrapped_once() -> None:
    class Mine(Engine):
        def finish(self, request: str) -> str:
            return request

    for _ in range(2):
        guard.wrap(Mine, "finish", ("request",), lambda original: lambda *given: original(*given) + "!")
    assert Mine().finish("a") == "a!"
    assert Mine.finish.__name__ == "finish"


def test_said_once(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        guard.say_once("key", "off: %s", "why")
    assert caplog.text.count("off: why") == 1


def test_a_step_that_fails_switches_its_part_off(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise KeyError("inside")

    assert guard.install("part", fail) is False
    assert "part is off" in caplog.text


def test_without_vllm_the_entry_point_says_so_and_does_not_raise(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "vllm")
    register()
    register()
    assert caplog.text.count("stamp and verify is off") == 1
    assert caplog.text.count("stream (chat) is off") == 1
    assert "nothing is on" in caplog.text


def test_with_everything_switched_off_nothing_is_looked_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("BOOMERANG_VLLM_PARTS", "none")
    register()
    assert not caplog.text


def test_a_setting_that_is_not_known_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("BOOMERANG_VLLM_PARTS", "none")
    monkeypatch.setenv("BOOMERANG_VLLM_DIGESTS", "md5")
    register()
    assert "BOOMERANG_VLLM_DIGESTS='md5' is not known" in caplog.text
