"""``POST /admin/explain``: what a request would do now, with every alternative, without doing any of it.

The body is ``{"body": <the request's own>, "path": "/v1/chat/completions", "headers": {…}}``; the headers
that name its tenant count, as they do for the request itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from router import errors
from router.http.admin import read_body
from router.http.identity import tenant_of
from router.turn.context import Context
from router.turn.explain import explain_asked
from router.turn.members import InvalidRequest


@dataclass(frozen=True, slots=True)
class ExplainRoute:
    """``identity_header`` as in ``identity.tenant_of``; ``max_body_bytes`` as for the request itself."""

    context: Context
    identity_header: str
    max_body_bytes: int

    def routes(self) -> list[Route]:
        return [Route("/admin/explain", self.explain, methods=["POST"])]

    async def explain(self, request: Request) -> Response:
        def tenant(headers: Sequence[tuple[str, str]]) -> bytes | None:
            return tenant_of(tuple(headers), self.identity_header)

        body = await read_body(request, self.max_body_bytes)
        try:
            told = await explain_asked(self.context, body, tenant)
        except InvalidRequest as error:
            raise errors.BadRequest(str(error), param=error.param) from None
        return Response(msgspec.json.encode(told), media_type="application/json")
