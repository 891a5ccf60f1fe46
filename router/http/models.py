"""``GET /v1/models``: what the pool serves, merged over its decode nodes."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from router import errors
from router.engines.upstream import Answer, Call, Limits, UpstreamError
from router.fleet.node import Node, Role
from router.turn.context import Context
from router.turn.legs import client_headers, engine_headers
from router.turn.telling import told

_LIMITS = Limits(connect_s=2.0, answer_s=10.0, max_answer_bytes=8_388_608)
_PATH = "/v1/models"


@dataclass(frozen=True, slots=True)
class ModelsRoute:
    """Asks every ready decode node. One node's answer passes unchanged; several are merged by model id."""

    context: Context

    async def get(self, request: Request) -> Response:
        nodes = self.context.fleet.snapshot.ready(Role.DECODE)
        if not nodes:
            return _refused(errors.NoCapacity("no decode node is ready"))
        headers = tuple((k.decode("latin-1"), v.decode("latin-1")) for k, v in request.headers.raw)
        results = await asyncio.gather(*(self._ask(node, headers) for node in nodes))
        answers = [result for result in results if isinstance(result, Answer)]
        good = [answer for answer in answers if answer.status == 200]
        if len(good) > 1:
            return Response(_merged(good), media_type="application/json")
        if answers:
            answer = good[0] if good else answers[0]
            return Response(answer.body, answer.status, dict(client_headers(answer.headers)))
        error = next(result for result in results if isinstance(result, UpstreamError))
        return _refused(told("decode", nodes[0].key, error))

    async def _ask(self, node: Node, headers: tuple[tuple[str, str], ...]) -> Answer | UpstreamError:
        sent = engine_headers(headers, leg_id="brg-models", api_key=self.context.settings.api_key())
        try:
            return await self.context.upstream.send(node.origin, Call("GET", _PATH, sent, limits=_LIMITS))
        except UpstreamError as error:
            return error


def _refused(error: errors.RequestError) -> Response:
    row = errors.error_row(error)
    return Response(errors.openai_error(error), row.status, dict(errors.error_headers(error)))


def _merged(answers: Sequence[Answer]) -> bytes:
    models: dict[str, Any] = {}
    for answer in answers:
        try:
            listed = msgspec.json.decode(answer.body).get("data", [])
        except (msgspec.MsgspecError, AttributeError, UnicodeDecodeError):
            continue
        for model in listed:
            if isinstance(model, dict):
                models.setdefault(str(model.get("id")), model)
    return msgspec.json.encode({"object": "list", "data": list(models.values())})
