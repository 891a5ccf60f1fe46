"""The page of routes, from the wired applications."""

from collections.abc import Iterable

from starlette.routing import BaseRoute, Route

from router.app import build
from router.front import application
from router.http.page import FILES, PageRoutes
from router.settings import Settings
from scripts.reference.markdown import code, page, same, table

CLIENTS: dict[str, str] = {
    "POST /v1/chat/completions": "split over a prefill and a decode node, streamed or not",
    "POST /v1/completions": "the same",
    "POST /v1/responses": "on one decode node, unsplit; what an engine stores for `previous_response_id` stays with"
    " that engine",
    "POST /v1/messages": "on one decode node, unsplit",
    "POST /v1/messages/count_tokens": "the same",
    "POST /v1/embeddings": "the same",
    "POST /v1/rerank": "the same",
    "POST /v2/rerank": "the same",
    "POST /rerank": "the same",
    "POST /v1/score": "the same",
    "POST /score": "the same",
    "POST /classify": "the same",
    "POST /pooling": "the same",
    "POST /tokenize": "the same",
    "POST /detokenize": "the same",
    "GET /v1/models": "the models of all ready decode nodes, merged by id",
    "DELETE /v1/conversations/{id}": "the caller's conversation of that name is over: what it pins is released; 404"
    " where the caller has none of that name ([pins](../pins.md))",
    "GET /live": "200 while the process serves; says nothing of engines",
    "GET /ready": "200 while a node of each role may get turns and the router is not draining, else 503 and why",
    "GET /health": "the status of `/ready`, and every node, how each pair verifies, and hints",
    "GET /metrics": "Prometheus, text format ([metrics](../metrics.md))",
}
ADMIN: dict[str, str] = {
    "GET /admin/nodes": "every node with its state, why, since when; what is not trusted for now",
    "POST /admin/nodes": 'takes a node in: `{"url", "role", "weight", "limit"}`; `role` may be `both`',
    "DELETE /admin/nodes/{key}": "drains a node and lets it go; with `?now=true` at once",
    "POST /admin/nodes/{key}/drain": "no new turns on it; what it holds may still be read",
    "POST /admin/nodes/{key}/undrain": "takes that back",
    "GET /admin/conversations": "branches of all tenants, most recently used first: `?limit=100&cursor=…`; names and"
    " numbers, never content",
    "POST /admin/explain": "what a request would do now, with every alternative; nothing is run"
    " ([planning](../planning.md))",
    "GET /": "leads to `/page`",
    "GET /page": "the live page; it and its files hold nothing of the router's, and need no token",
    "GET /page/events": "what the live page shows, as server-sent events",
}
_PARTS = set(FILES) - {"/page"}
"""What the live page is made of."""
INTRO = """\
What is not listed is answered 404 by the router, never passed on. Request bodies are JSON, not compressed, up to
`--max-body-bytes`. Answers and errors of engines pass unchanged; the router's own: [errors](errors.md)."""
ADMIN_INTRO = """\
On a listener of its own (`--admin-host`, `--admin-port`), never on the clients' port, and only if a port is set. With
`--admin-token-file` each request needs `Authorization: Bearer TOKEN`. Without one the listener has to be on a loopback
address, and refuses what other web pages could send: requests with an `Origin` that is not its own, or with a `Host` that is
no loopback address."""


def routes_page() -> str:
    """Every route of both listeners. Raises Incomplete where one is not described here."""
    router = build(Settings(prefill=("http://p:8100",), decode=("http://d:8200",)))
    clients, admin = (
        _named(application(router).routes),
        _named(router.admin_routes(PageRoutes(router.view()))),
    )
    same("routes", clients, CLIENTS)
    same("routes of the admin API", admin, ADMIN)
    return page(
        "Routes",
        INTRO,
        "## For clients",
        table(("route", "does"), ((code(name), text) for name, text in CLIENTS.items())),
        "## The admin API",
        ADMIN_INTRO,
        table(("route", "does"), ((code(name), text) for name, text in ADMIN.items())),
    )


def _named(routes: Iterable[BaseRoute]) -> list[str]:
    return [
        f"{method} {route.path}"
        for route in routes
        if isinstance(route, Route) and route.path not in _PARTS
        for method in sorted((route.methods or set()) - {"HEAD"})
    ]
