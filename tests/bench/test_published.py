import statistics
from dataclasses import astuple, replace

import pytest

from router.bench.published import (
    Line,
    Model,
    calibrated,
    held_tokens,
    line,
    models,
    predicted_ms,
    prompt_lengths,
)
from router.sim.profiles import PROFILES

MODELS = models()


@pytest.fixture(params=MODELS, ids=[model.name for model in MODELS])
def model(request: pytest.FixtureRequest) -> Model:
    found: Model = request.param
    return found


def test_each_model_has_two_points_of_all_that_is_used(model: Model) -> None:
    for quantity, transfer in (("ttft", "off"), ("ttft", "on"), ("kv_transfer", "on")):
        first, last = model.ends(quantity, transfer)  # type: ignore[arg-type]
        assert (first.prompt_tokens, last.prompt_tokens) == (2_000, model.lengths_tokens[-1])


def test_a_line_goes_through_its_points() -> None:
    assert line((10, 30.0), (30, 70.0)) == Line(10.0, 2.0)


def test_no_line_begins_below_zero() -> None:
    assert line((10, 1.0), (30, 60.0)) == Line(0.0, 2.0)


def test_without_transfer_the_profile_gives_what_is_published(model: Model) -> None:
    profile = calibrated(model)
    for point in model.ends("ttft", "off"):
        times_ms = predicted_ms(profile, prompt_lengths(point.prompt_tokens), reuse=False)
        assert statistics.mean(times_ms) == pytest.approx(point.milliseconds, abs=0.5)
    for point in model.ends("kv_transfer", "on"):
        assert profile.transfer_s(point.prompt_tokens) * 1e3 == pytest.approx(point.milliseconds)


def test_what_is_predicted_is_never_looked_at(model: Model) -> None:
    """The profile is the same whatever was published of prefill and first token with transfer on."""
    hidden = tuple(
        replace(point, milliseconds=1e9)
        if point.transfer == "on" and point.quantity != "kv_transfer"
        else point
        for point in model.points
    )
    assert calibrated(replace(model, points=hidden)) == calibrated(model)


def test_longer_prompts_move_the_line_and_not_its_slope(model: Model) -> None:
    profile, longer = calibrated(model), calibrated(model, longer_tokens=1_000)
    assert longer.prefill_ms_per_token == pytest.approx(profile.prefill_ms_per_token)
    assert longer.prefill_s(3_000) == pytest.approx(profile.prefill_s(2_000))


def test_the_simulated_engines_have_these_profiles(model: Model) -> None:
    simulated = replace(PROFILES[model.profile], output_ms_per_token=0.0)
    assert astuple(simulated) == pytest.approx(astuple(calibrated(model)), rel=0.02)
    for tokens in (2_000, model.lengths_tokens[-1]):
        for exact, rounded in (
            (calibrated(model).prefill_s(tokens), simulated.prefill_s(tokens)),
            (calibrated(model).transfer_s(tokens), simulated.transfer_s(tokens)),
            (calibrated(model).delivery_s(tokens), simulated.delivery_s(tokens)),
        ):
            assert rounded == pytest.approx(exact, abs=0.000_2)


def test_prompts_grow_by_a_question_and_an_answer_around_their_mean() -> None:
    prompts = prompt_lengths(2_000)
    assert prompts == (1_100, 1_550, 2_000, 2_450, 2_900)
    assert held_tokens(prompts[1]) == prompts[0] + 300 - 1


def test_only_later_requests_reuse(model: Model) -> None:
    profile, prompts = calibrated(model), prompt_lengths(8_000)
    off, on = (predicted_ms(profile, prompts, reuse=reuse) for reuse in (False, True))
    assert on[0] == off[0]
    assert all(after < before for after, before in zip(on[1:], off[1:], strict=True))
    expected_s = profile.transfer_s(7_399) + profile.prefill_s(151) + profile.delivery_s(prompts[1])
    assert on[1] == pytest.approx(expected_s * 1e3)
