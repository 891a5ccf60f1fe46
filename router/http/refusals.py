"""Refusals outside of a turn, in OpenAI's shape."""

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from router import errors


def refused(error: Exception) -> Response:
    """The answer that tells of an error; one that is not of our tree is a fault of our own."""
    row = errors.error_row(error)
    return Response(errors.openai_error(error), row.status, dict(errors.error_headers(error)))


async def refuse(request: Request, error: Exception) -> Response:
    """A framework's own refusals, and faults of the router outside of a turn."""
    if isinstance(error, errors.RequestError):
        return refused(error)
    status = error.status_code if isinstance(error, HTTPException) else 500
    path, method = request.url.path, request.method
    told: errors.RequestError
    if status == 500:
        told = errors.InternalError()
    elif status == 405:
        told = errors.MethodNotAllowed(f"{path} does not take {method}")
    elif status == 404:
        told = errors.NotFound(f"there is no route {path}")
    else:
        told = errors.BadRequest("the request cannot be read")
    answer = refused(told)
    if isinstance(error, HTTPException) and error.headers:
        answer.headers.update(error.headers)
    return answer
