from hypothesis import given
from hypothesis import strategies as st

from router.ledger.sharded import Sharded


@given(st.lists(st.tuples(st.sampled_from(["set", "remove"]), st.binary(max_size=2), st.integers())))
def test_it_is_a_dictionary(steps: list[tuple[str, bytes, int]]) -> None:
    table: Sharded[bytes, int] = Sharded()
    plain: dict[bytes, int] = {}
    for step, key, value in steps:
        if step == "set":
            table.set(key, value)
            plain[key] = value
        elif key in plain:
            table.remove(key)
            del plain[key]
        else:
            try:
                table.remove(key)
            except KeyError:
                pass
            else:
                raise AssertionError("removed what was not there")
        assert len(table) == len(plain)
        assert table.get(key) == plain.get(key)
    for key, value in plain.items():
        assert table.get(key) == value
