"""The page of the router's own errors, from their table."""

from router.errors import ERROR_ROWS
from scripts.reference.markdown import code, page, table

INTRO = """\
What the router itself answers, in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`. An engine's own error
passes through unchanged: status, body and `Retry-After`. `retry-after` comes with 503 and 429; no answer was begun
then, so that another attempt is safe.

In a stream that has begun the status is 200 already. The error is then an event, `data: {"error": …}`, and
`data: [DONE]` after it, as vLLM does; on `/v1/messages` it is Anthropic's, `event: error`. An answer that broke off never looks complete."""


def errors_page() -> str:
    """Status, type and code of every error."""
    rows = (
        (
            str(row.status),
            code(row.code),
            code(row.type),
            " ".join(str(kind.__doc__).replace("``", "`").split()),
        )
        for kind, row in sorted(ERROR_ROWS.items(), key=lambda item: item[1].status)
    )
    return page("Errors", INTRO, table(("status", "code", "type", "when"), rows))
