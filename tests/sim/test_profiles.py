import asyncio

import pytest

from router.sim.engine import SimEngine
from router.sim.profiles import PROFILES, Profile
from router.sim.sequence import Prompt, Sequence
from router.sim.tokens import encode
from tests.sim.pool import COLD, Pool

QWEN = PROFILES["qwen3-32b"]
TEXT = "/v1/completions"


@pytest.mark.parametrize(("tokens", "milliseconds"), [(2_000, 153), (24_000, 744)])
def test_the_published_prefill_times(tokens: int, milliseconds: float) -> None:
    assert QWEN.prefill_s(tokens) * 1e3 == pytest.approx(milliseconds, abs=0.5)


@pytest.mark.parametrize(("tokens", "milliseconds"), [(2_000, 30), (24_000, 130)])
def test_the_published_transfer_times(tokens: int, milliseconds: float) -> None:
    assert QWEN.transfer_s(tokens) * 1e3 == pytest.approx(milliseconds, abs=0.5)


@pytest.mark.parametrize(("tokens", "milliseconds"), [(2_000, 158), (24_000, 778)])
async def test_the_published_times_to_first_token(tokens: int, milliseconds: float) -> None:
    pool = Pool(profile=QWEN, prefix_cache=False)
    prompt = {"prompt": [5] * tokens, "max_tokens": 1}
    began = pool.clock.now()
    params = (await pool.ask("p", {**prompt, "kv_transfer_params": COLD}, TEXT))["kv_transfer_params"]
    await pool.ask("d", {**prompt, "kv_transfer_params": params}, TEXT)
    assert (pool.clock.now() - began) * 1e3 == pytest.approx(milliseconds, abs=0.5)


async def test_a_pull_costs_its_transfer_and_the_rest_of_the_prefill() -> None:
    pool = Pool(profile=QWEN, prefix_cache=False)
    prompt = {"prompt": [5] * 2_000, "max_tokens": 1}
    params = (await pool.ask("p", {**prompt, "kv_transfer_params": COLD}, TEXT))["kv_transfer_params"]
    answer = await pool.ask("d", {**prompt, "kv_transfer_params": params}, TEXT)
    grown = {"prompt": [5] * 2_400, "max_tokens": 1, "kv_transfer_params": answer["kv_transfer_params"]}
    began = pool.clock.now()
    await pool.ask("p", grown, TEXT)
    assert pool.clock.now() - began == pytest.approx(QWEN.transfer_s(2_000) + QWEN.prefill_s(400))


def test_instant_is_instant() -> None:
    instant = PROFILES["instant"]
    assert instant.prefill_s(9) == instant.transfer_s(9) == instant.delivery_s(9) == 0


def asked(engine: SimEngine, text: str, began_s: float) -> Sequence:
    prompt = Prompt.of(encode(text))
    return engine.sequence(prompt, answer_id=text, path=TEXT, bound_tokens=1, began_s=began_s)


async def test_what_the_simulation_itself_takes_is_no_part_of_what_it_simulates() -> None:
    """Reading a request took 30 ms: an engine that takes 100 ms for it has 70 left."""
    pool = Pool(profile=Profile(prefill_ms=100))
    began_s = pool.clock.now()
    sequence = asked(pool.p, "a question", began_s)
    pool.clock.advance(0.03)
    await pool.p.prefill(sequence)
    assert pool.clock.now() - began_s == pytest.approx(0.1)


async def test_prefills_that_wait_for_each_other_do_not_catch_up_what_they_waited() -> None:
    pool = Pool(profile=Profile(prefill_ms=100))
    began_s = pool.clock.now()
    sequences = [asked(pool.p, text, began_s) for text in ("one question", "another", "a third")]
    await asyncio.gather(*map(pool.p.prefill, sequences))
    assert pool.clock.now() - began_s == pytest.approx(0.3)
