"""The digests are the router's, by the same vectors, and media are told apart."""

import json
from pathlib import Path
from typing import Any

import pytest

from boomerang_vllm.digest import STRIDE_TOKENS, NotAStamp, chain, from_wire, proven, root

HERE = Path(__file__).parent
VECTORS: dict[str, Any] = json.loads((HERE / "stamp_vectors.json").read_text())
ROUTERS_OWN = HERE.parents[2] / "tests" / "turn" / "stamp_vectors.json"


def ids_of(rule: dict[str, int]) -> list[int]:
    return [(rule["first"] + i * rule["step"]) % rule["modulo"] for i in range(rule["count"])]


def named(case: dict[str, Any]) -> str:
    return str(case["name"])


@pytest.mark.skipif(not ROUTERS_OWN.exists(), reason="the package stands alone here")
def test_the_vectors_are_the_routers_own() -> None:
    assert (HERE / "stamp_vectors.json").read_bytes() == ROUTERS_OWN.read_bytes()


@pytest.mark.parametrize("case", VECTORS["stamps"], ids=named)
def test_a_chain_has_the_wire_format(case: dict[str, Any]) -> None:
    made = chain(ids_of(case["ids"]), root(case["extra"].encode()), {})
    assert made.to_wire() == case["stamp"]
    assert from_wire(case["stamp"]) == made


@pytest.mark.parametrize("case", VECTORS["proofs"], ids=named)
def test_a_stamp_proves_what_the_vectors_say(case: dict[str, Any]) -> None:
    held, prompt = ids_of(case["held"]), ids_of(case["prompt"])
    if case["replace"] is not None:
        prompt[case["replace"]] += 1
    stamp = from_wire(json.loads(json.dumps(chain(held, root(), {}).to_wire())))
    assert proven(stamp, prompt, root(), {}) == case["proven"]


@pytest.mark.parametrize("case", VECTORS["refused"], ids=named)
def test_a_broken_stamp_is_refused(case: dict[str, Any]) -> None:
    try:
        stamp = from_wire(case["stamp"])
    except NotAStamp:
        return
    # The other kind is sound here; the router's vectors are of token stamps.
    assert stamp.kind == "blocks"


def test_another_root_proves_nothing() -> None:
    held = list(range(1000))
    assert proven(chain(held, root(b"lora:a"), {}), held, root(b"lora:b"), {}) == 0


def test_equal_placeholders_of_other_media_prove_nothing_from_there_on() -> None:
    held = [7] * 300
    at = 200 // STRIDE_TOKENS
    stamp = chain(held, root(), {at: b"a cat"})
    assert proven(stamp, [*held, 8], root(), {at: b"a cat"}) == 300
    assert proven(stamp, [*held, 8], root(), {at: b"a dog"}) == at * STRIDE_TOKENS
    assert proven(stamp, [*held, 8], root(), {}) == at * STRIDE_TOKENS


def test_media_in_the_last_tokens_are_covered() -> None:
    held = [7] * 300
    stamp = chain(held, root(), {2: b"a cat"})
    assert proven(stamp, [*held, 8], root(), {2: b"a dog"}) == 256


def test_ids_that_are_no_ids_raise() -> None:
    with pytest.raises(OverflowError):
        chain([1, -1], root(), {})
