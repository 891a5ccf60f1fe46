"""Ending and listing conversations over HTTP: each tenant its own, and never what was said."""

from dataclasses import replace
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from router.app import Router, build
from router.errors import RequestError
from router.front import application
from router.http.conversations import ConversationRoutes, EndRoute
from router.http.identity import tenant_of
from router.http.refusals import refuse
from router.ledger.memory import MemoryLedger
from router.ledger.store import Finish, Handle, LedgerUnavailable, Put, Trace, owner_of
from router.settings import Settings
from router.sim.upstream import SimUpstream
from router.turn.request import conversation_hint

TTL_S = 100.0


def router_of(**options: Any) -> Router:
    return build(
        Settings(prefill=("http://p:8000",), decode=("http://d:8000",), **options), upstream=SimUpstream({})
    )


@pytest.fixture
def router() -> Router:
    return router_of()


def client_of(router: Router, identity_header: str = "") -> httpx.AsyncClient:
    context = router.context
    assert context.pins is not None
    routes = [
        EndRoute(context, identity_header).route(),
        *ConversationRoutes(context.pins, context.now).routes(),
    ]
    app = Starlette(routes=routes, exception_handlers={RequestError: refuse, Exception: refuse})
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://router")


async def put(router: Router, name: str, *, key: str = "k1", number: int = 0, tokens: int = 300) -> None:
    """A turn of a caller with an API key, as the relay records it."""
    tenant = tenant_of([("authorization", f"Bearer {key}")], "")
    assert tenant is not None
    now_s = router.context.now()
    trace = Trace("p:p", "d:d", 250, 1_000, 120, now_s, Finish.TOOL_CALLS, "pull", "extension")
    handle = Handle(b"{}", "d:d", "e", tokens, 250, now_s + TTL_S)
    keys = (f"{name}{key}{number}".encode().ljust(16, b"."),)
    await router.context.ledger.put(Put(keys, None, trace, handle, name, owner=owner_of(tenant, name)))


def auth(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def test_a_conversation_is_ended_by_its_name(router: Router) -> None:
    await put(router, "mine")
    await put(router, "mine", number=1)
    async with client_of(router) as client:
        answer = await client.delete("/v1/conversations/mine", headers=auth("k1"))
        assert answer.status_code == 200
        assert answer.json() == {
            "id": "mine", "object": "conversation.deleted", "deleted": True, "released_handles": 2,
        }  # fmt: skip
        assert len(router.context.releases) == 2
        assert (await client.delete("/v1/conversations/mine", headers=auth("k1"))).status_code == 404


async def test_anothers_conversation_is_as_unknown_as_nobodys(router: Router) -> None:
    await put(router, "mine", key="k1")
    async with client_of(router) as client:
        anothers = await client.delete("/v1/conversations/mine", headers=auth("k2"))
        nobodys = await client.delete("/v1/conversations/nobodys", headers=auth("k2"))
        anonymous = await client.delete("/v1/conversations/mine")
        assert anothers.status_code == nobodys.status_code == anonymous.status_code == 404
        assert anothers.content == nobodys.content == anonymous.content
        assert anothers.json()["error"]["code"] == "not_found"
        assert "mine" not in anothers.text
        assert len(router.context.releases) == 0
        assert (await client.delete("/v1/conversations/mine", headers=auth("k1"))).status_code == 200


async def test_a_caller_in_doubt_ends_nothing(router: Router) -> None:
    await put(router, "mine", key="k1")
    async with client_of(router, "x-tenant") as client:
        assert (await client.delete("/v1/conversations/mine", headers=auth("k1"))).status_code == 404
    async with client_of(router) as client:
        twice = [("authorization", "Bearer k1"), ("authorization", "Bearer k1")]
        assert (await client.delete("/v1/conversations/mine", headers=twice)).status_code == 404


@pytest.mark.parametrize("name", ["a b", "ü", "a%00b", "x" * 300])
async def test_names_are_read_as_they_were_when_their_turns_came(router: Router, name: str) -> None:
    kept = conversation_hint({"x-session-id": name.replace("%00", "\0")}, {})
    if kept:
        await put(router, kept)
    async with client_of(router) as client:
        answer = await client.delete(f"/v1/conversations/{name}", headers=auth("k1"))
        assert answer.status_code == (200 if kept else 404)


async def test_a_ledger_that_is_down_is_no_404(router: Router) -> None:
    class Down(MemoryLedger):
        async def end(self, owner: bytes) -> tuple[Handle, ...] | None:
            raise LedgerUnavailable("down")

    router.context = replace(router.context, pins=Down())
    async with client_of(router) as client:
        answer = await client.delete("/v1/conversations/mine", headers=auth("k1"))
        assert answer.status_code == 503


async def test_operators_see_where_things_are(router: Router) -> None:
    await put(router, "mine")
    async with client_of(router) as client:
        answer = await client.get("/admin/conversations")
        assert answer.status_code == 200
        (line,) = answer.json()["conversations"]
        assert line.items() >= {
            "conversation": "mine", "turns": 1, "plan": "pull", "reason": "extension",
            "finish": "tool_calls", "decode": "d:d", "prefill": "p:p", "prompt_tokens": 250,
            "reused_tokens": 120, "pinned_tokens": 300,
        }.items()  # fmt: skip
        assert 0 <= line["age_s"] < TTL_S
        assert 0 < line["deadline_in_s"] <= TTL_S
        assert answer.json()["cursor"] is None
        assert "k1" not in answer.text


async def test_pages(router: Router) -> None:
    for number in range(5):
        await put(router, f"c{number}", number=number)
    async with client_of(router) as client:
        names: list[str] = []
        cursor: str | None = ""
        while cursor is not None:
            page = (await client.get("/admin/conversations", params={"limit": 2, "cursor": cursor})).json()
            assert len(page["conversations"]) <= 2
            names += [line["conversation"] for line in page["conversations"]]
            cursor = page["cursor"]
        assert names == ["c4", "c3", "c2", "c1", "c0"]


@pytest.mark.parametrize("limit", ["0", "-1", "1001", "many", "", "٣"])
async def test_a_limit_is_a_number(router: Router, limit: str) -> None:
    async with client_of(router) as client:
        answer = await client.get("/admin/conversations", params={"limit": limit})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "limit"


async def test_clients_do_not_reach_what_is_for_operators(router: Router) -> None:
    app = application(router)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://router") as client:
        assert (await client.get("/admin/conversations")).status_code == 404
        assert (await client.delete("/v1/conversations/x")).status_code == 404
        assert (await client.get("/v1/conversations/x")).status_code == 405
