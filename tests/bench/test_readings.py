import pytest

from router.bench.published import models
from router.bench.readings import readings, unseen

QWEN, GLM = models()


def test_the_reading_that_is_replayed() -> None:
    """By hand, GLM-5-FP8 at 20,000: 2,241.6 ms cold once, 422.3 to 427.9 ms four times."""
    replayed = readings(GLM)[0]
    assert replayed.prompt_tokens == (2_000, 20_000)
    assert replayed.published_ms == pytest.approx((358, 702))
    assert replayed.predicted_ms[1] == pytest.approx((2241.6 + 4 * 425.1) / 5, abs=1)


def test_without_first_requests_reuse_looks_better() -> None:
    for model in (QWEN, GLM):
        every, reusing, _ = readings(model)
        assert reusing.predicted_ms[1] < every.predicted_ms[1]


def test_what_is_unseen_is_as_much_a_token_in_both_models() -> None:
    """414 - 130 - 99.3 - 0.02686 * 150 = 181 ms, less what 151 tokens fewer take to move."""
    rest = unseen(QWEN)
    assert rest.at_ends_ms[1] == pytest.approx(181, abs=1)
    assert rest.us_per_token == pytest.approx(8.5, abs=0.1)
    assert unseen(GLM).us_per_token == pytest.approx(8.0, abs=0.1)
