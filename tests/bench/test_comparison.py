import json

import pytest

from router.bench.comparison import document, readings_table, rows, table
from router.bench.own_time import calibration
from router.bench.published import Transfer, models
from router.bench.replay import Request
from router.sim.profiles import PROFILES

QWEN = models()[0]


def asked(transfer: Transfer, length: int, number: int, milliseconds: float) -> Request:
    return Request(
        transfer=transfer,
        mean_prompt_tokens=length,
        conversation=0,
        number=number,
        prompt_tokens=length,
        reused_tokens=length // 2 if number and transfer == "on" else 0,
        plan="pull" if number and transfer == "on" else "cold",
        first_token_ms=milliseconds,
    )


PLAYED = [
    asked("off", 4_000, 0, 100),
    asked("off", 4_000, 1, 300),
    asked("on", 4_000, 0, 100),
    asked("on", 4_000, 1, 60),
    asked("off", 2_000, 0, 150),
    asked("off", 2_000, 1, 166),
    asked("on", 2_000, 0, 150),
    asked("on", 2_000, 1, 90),
]


def test_a_row_is_the_mean_of_all_requests_of_a_length_first_ones_included() -> None:
    shorter, longer = rows(QWEN, PLAYED)
    assert (shorter.prompt_tokens, longer.prompt_tokens) == (2_000, 4_000)
    assert (longer.off_ms, longer.on_ms, longer.off_published_ms) == (200, 80, None)
    assert longer.reduction == pytest.approx(2.5)
    assert longer.reduction_published is None
    assert shorter.reduction_published == pytest.approx(158 / 122)


def test_first_requests_are_left_out_where_it_says_so() -> None:
    _, longer = rows(QWEN, PLAYED)
    assert (longer.on_reusing_ms, longer.off_later_ms, longer.reused_share) == (60, 300, 0.5)
    assert longer.reduction_reusing == 5


def test_the_table_has_published_figures_only_where_there_are_any() -> None:
    text = table(QWEN, rows(QWEN, PLAYED))
    assert "| 2,000 | 158 (158, +0.0%) | 120 (122, -1.6%) | 1.32 (1.30) | 90 | 1.84 | 50% |" in text
    assert "| 4,000 | 200 | 80 | 2.50 | 60 | 5.00 | 50% |" in text


def test_the_other_readings_are_told_with_it() -> None:
    text = readings_table(models())
    assert text.count("| GLM-5-FP8 |") == 3
    assert "8.5 µs a token" in text


def test_the_document_is_json_and_whole() -> None:
    profile = PROFILES[QWEN.profile]
    found = calibration(profile, profile, [request for request in PLAYED if request.transfer == "off"])
    told = json.loads(json.dumps(document([(QWEN, rows(QWEN, PLAYED), PLAYED, found)], wrong=0)))
    (model,) = told["models"]
    assert [row["prompt_tokens"] for row in model["rows"]] == [2_000, 4_000]
    assert len(model["requests"]) == len(PLAYED)
    assert [one["prompt_tokens"] for one in model["calibration"]["measured"]] == [2_000, 4_000]
    assert told["wrong_kv"] == 0
