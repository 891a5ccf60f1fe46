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
from router.turn.refusal import Refused
from router.turn.telling import answered, told

_LIMITS = Limits(connect_s=2.0, answer_s=10.0, max_answer_bytes=8_388_608)
_PATH = "/v1/models"


@dataclass(frozen=True, slots=True)
class ModelsRoute:
    """Asks every ready decode node. One node's answer passes unchanged; several are merged by model id.

    Where none lists models, the client gets what the first refused, else what went wrong with the first node.
    """

    context: Context

    async def get(self, request: Request) -> Response:
        nodes = self.context.fleet.snapshot.ready(Role.DECODE)
        if not nodes:
            return _refused(errors.NoCapacity("no decode node is ready"))
        headers = tuple((k.decode("latin-1"), v.decode("latin-1")) for k, v in request.headers.raw)
        results = await asyncio.gather(*(self._ask(node, headers) for node in nodes))
        answers = [result for result in results if isinstance(result, Answer)]
        good = [(answer, models) for answer in answers if (models := _models(answer)) is not None]
        if len(good) > 1:
            return Response(_merged([models for _, models in good]), media_type="application/json")
        if good:
            return _passed(good[0][0])
        refusals = [answer for answer in answers if 400 <= answer.status < 500]
        if refusals:
            return _passed(refusals[0])
        error = _fault(nodes[0].key, results[0])
        return _passed(error.answer) if isinstance(error, Refused) else _refused(error)

    async def _ask(self, node: Node, headers: tuple[tuple[str, str], ...]) -> Answer | UpstreamError:
        sent = engine_headers(headers, leg_id="brg-models", api_key=self.context.settings.api_key())
        try:
            return await self.context.upstream.send(node.origin, Call("GET", _PATH, sent, limits=_LIMITS))
        except UpstreamError as error:
            return error


def _models(answer: Answer) -> list[Any] | None:
    """The models in an answer; None where it is no list of models."""
    if answer.status != 200:
        return None
    try:
        document = msgspec.json.decode(answer.body)
    except (msgspec.MsgspecError, RecursionError):
        return None
    listed = document.get("data") if isinstance(document, dict) else None
    return listed if isinstance(listed, list) else None


def _fault(node: str, result: Answer | UpstreamError) -> Exception:
    if isinstance(result, UpstreamError):
        return told("decode", node, result)
    why = f"status {result.status}" if result.status != 200 else "an answer that is no list of models"
    return answered("decode", node, result, why)


def _passed(answer: Answer) -> Response:
    return Response(answer.body, answer.status, dict(client_headers(answer.headers)))


def _refused(error: Exception) -> Response:
    row = errors.error_row(error)
    return Response(errors.openai_error(error), row.status, dict(errors.error_headers(error)))


def _merged(lists: Sequence[list[Any]]) -> bytes:
    models: dict[str, Any] = {}
    for model in (model for listed in lists for model in listed if isinstance(model, dict)):
        models.setdefault(str(model.get("id")), model)
    return msgspec.json.encode({"object": "list", "data": list(models.values())})
