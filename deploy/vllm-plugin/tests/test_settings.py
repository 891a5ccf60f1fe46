"""Settings come from the environment; what is not known is said and left at its default."""

from boomerang_vllm.settings import PARTS, Settings, read


def test_defaults() -> None:
    assert read({}) == (Settings(), [])
    assert Settings().parts == frozenset(PARTS)
    assert Settings().unstamped == "pass"


def test_all_of_them() -> None:
    settings, wrong = read(
        {
            "BOOMERANG_VLLM_PARTS": "stream, verify",
            "BOOMERANG_VLLM_UNSTAMPED": "refuse",
            "BOOMERANG_VLLM_DIGESTS": "tokens",
            "BOOMERANG_VLLM_EXPIRED": "pass",
        }
    )
    assert not wrong
    assert settings == Settings(frozenset({"stream", "verify"}), "refuse", "tokens", "pass")


def test_none_switches_all_off() -> None:
    assert read({"BOOMERANG_VLLM_PARTS": "none"})[0].parts == frozenset()


def test_what_is_not_known_is_said() -> None:
    settings, wrong = read({"BOOMERANG_VLLM_PARTS": "streem", "BOOMERANG_VLLM_UNSTAMPED": "deny"})
    assert settings == Settings()
    assert len(wrong) == 2
