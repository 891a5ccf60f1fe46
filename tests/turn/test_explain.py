"""What a request would do is told, and nothing happens: no leg is sent, and no handle is used."""

import json
from typing import Any

import pytest

from router.http.identity import ANONYMOUS, tenant_of
from router.ledger.store import Found, LedgerUnavailable
from router.turn.explain import explain, explain_asked
from router.turn.members import InvalidRequest
from router.turn.request import Endpoint, Request, read_request
from tests.e2e.http_pool import (
    CHAT,
    STOCK_33,
    Body,
    HttpPool,
    continued,
    http_pool,
    legs,
    opening,
    second_turn,
)


def read(body: Body, path: str = CHAT, endpoint: Endpoint = Endpoint.CHAT) -> Request:
    return read_request(endpoint, path, (), json.dumps(body).encode(), turn_id="explained")


async def told(pool: HttpPool, body: Body) -> dict[str, Any]:
    found = await explain(pool.router.context, read(body), ANONYMOUS)
    assert json.loads(json.dumps(found)) == found, "a JSON object"
    return found


async def test_what_is_told_is_what_is_done_and_the_handle_is_still_there() -> None:
    async with http_pool() as pool:
        body = await second_turn(pool)
        before = [len(legs(server)) for server in pool.engines]
        for found in [await told(pool, body) for _ in range(3)]:
            assert found["plan"]["kind"] == "local"
            assert found["found"]["handle"]["decode"] == found["plan"]["decode"]
        assert [len(legs(server)) for server in pool.engines] == before
        found = await told(pool, body)
        answer = await pool.chat(body)
        assert answer.headers["x-boomerang-plan"] == found["plan"]["kind"]
        assert answer.headers["x-boomerang-reason"] == found["plan"]["reason"]
        tokens = answer.json()["usage"]["prompt_tokens"]
        assert found["tokens"]["prompt"] == pytest.approx(tokens, rel=0.15)
        pool.sound()


async def test_a_handle_that_cannot_go_back_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    async with http_pool() as pool:
        body, context = await second_turn(pool), pool.router.context

        async def down(found: Found) -> bool:
            raise LedgerUnavailable("down")

        monkeypatch.setattr(context.ledger, "give_back", down)
        found = await told(pool, body)
        decode = found["found"]["handle"]["decode"]
        assert context.releases.lost_tokens(decode) == found["found"]["handle"]["tokens"]


async def test_every_pair_and_every_node_is_told() -> None:
    async with http_pool(prefill=[STOCK_33] * 2, decode=[STOCK_33] * 2, policy="planned") as pool:
        found = await told(pool, opening())
        nodes = {node["node"] for node in found["nodes"]}
        assert len(nodes) == 4
        assert {one["prefill"] for one in found["alternatives"]} < nodes
        assert {one["decode"] for one in found["alternatives"]} < nodes
        assert found["found"] is None
        assert found["plan"]["reason"] == "first_turn"
        first = found["alternatives"][0]
        assert (first["prefill"], first["decode"]) == (found["plan"]["prefill"], found["plan"]["decode"])
        assert all(one["estimate_s"] > 0 for one in found["alternatives"])


async def test_why_a_turn_does_not_stay_is_told() -> None:
    async with http_pool(policy="planned", stay_max_tokens=1) as pool:
        body = opening()
        body = continued(body, await pool.turn(body), " ".join(f"word{n}" for n in range(300)))
        found = await told(pool, body)
        (stay,) = [one for one in found["alternatives"] if one["kind"] == "stay"]
        assert stay["why_not"] == "long_append"


async def test_a_request_that_cannot_be_split() -> None:
    async with http_pool() as pool:
        found = await told(pool, opening(n=2))
        assert (found["plan"]["kind"], found["plan"]["prefill"]) == ("unsplit", None)


async def test_another_tenants_history_is_not_told_of() -> None:
    async with http_pool() as pool:
        body = await second_turn(pool)
        found = await explain(pool.router.context, read(body), b"another tenant..")
        assert found["found"] is None
        nobody = await explain(pool.router.context, read(body), None)
        assert nobody["found"] == {"cold_reason": "no_identity"}


async def test_without_nodes_there_is_no_plan() -> None:
    async with http_pool() as pool:
        for node in pool.router.context.fleet.snapshot.nodes:
            pool.router.context.fleet.remove(node.key)
        found = await told(pool, opening())
        assert found["plan"] is None
        assert found["alternatives"] == []


async def test_a_document_names_path_headers_and_body() -> None:
    async with http_pool() as pool:
        body = opening()
        answer = await pool.turn(body, authorization="Bearer sk-one")
        second = continued(body, answer)

        async def asked(**more: Any) -> dict[str, Any]:
            document = json.dumps({"body": second, **more}).encode()
            return await explain_asked(pool.router.context, document, lambda headers: tenant_of(headers, ""))

        mine = await asked(headers={"Authorization": "Bearer sk-one"})
        assert mine["found"]["relation"] == "extension"
        assert (await asked())["found"] is None
        other = await asked(path="/v1/embeddings")
        assert other["plan"]["kind"] == "unsplit"


@pytest.mark.parametrize(
    "document",
    [b"", b"[]", b"{}", b'{"body":3}', b'{"body":{},"more":1}', b'{"body":{"model":7}}', b"\xff"],
)
async def test_a_document_that_is_none_is_refused(document: bytes) -> None:
    async with http_pool() as pool:
        with pytest.raises(InvalidRequest):
            await explain_asked(pool.router.context, document, lambda _: ANONYMOUS)
