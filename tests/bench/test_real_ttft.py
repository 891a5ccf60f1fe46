"""What needs no engine of the benchmark on real ones."""

from typing import Literal

import pytest

from bench.real_ttft import Turn, judged, summary, table

COLD = [("a", 2.0), ("b", 0.0005), ("c", 1.0)]


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (COLD, "equal"),
        ([("a", 2.0), ("x", 0.1), ("y", 1.0)], "rounding"),
        ([("x", 2.0), ("b", 0.1), ("c", 1.0)], "wrong"),
        ([("a", 2.0), ("b", 0.0005), ("x", 1.0)], "wrong"),
        (COLD[:2], "wrong"),
        ([], "wrong"),
    ],
)
def test_an_answer_beside_that_of_the_cold_path(answer: list[tuple[str, float]], verdict: str) -> None:
    assert judged(COLD, answer) == verdict


def turn(
    number: int, off_ms: float, on_ms: float, answer: Literal["equal", "rounding", "wrong"] = "equal"
) -> Turn:
    reused_tokens = 1_900 if number > 1 else 0
    return Turn(1, number, 2_000 + number, reused_tokens, "pull", off_ms, on_ms, answer)


TURNS = [
    turn(1, 900, 900),
    turn(2, 1_000, 100),
    turn(3, 1_200, 400, "wrong"),
    turn(4, 1_000, 200, "rounding"),
]


def test_first_turns_are_no_part_of_what_reuse_is_worth() -> None:
    told = summary(TURNS)
    assert told["reduction_median"] == 5
    assert told["least_prompt_tokens"] == 2_002
    assert told["turns_that_reused"] == told["turns_after_the_first"] == 3


def test_every_answer_is_judged() -> None:
    told = summary(TURNS)
    assert (told["turns"], told["wrong_answers"], told["answers_that_rounding_changed"]) == (4, 1, 1)


def test_the_table_has_a_row_for_each_turn_and_one_for_the_later_ones() -> None:
    lines = table(TURNS).splitlines()
    assert [line.split("|")[1].strip() for line in lines[2:]] == ["1", "2", "3", "4", "from 2 on"]
    assert "| 5.00 (3.00–10.00) |" in lines[-1]
