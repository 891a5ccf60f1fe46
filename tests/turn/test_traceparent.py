"""``traceparent`` is read as W3C Trace Context says, and what cannot be read is not there."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.turn.traceparent import TraceParent, is_sampled_at, read_traceparent

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def read(*values: str) -> TraceParent | None:
    return read_traceparent([("x-first", "x"), *(("traceparent", value) for value in values)])


@pytest.mark.parametrize(
    ("value", "is_sampled"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-03", True),
        (f"00-{TRACE}-{SPAN}-fe", False),
        (f" 00-{TRACE}-{SPAN}-01 ", True),
        (f"cc-{TRACE}-{SPAN}-01", True),
        (f"01-{TRACE}-{SPAN}-01-what-comes-later", True),
    ],
)
def test_what_is_read(value: str, is_sampled: bool) -> None:
    assert read(value) == TraceParent(TRACE, SPAN, is_sampled)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "1",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE}-{SPAN}-01-",
        f"01-{TRACE}-{SPAN}-01more",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[1:]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-01, 00-{TRACE}-{SPAN}-01",
        f"01-{TRACE}-{SPAN}-01-{'x' * 600}",
        f"0٠-{TRACE}-{SPAN}-01",
    ],
)
def test_what_is_not_read(value: str) -> None:
    assert read(value) is None


def test_of_several_none_is_read() -> None:
    assert read(f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-01") is None
    assert read() is None


@given(
    st.integers(1, (1 << 128) - 1),
    st.integers(1, (1 << 64) - 1),
    st.booleans(),
)
def test_what_is_written_is_read(trace: int, span: int, is_sampled: bool) -> None:
    parent = TraceParent(f"{trace:032x}", f"{span:016x}", is_sampled)
    assert read(parent.header) == parent


@given(st.text())
def test_no_text_raises(text: str) -> None:
    read(text)


@pytest.mark.parametrize(
    ("low", "ratio", "sampled"),
    [
        (0, 0.0, False),
        (0, 1e-9, True),
        ((1 << 64) - 1, 1.0, True),
        ((1 << 64) - 1, 0.999, False),
        ((1 << 63) - 1, 0.5, True),
        (1 << 63, 0.5, False),
    ],
)
def test_all_that_see_an_id_decide_alike(low: int, ratio: float, sampled: bool) -> None:
    assert is_sampled_at(f"{'f' * 16}{low:016x}", ratio) is sampled
