"""The digests are the router's, by the same vectors, and media are told apart."""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from boomerang_vllm.digest import STRIDE_TOKENS, NotAStamp, chain, from_wire, proven, root

HERE = Path(__file__).parent
VECTORS: dict[str, Any] = json.loads((HERE / "stamp_vectors.json").read_text())
ROUTERS_VECTORS = HERE.parents[2] / "tests" / "turn" / "stamp_vectors.json"
ROUTERS_OWN = HERE.parents[2] / "router" / "turn" / "digest.py"


def ids_of(rule: dict[str, int]) -> list[int]:
    return [(rule["first"] + i * rule["step"]) % rule["modulo"] for i in range(rule["count"])]


def named(case: dict[str, Any]) -> str:
    return str(case["name"])


@pytest.mark.skipif(not ROUTERS_VECTORS.exists(), reason="the package stands alone here")
def test_the_vectors_are_the_routers_own() -> None:
    assert (HERE / "stamp_vectors.json").read_bytes() == ROUTERS_VECTORS.read_bytes()


@pytest.mark.parametrize("case", VECTORS["stamps"], ids=named)
def test_a_chain_has_the_wire_format(case: dict[str, Any]) -> None:
    made = chain(ids_of(case["ids"]), len(ids_of(case["ids"])), root(case["extra"].encode()), {})
    assert made.to_wire() == case["stamp"]
    assert from_wire(case["stamp"]) == made


@pytest.mark.parametrize("case", VECTORS["proofs"], ids=named)
def test_a_stamp_proves_what_the_vectors_say(case: dict[str, Any]) -> None:
    held, prompt = ids_of(case["held"]), ids_of(case["prompt"])
    if case["replace"] is not None:
        prompt[case["replace"]] += 1
    stamp = from_wire(json.loads(json.dumps(chain(held, len(held), root(), {}).to_wire())))
    assert proven(stamp, prompt, len(prompt), root(), {}) == case["proven"]


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
    assert proven(chain(held, len(held), root(b"lora:a"), {}), held, len(held), root(b"lora:b"), {}) == 0


def test_equal_placeholders_of_other_media_prove_nothing_from_there_on() -> None:
    held = [7] * 300
    at = 200 // STRIDE_TOKENS
    stamp = chain(held, len(held), root(), {at: b"a cat"})
    assert proven(stamp, [*held, 8], 301, root(), {at: b"a cat"}) == 300
    assert proven(stamp, [*held, 8], 301, root(), {at: b"a dog"}) == at * STRIDE_TOKENS
    assert proven(stamp, [*held, 8], 301, root(), {}) == at * STRIDE_TOKENS


def test_media_in_the_last_tokens_are_covered() -> None:
    held = [7] * 300
    stamp = chain(held, len(held), root(), {2: b"a cat"})
    assert proven(stamp, [*held, 8], 301, root(), {2: b"a dog"}) == 256


def test_ids_that_are_no_ids_raise() -> None:
    with pytest.raises(OverflowError):
        chain([1, -1], 2, root(), {})


@pytest.mark.parametrize("count", [8191, 8192, 8193, 20_000])
def test_more_tokens_than_are_converted_at_once(count: int) -> None:
    held = [number * 7919 % 151_643 for number in range(count)]
    stamp = chain(held, count, root(), {})
    assert stamp.strides == count // STRIDE_TOKENS
    assert proven(stamp, [*held, 1], count + 1, root(), {}) == count
    held[8150] += 1
    assert proven(stamp, held, count, root(), {}) == 8150 // STRIDE_TOKENS * STRIDE_TOKENS


def test_only_the_counted_tokens_are_stamped_and_proven() -> None:
    ids = list(range(1000))
    assert chain(ids, 700, root(), {}) == chain(ids[:700], 700, root(), {})
    assert proven(chain(ids, 700, root(), {}), ids, 650, root(), {}) == 640


@pytest.mark.skipif(not ROUTERS_OWN.exists(), reason="the package stands alone here")
def test_the_router_reads_what_is_stamped() -> None:
    spec = importlib.util.spec_from_file_location("routers_own_digest", ROUTERS_OWN)
    assert spec is not None
    assert spec.loader is not None
    routers = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = routers  # dataclasses look their module up
    spec.loader.exec_module(routers)
    ids = [number * 7919 % 151_643 for number in range(20_000)]
    wire = json.loads(json.dumps(chain(ids, 19_999, root(), {}).to_wire()))
    assert routers.Digests.from_wire(wire) == routers.chain(ids[:19_999])
