import statistics
from dataclasses import replace

import pytest

from router.bench.own_time import Calibration, calibration, told
from router.bench.published import Line, Model, models, predicted_ms, prompt_lengths
from router.bench.replay import Request
from router.sim.profiles import PROFILES, Profile

MODELS = models()
QWEN = PROFILES["qwen3-32b"]


@pytest.fixture(params=MODELS, ids=[model.name for model in MODELS])
def model(request: pytest.FixtureRequest) -> Model:
    found: Model = request.param
    return found


def played(profile: Profile, own: Line, *lengths: int) -> list[Request]:
    """What a machine with this own time sees of turns without transfer."""
    return [
        Request("off", length, 0, number, tokens, 0, "cold", engines_ms + own.at(tokens))
        for length in lengths
        for number, (tokens, engines_ms) in enumerate(
            zip(
                prompt_lengths(length),
                predicted_ms(profile, prompt_lengths(length), reuse=False),
                strict=True,
            )
        )
    ]


def found(profile: Profile, own: Line, *lengths: int) -> Calibration:
    return calibration(profile, profile, played(profile, own, *lengths))


def test_with_room_for_the_chain_turns_without_transfer_take_what_is_published(model: Model) -> None:
    own = Line(6.4, 0.000_12)
    made = PROFILES[model.profile]
    ends = (2_000, model.lengths_tokens[-1])
    fitted = found(made, own, *ends)
    assert fitted.own.fixed_ms == pytest.approx(own.fixed_ms)
    assert fitted.own.per_token_ms == pytest.approx(own.per_token_ms)
    assert fitted.left == Line(0, 0)
    for length in ends:
        replayed = [request.first_token_ms for request in played(fitted.profile, own, length)]
        assert statistics.mean(replayed) == pytest.approx(model.published_ms("off", length), abs=0.5)


def test_the_delivery_gives_first_and_the_prefill_the_rest() -> None:
    """By hand: 6.4 ms are 2.4 of the delivery and 4 of the prefill; 0.0002 ms a token are all there."""
    profile = found(QWEN, Line(6.4, 0.000_2), 2_000, 24_000).profile
    assert (profile.delivery_ms, profile.prefill_ms) == pytest.approx((0.0, 95.3))
    assert profile.delivery_ms_per_token == pytest.approx(0.001_118)
    assert profile.prefill_ms_per_token == QWEN.prefill_ms_per_token


def test_the_transfer_and_all_else_stay_as_they_are() -> None:
    profile = found(QWEN, Line(6.4, 0.002), 2_000, 24_000).profile
    kept = replace(
        profile,
        prefill_ms=QWEN.prefill_ms,
        prefill_ms_per_token=QWEN.prefill_ms_per_token,
        delivery_ms=QWEN.delivery_ms,
        delivery_ms_per_token=QWEN.delivery_ms_per_token,
    )
    assert kept == QWEN
    assert profile.delivery_ms_per_token == 0
    assert profile.prefill_ms_per_token == pytest.approx(0.026_86 - (0.002 - 0.001_318))


def test_a_later_round_replaces_what_the_first_one_took_out() -> None:
    first = found(QWEN, Line(5.0, 0.0), 2_000, 24_000)
    second = calibration(QWEN, first.profile, played(first.profile, Line(7.0, 0.0), 2_000, 24_000))
    assert second.own.fixed_ms == pytest.approx(7.0)
    assert second.profile.prefill_ms == pytest.approx(99.3 - (7.0 - 2.4))


def test_of_one_length_the_own_time_is_level() -> None:
    own = found(QWEN, Line(6.0, 0.001), 4_000).own
    assert (own.fixed_ms, own.per_token_ms) == pytest.approx((10.0, 0.0))


def test_own_time_never_falls_with_the_length_nor_below_nothing() -> None:
    own = found(QWEN, Line(10.0, -0.000_1), 2_000, 24_000).own
    assert (own.fixed_ms, own.per_token_ms) == pytest.approx((8.7, 0.0))
    assert found(QWEN, Line(-5.0, 0.0), 2_000, 24_000).profile == QWEN


def test_a_machine_that_is_too_slow_is_told_so() -> None:
    slow = found(QWEN, Line(120.0, 0.0), 2_000, 24_000)
    assert slow.profile.prefill_ms == 0
    assert slow.left.fixed_ms == pytest.approx(120 - 2.4 - 99.3)
    assert "too slow: 18.3 ms + 0.00 µs a token of it could not" in told("Qwen3-32B", QWEN, slow)
    assert "too slow" not in told("Qwen3-32B", QWEN, found(QWEN, Line(6.0, 0.0), 2_000, 24_000))


def test_what_was_found_is_told() -> None:
    text = told("Qwen3-32B", QWEN, found(QWEN, Line(6.4, 0.000_2), 2_000, 24_000))
    assert "take 6.4 ms + 0.20 µs a token of their own" in text
    assert "0.0 ms + 1.12 µs a token; prefill: 95.3 ms + 26.86 µs a token" in text


def test_nothing_with_transfer_on_is_taken() -> None:
    requests = played(QWEN, Line(6.4, 0.0), 2_000, 24_000)
    with pytest.raises(ValueError, match="without transfer"):
        calibration(QWEN, QWEN, [*requests, replace(requests[0], transfer="on")])
    with pytest.raises(ValueError, match="without transfer"):
        calibration(QWEN, QWEN, [])
