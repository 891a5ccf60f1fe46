"""Digests prove equal tokens and nothing more, and their wire format is fixed by vectors."""

import json
import struct
from array import array
from base64 import b64encode
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.turn.digest import (
    DIGEST_BYTES,
    MAX_STAMP_TOKENS,
    STRIDE_TOKENS,
    Digests,
    chain,
    link,
    pack,
    root,
)

VECTORS = Path(__file__).with_name("stamp_vectors.json")

# Ids are given as a rule, so that long vectors stay readable: (first + i * step) % modulo, for i up to count.
# The modulo is a prime near the size of a vocabulary, or the whole range of an id.
RULES: dict[str, dict[str, int]] = {
    "empty": {"first": 0, "step": 0, "modulo": 1, "count": 0},
    "one token": {"first": 9707, "step": 0, "modulo": 151_643, "count": 1},
    "one less than a stride": {"first": 1, "step": 7919, "modulo": 151_643, "count": 127},
    "one stride": {"first": 1, "step": 7919, "modulo": 151_643, "count": 128},
    "one more than a stride": {"first": 1, "step": 7919, "modulo": 151_643, "count": 129},
    "several strides and a rest": {"first": 1, "step": 7919, "modulo": 151_643, "count": 788},
    "the largest ids": {"first": 4_294_967_295, "step": 4_294_967_294, "modulo": 4_294_967_296, "count": 256},
}
EXTRA = {"several strides and a rest": b"lora:sql-expert"}


def ids_of(rule: dict[str, int]) -> list[int]:
    return [(rule["first"] + i * rule["step"]) % rule["modulo"] for i in range(rule["count"])]


def by_the_book(ids: list[int], extra: bytes) -> dict[str, Any]:
    """The stamp as the module's docstring defines it, written down a second time and without its code."""

    def digest(*parts: bytes) -> bytes:
        return blake2b(b"".join(parts), digest_size=8, person=b"boomerang-tok-1").digest()

    value = start = digest(extra)
    links = b""
    whole = len(ids) // 128 * 128
    for at in range(0, whole, 128):
        value = digest(value, struct.pack("<128I", *ids[at : at + 128]))
        links += value
    rest = ids[whole:]
    tail = digest(value, struct.pack(f"<{len(rest)}I", *rest)) if rest else b""
    return {
        "v": 1,
        "kind": "tokens",
        "stride": 128,
        "tokens": len(ids),
        "root": start.hex(),
        "digests": b64encode(links).decode(),
        "tail": tail.hex(),
    }


def make_vectors() -> dict[str, Any]:
    """The content of ``stamp_vectors.json``.

    To write it anew, after the wire format got another version:
    ``python -c "from tests.turn.test_digest import *; write_vectors()"`` in the repository's root.
    """
    stamps = [
        {
            "name": name,
            "extra": extra.decode(),
            "ids": rule,
            "stamp": by_the_book(ids_of(rule), extra),
        }
        for name, rule in RULES.items()
        for extra in dict.fromkeys((b"", EXTRA.get(name, b"")))
    ]
    held = {"first": 1, "step": 7919, "modulo": 151_643, "count": 788}
    proofs = [
        {"name": name, "held": held, "prompt": {**held, "count": count}, "replace": edit, "proven": proven}
        for name, count, edit, proven in (
            ("the prompt goes on", 1000, None, 788),
            ("the prompt is what is held", 788, None, 788),
            ("one token is missing: the tail proves nothing", 787, None, 768),
            ("it ends at a stride", 768, None, 768),
            ("it ends before a stride", 767, None, 640),
            ("shorter than a stride", 127, None, 0),
            ("no prompt", 0, None, 0),
            ("the first token differs", 1000, 0, 0),
            ("the last token of a stride differs", 1000, 383, 256),
            ("the first token of a stride differs", 1000, 384, 384),
            ("the last held token differs", 1000, 787, 768),
            ("the first token past the held ones differs", 1000, 788, 788),
        )
    ]
    good = by_the_book(ids_of(held), b"")
    return {
        "about": "Token stamps of version 1. ids are (first + i * step) % modulo for i in 0 .. count - 1; "
        "replace is the index of a token that is increased by 1; proven is how many leading tokens of the "
        "prompt a stamp of the held ids proves. Each of the refused is not a sound stamp.",
        "stamps": stamps,
        "proofs": proofs,
        "refused": [{"name": name, "stamp": stamp} for name, stamp in broken_stamps(good).items()],
    }


def broken_stamps(good: dict[str, Any]) -> dict[str, Any]:
    """One thing wrong in each."""

    def without(name: str) -> dict[str, Any]:
        return {key: value for key, value in good.items() if key != name}

    whole = by_the_book(ids_of(RULES["one stride"]), b"")
    return {
        "null": None,
        "a list": [good],
        "a string": json.dumps(good),
        "empty": {},
        **{f"no {name}": without(name) for name in good},
        **{f"{name} is null": {**good, name: None} for name in good},
        **{f"{name} is a list": {**good, name: [good[name]]} for name in good},
        **{f"{name} is a flag": {**good, name: True} for name in good},
        "a later version": {**good, "v": 2},
        "the version as a text": {**good, "v": "1"},
        "the version as a fraction": {**good, "v": 1.0},
        "block hashes": {**good, "kind": "blocks"},
        "an unknown kind": {**good, "kind": "Tokens"},
        "no stride at all": {**good, "stride": 0},
        "a negative stride": {**good, "stride": -128},
        "a fraction of a stride": {**good, "stride": 128.0},
        "negative tokens": {**good, "tokens": -1},
        "tokens as a text": {**good, "tokens": "788"},
        "too many tokens for the digests": {**good, "tokens": 896},
        "too few tokens for the digests": {**good, "tokens": 767},
        "more tokens than any context": {**good, "tokens": 2**63},
        "a short root": {**good, "root": "00" * 7},
        "a long root": {**good, "root": "00" * 9},
        "an empty root": {**good, "root": ""},
        "a root that is not hexadecimal": {**good, "root": "zz" * 8},
        "a root with spaces": {**good, "root": "00 " * 5 + "0"},
        "a short tail": {**good, "tail": "00" * 7},
        "a long tail": {**good, "tail": "00" * 16},
        "a tail of spaces": {**good, "tail": " " * 16},
        "a tail that is not hexadecimal": {**good, "tail": "é" * 16},
        "a tail where no rest is": {**whole, "tail": "00" * 8},
        "a digest too few": {**good, "digests": b64encode(b"\0" * 40).decode()},
        "half a digest": {**good, "digests": b64encode(b"\0" * 44).decode()},
        "digests that are not base64": {**good, "digests": "*" * 64},
        "digests with a line break": {**good, "digests": good["digests"][:32] + "\n" + good["digests"][32:]},
        "digests of the URL alphabet": {**good, "digests": "-_" * 32},
        "digests with too much padding": {**good, "digests": good["digests"] + "===="},
        "digests without their end": {**good, "digests": good["digests"][:-1]},
        "digests that are not ASCII": {**good, "digests": "é" * 64},
    }


def write_vectors() -> None:
    text = json.dumps(make_vectors(), indent=1, ensure_ascii=False)
    VECTORS.write_text(text + "\n", encoding="utf-8")


EXPECTED = make_vectors()


def by_name(vector: dict[str, Any]) -> str:
    return str(vector["name"])


def test_the_vectors_are_those_of_this_module() -> None:
    assert json.loads(VECTORS.read_text(encoding="utf-8")) == EXPECTED


@pytest.mark.parametrize("vector", EXPECTED["stamps"], ids=by_name)
def test_a_stamp_is_what_its_vector_says(vector: dict[str, Any]) -> None:
    digests = chain(ids_of(vector["ids"]), start=root(vector["extra"].encode()))
    assert digests.to_wire() == vector["stamp"]
    assert Digests.from_wire(vector["stamp"]) == digests


@pytest.mark.parametrize("vector", EXPECTED["proofs"], ids=by_name)
def test_a_stamp_proves_what_its_vector_says(vector: dict[str, Any]) -> None:
    prompt = ids_of(vector["prompt"])
    if vector["replace"] is not None:
        prompt[vector["replace"]] += 1
    assert chain(ids_of(vector["held"])).common(pack(prompt)) == vector["proven"]


@pytest.mark.parametrize("vector", EXPECTED["refused"], ids=by_name)
def test_a_broken_stamp_is_refused(vector: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="stamp"):
        Digests.from_wire(vector["stamp"])


def test_a_stamp_of_the_largest_size_is_read() -> None:
    stamp = chain([]).to_wire() | {"tokens": MAX_STAMP_TOKENS, "stride": MAX_STAMP_TOKENS + 1}
    assert Digests.from_wire(stamp).tokens == MAX_STAMP_TOKENS
    with pytest.raises(ValueError, match="do not cover"):
        Digests.from_wire({**stamp, "tokens": MAX_STAMP_TOKENS + 1, "stride": MAX_STAMP_TOKENS + 2})


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
GOOD = by_the_book(ids_of(RULES["one more than a stride"]), b"")


@given(st.dictionaries(st.sampled_from(sorted(GOOD)), SCALARS | st.lists(SCALARS, max_size=2), min_size=1))
def test_whatever_stands_in_a_stamp_reading_it_gives_digests_or_a_value_error(odd: dict[str, Any]) -> None:
    stamp = {**GOOD, **odd}
    try:
        digests = Digests.from_wire(stamp)
    except ValueError:
        return
    assert digests.to_wire() == {**stamp, "root": stamp["root"].lower(), "tail": stamp["tail"].lower()}


# Two symbols make equal beginnings likely, and long lists of them cheap.
TOKENS = st.lists(st.integers(0, 1), max_size=3 * STRIDE_TOKENS + 5)
COUNTS = st.integers(0, 5 * STRIDE_TOKENS)


def shared(one: list[int], other: list[int]) -> int:
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count


@st.composite
def pairs(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Two lists of ids with a beginning in common, of any length."""
    common = [7] * draw(COUNTS)
    first, second = (
        draw(st.lists(st.integers(0, 9), max_size=9)),
        draw(st.lists(st.integers(0, 9), max_size=9)),
    )
    return common + first + [1] * draw(COUNTS), common + second + [2] * draw(COUNTS)


@given(pairs())
def test_common_is_never_more_than_what_is_equal_and_less_by_no_more_than_a_stride(
    lists: tuple[list[int], list[int]],
) -> None:
    held, prompt = lists
    proven = chain(held).common(pack(prompt))
    equal = shared(held, prompt)
    assert proven <= equal
    if equal == len(held):
        assert proven == len(held)
    else:
        assert proven == equal // STRIDE_TOKENS * STRIDE_TOKENS


@given(TOKENS, st.integers(0, 2 * STRIDE_TOKENS))
def test_a_chain_is_consistent_with_the_chain_of_every_prefix(ids: list[int], at: int) -> None:
    whole, part = chain(ids), chain(ids[:at])
    assert whole.links.startswith(part.links)
    assert part.common(pack(ids)) == part.tokens
    assert len(whole.links) == whole.strides * DIGEST_BYTES == len(ids) // STRIDE_TOKENS * DIGEST_BYTES


@given(TOKENS, TOKENS)
def test_digests_are_equal_only_for_equal_tokens(one: list[int], other: list[int]) -> None:
    assert (chain(one) == chain(other)) == (one == other)


@given(TOKENS)
def test_a_stamp_survives_the_wire(ids: list[int]) -> None:
    digests = chain(ids)
    assert Digests.from_wire(json.loads(json.dumps(digests.to_wire()))) == digests


def test_equal_strides_at_other_places_prove_nothing() -> None:
    """Each value stands on all before it: the same second stride after another first one is another value."""
    first, other, second = [1] * 128, [2] * 128, [3] * 128
    assert chain(first + second).links[8:] != chain(other + second).links[8:]
    assert chain(first + second).common(pack(other + second)) == 0


def test_a_chain_of_another_root_proves_itself_and_nothing_to_others() -> None:
    ids = [5] * 300
    salted = chain(ids, start=root(b"salt"))
    assert salted.root != root()
    assert salted.common(pack(ids)) == 300, "the chain brings its own root along"
    assert not salted.agrees(chain(ids), 128)


def test_a_stamp_without_a_tail_proves_whole_strides_only() -> None:
    ids = list(range(300))
    bare = replace(chain(ids), tail=b"")
    assert bare.common(pack(ids)) == 256
    assert bare.common(pack(ids[:255])) == 128


def test_other_strides_are_compared_in_their_own_steps() -> None:
    ids = pack(range(40))
    one = link(root(), ids[:16].tobytes())
    two = link(one, ids[16:32].tobytes())
    digests = Digests(40, one + two, link(two, ids[32:].tobytes()), stride=16)
    assert digests.common(ids) == 40
    assert digests.common(ids[:39]) == 32
    assert digests.common(pack([*range(20), 0, 0])) == 16
    assert not digests.agrees(chain(ids), 16)


@pytest.mark.parametrize(
    ("held", "other", "tokens", "agree"),
    [
        (range(300), range(300), 300, True),
        (range(300), range(300), 0, True),
        (range(300), range(300), 257, True),
        (range(300), range(300), 256, True),
        (range(300), range(1, 301), 0, True),
        (range(300), range(1, 301), 1, False),
        (range(256), range(300), 256, True),
        (range(300), range(256), 256, True),
        (range(300), [*range(256), 0], 256, True),
        (range(300), [*range(255), 0, 0], 256, False),
        (range(300), [*range(255), 0, 0], 129, False),
        (range(300), [*range(255), 0, 0], 128, True),
        # The third stride is not whole on both sides, so only chains that are equal as a whole agree on it.
        (range(300), [*range(299), 0], 257, False),
        (range(300), range(301), 300, False),
        (range(300), range(500), 300, False),
        ([], [], 0, True),
        ([], range(300), 0, True),
    ],
)
def test_agreement_up_to_a_token(held: Any, other: Any, tokens: int, agree: bool) -> None:
    one, two = chain(list(held)), chain(list(other))
    assert one.agrees(two, tokens) is agree
    assert two.agrees(one, tokens) is agree


def test_a_rest_that_is_not_covered_is_never_agreed_on() -> None:
    bare = replace(chain(range(300)), tail=b"")
    assert bare.agrees(bare, 256)
    assert not bare.agrees(bare, 257)


@given(pairs(), st.integers(0, 6 * STRIDE_TOKENS))
def test_agreement_is_never_more_than_what_is_equal(lists: tuple[list[int], list[int]], tokens: int) -> None:
    held, other = lists
    if chain(held).agrees(chain(other), tokens):
        assert held[:tokens] == other[:tokens]


@pytest.mark.parametrize("bad", [[-1], [2**32], [0, 2**63]])
def test_an_id_that_does_not_fit_is_refused(bad: list[int]) -> None:
    with pytest.raises(OverflowError):
        pack(bad)


def test_packed_ids_are_taken_as_they_are() -> None:
    packed = array("I", [1, 2, 3])
    assert pack(packed) is packed
    assert pack(array("Q", [1, 2, 3])) == packed
    assert pack(iter((1, 2, 3))) == packed
