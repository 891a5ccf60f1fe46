"""The page of headers that mean something to the router. ``tests/docs`` compares it with the code."""

from router.http.identity import _CREDENTIAL_HEADERS
from router.turn.ending import FINAL_HEADER, ONE_SHOT_HEADER
from router.turn.request import _CONVERSATION_HEADERS
from scripts.reference.markdown import code, page, table

IDS = ", ".join(code(name) for name in _CONVERSATION_HEADERS)
CREDENTIALS = ", ".join(code(name) for name in _CREDENTIAL_HEADERS)
REQUEST = (
    (
        CREDENTIALS,
        "the first one that is there names the tenant, by its digest; passed on to engines as it came",
    ),
    (
        "the one of `--identity-header`",
        "names the tenant instead, where it is set. Only a gateway may be able to set it",
    ),
    (
        IDS,
        "the client's own name for its conversation; the first one that is there, after `session_id` in the body. A hint for"
        " logs, metrics, the admin API and [ending a conversation](../pins.md#ending-a-conversation): it is never what finds"
        " the KV",
    ),
    (
        code(FINAL_HEADER),
        "`true`: nothing follows this turn, which leaves no handle; those of the conversation are released",
    ),
    (code(ONE_SHOT_HEADER), "`true`: this turn is to be the only one, and leaves no handle (`--one-shot`)"),
    (code("x-request-id"), "echoed in the answer and told in the log. Engines get a fresh id for each leg"),
    (
        f"{code('traceparent')}, {code('tracestate')}",
        "the caller's trace, told in the log and to both engines; each leg's own span where the turn is"
        " [traced](../tracing.md)",
    ),
    (
        code("x-data-parallel-rank"),
        "taken off: a leg goes to the rank that holds its KV, and the router says which",
    ),
)
RESPONSE = (
    (code("x-boomerang-plan"), "what the turn did: [plans](plans.md)"),
    (code("x-boomerang-reason"), "why: [reasons](plans.md#reasons)"),
    (
        code("x-boomerang-reused-tokens"),
        "prompt tokens that no engine computed in this turn, as the prefill node reports them; not where D alone answers",
    ),
    (
        code("server-timing"),
        "what came before the answer, in milliseconds: `wait` for a place, `verify` in the router, `prefill`, and the `gap`"
        " between the legs",
    ),
    (code("x-request-id"), "the client's own, else the turn's id as in the log, `brg-…`"),
    (code("retry-after"), "an engine's own; or the router's, with 429 and 503"),
)
INTRO = """\
Headers of requests go on to both legs, but for hop-by-hop ones, `host`, `content-length`, `content-type`,
`accept-encoding`, `expect`, and those below that say so. Engines' headers come back in the same way.

`--no-explain-headers` leaves the `x-boomerang-…` and `server-timing` headers out."""


def headers_page() -> str:
    """Request and response headers."""
    return page(
        "Headers",
        INTRO,
        "## Of requests",
        table(("header", "means"), REQUEST),
        "## Of answers",
        table(("header", "tells"), RESPONSE),
    )
