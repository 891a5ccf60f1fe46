"""What may stand in a header, one by one and all together."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.engines.headers import are_headers, is_header

NAMES = st.text("aZ0-_ :\r\n\x00é", max_size=3)
VALUES = st.text("a \t\r\n\x00\x7fé", max_size=3)


@given(st.lists(st.tuples(NAMES, VALUES), max_size=4))
def test_all_are_headers_where_each_one_is(headers: list[tuple[str, str]]) -> None:
    assert are_headers(headers) == all(is_header(name, value) for name, value in headers)


@pytest.mark.parametrize("bad", [("", "v"), ("a b", "v"), ("a", "v\r\nb: c"), ("a\n", "v")])
def test_one_that_is_none_is_found_among_others(bad: tuple[str, str]) -> None:
    assert not is_header(*bad)
    assert not are_headers([("a", "b"), bad, ("c", "d")])
    assert are_headers([("a", "b"), ("c", "d")])
