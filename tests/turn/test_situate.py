"""A situation holds what is true now: who may serve, who can be read from, what was measured."""

import json

from router.http.identity import ANONYMOUS
from router.turn.plan import Reason
from router.turn.request import Endpoint, Request, read_request
from router.turn.situate import look_up, situate
from tests.e2e.http_pool import CHAT, STOCK_33, Body, http_pool, opening, second_turn


def read(body: Body) -> Request:
    return read_request(Endpoint.CHAT, CHAT, (), json.dumps(body).encode(), turn_id="t")


async def test_a_history_that_is_known_brings_its_handle_and_its_sizes() -> None:
    async with http_pool(stay_max_tokens=77, policy="least_load") as pool:
        body = read(await second_turn(pool))
        known = await look_up(pool.router.context, body, ANONYMOUS)
        given = situate(pool.router.context, body, known)
        assert known.remembers
        assert given.found is not None
        assert given.found.handle is not None
        assert list(given.sizes_bytes) == sorted(given.sizes_bytes)
        assert (given.stay_max_tokens, given.policy, given.threshold_tokens) == (77, "least_load", 64)
        assert given.loads.prefills[given.prefills[0].key].queue_s == 0.0
        assert situate(pool.router.context, body, known).turn == given.turn + 1


async def test_what_is_in_doubt_is_not_looked_up() -> None:
    async with http_pool() as pool:
        body = await second_turn(pool)
        nobody = await look_up(pool.router.context, read(body), None)
        assert (nobody.found, nobody.cold_reason) == (None, Reason.NO_IDENTITY)
        alone = await look_up(pool.router.context, read({**body, "n": 2}), ANONYMOUS)
        assert (alone.found, alone.remembers) == (None, False)
        again = await look_up(pool.router.context, read(body), ANONYMOUS)
        assert again.found is not None
        assert again.found.handle is not None


async def test_a_node_that_drains_can_be_read_from_and_gets_no_turn() -> None:
    async with http_pool(decode=[STOCK_33, STOCK_33]) as pool:
        context = pool.router.context
        holder = context.fleet.snapshot.nodes[1]
        context.fleet.drain(holder.key, "test")
        body = read(opening())
        given = situate(context, body, await look_up(context, body, ANONYMOUS))
        assert holder.key not in {node.key for node in given.decodes}
        assert holder.key in {node.key for node in given.readable}


async def test_a_model_that_nobody_serves_goes_to_anybody() -> None:
    async with http_pool() as pool:
        body = read({**opening(), "model": "unheard of"})
        given = situate(pool.router.context, body, await look_up(pool.router.context, body, ANONYMOUS))
        assert given.prefills
        assert given.decodes
