"""The simulation's own promise: an answer is wrong exactly where a corruption was written down.

Random conversations hand their handles over naively, cut or whole, right or wrong. An answer that differs
from the one of an engine that computed everything itself must come with a record, and a record of wrong
blocks must come with another answer. Else a test that asserts "no corruption" would assert nothing.
"""

from random import Random
from typing import Any

import pytest

from router.sim.model import TAINT
from router.sim.record import Corruption
from tests.sim.pool import Message, Pool, system, user

BENIGN = {Corruption.REPLAYED, Corruption.EXPIRED_READ}
"""A read that nobody allowed may still find what was there."""


def changed(random: Random, messages: list[Message]) -> list[Message]:
    """A history grown, edited, cut short, or regenerated."""
    kind = random.random()
    if kind < 0.6:
        return [*messages, user(f"{random.random()} " * random.randint(1, 12))]
    at = random.randrange(1, len(messages))
    if kind < 0.8:
        return [*messages[:at], user(f"edited {random.random()} " * random.randint(1, 12))]
    return [*messages[:at], user("again")]


def handed(random: Random, handle: dict[str, Any]) -> dict[str, Any]:
    """The handle as it is, or cut to whole blocks, rightly or not."""
    if random.random() < 0.7:
        return handle
    blocks = handle["remote_block_ids"][0]
    kept = random.randint(1, len(blocks))
    tokens = min(kept * 16, handle["remote_num_tokens"])
    return {**handle, "remote_num_tokens": tokens, "remote_block_ids": [blocks[:kept]]}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("prefix_cache", [True, False])
async def test_wrong_answers_and_corruptions_go_together(seed: int, prefix_cache: bool) -> None:
    random = Random(seed)
    pool = Pool(
        prefix_cache=prefix_cache,
        recompute_threshold=1,
        num_blocks=4_000,
        decode={"retokenise": random.choice((0.0, 0.05)), "reasoning": random.random() < 0.5},
    )
    messages: list[Message] = [system(40), user()]
    handles: list[dict[str, Any]] = []
    wrong = right = 0
    for turn in range(60):
        seen = [len(engine.corruptions) for engine in (pool.p, pool.d)]
        handle = handed(random, random.choice(handles[-3:])) if handles and random.random() < 0.8 else None
        if pool.p.dead:
            pool.p.restart()
        body = {
            "messages": messages,
            "max_tokens": 1,
            "kv_transfer_params": handle or {"do_remote_decode": True},
        }
        status, first = await pool.post("p", body)
        if status != 200:
            assert pool.p.dead, first
            continue
        params = first["kv_transfer_params"]
        answer = await pool.ask("d", {"messages": messages, "kv_transfer_params": params})
        said, direct = answer["choices"][0]["message"], await pool.direct(messages)
        new = {
            record.kind
            for engine, before in zip((pool.p, pool.d), seen, strict=True)
            for record in engine.corruptions[before:]
        }
        differs = said["content"] != direct["content"]
        assert differs == str(said["content"]).startswith(TAINT)
        assert not differs or new, f"turn {turn}: a wrong answer without a record"
        if new - BENIGN and pool.d.corruptions[seen[1] :]:
            assert differs, f"turn {turn}: {new} without a wrong answer"
        wrong, right = wrong + differs, right + (not differs)
        handles.append(answer["kv_transfer_params"])
        kept = {"content": said["content"], "reasoning": said["reasoning"]}
        messages = changed(random, [*messages, {"role": "assistant", **kept}])
        if wrong and random.random() < 0.3:
            pool.p.pool.clear()
            pool.d.pool.clear()
    assert wrong > 2
    assert right > 2
