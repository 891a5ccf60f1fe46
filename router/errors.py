"""What can go wrong with a request, and how it is told: one tree, one table.

An error names a fault at the router; an answer of an engine that is itself an error passes through unchanged
and never becomes one of these. The core raises them, ``router.http`` sends them.
"""

import re
from dataclasses import dataclass
from typing import ClassVar

import msgspec

_WORD = re.compile(r"[^\s,'\"]+")
_RANKED = re.compile(
    r"[(\w]*=?(?:https?://|\b[pd]:)(?:[\w.-]+|\[[0-9a-f:.]+\]):[0-9]{1,5}@[0-9]{1,4}[:;.)]*", re.IGNORECASE
)
"""A node's address or key with its data-parallel rank, as ``p:host:8100@1``: no user and password."""
_CREDENTIAL = re.compile(r"\b(?P<kind>bearer|basic)\s+[^\s,'\"]+", re.IGNORECASE)


def redact(text: str) -> str:
    """``text`` without what may be a secret: user and password of URLs, credentials of headers."""
    return _CREDENTIAL.sub(lambda found: f"{found['kind']} ***", _WORD.sub(_without_userinfo, text))


def _without_userinfo(word: re.Match[str]) -> str:
    before, at, after = word[0].rpartition("@")
    if not at or _RANKED.fullmatch(word[0]):
        return word[0]
    scheme, is_url, _ = before.partition("://")
    if is_url:
        return f"{scheme}://***@{after}"
    # A mail address has no colon; "user:password@host" has.
    return f"***@{after}" if ":" in before else word[0]


class RequestError(Exception):
    """A request that the router itself answers with an error.

    ``message`` is read by the client: it says what is wrong and, where the client can do something, what.
    ``param`` names the field of the body that is at fault; ``retry_after_s`` becomes a ``Retry-After``
    header.
    """

    retry_after_s: ClassVar[float | None] = None

    def __init__(self, message: str, *, param: str | None = None) -> None:
        self.message = redact(message)
        self.param = param
        super().__init__(self.message)


class BadRequest(RequestError):
    """The body is not JSON, or not what the route takes."""


class BodyTooLarge(RequestError):
    """The body is larger than ``max_body_bytes``."""


class HeadTooLarge(RequestError):
    """The headers are larger than what is read of them."""


class UnsupportedMedia(RequestError):
    """The body is of a media type or an encoding that the route does not take."""


class Unauthorized(RequestError):
    """The caller did not show the token that a route wants."""


class Forbidden(RequestError):
    """The route does not serve callers of this kind."""


class NotFound(RequestError):
    """There is no such route."""


class MethodNotAllowed(RequestError):
    """The route exists, and does not take this method."""


class TooManyTurns(RequestError):
    """The tenant has as many turns running as it may; nothing was sent."""

    retry_after_s = 1.0


class Conflict(RequestError):
    """What is to be made is there already."""


class NoCapacity(RequestError):
    """No node may take the turn now, or the router can open no more connections; a later attempt is safe."""

    retry_after_s = 1.0


class UpstreamBroken(RequestError):
    """An engine could not be reached, or broke off, or answered nonsense."""


class UpstreamTimeout(RequestError):
    """One of our own time-outs passed while an engine had the turn."""


class InternalError(RequestError):
    """A fault of the router's own. Its message says nothing of the cause: that is for the log."""

    def __init__(
        self, message: str = "the router failed; its log tells why", *, param: str | None = None
    ) -> None:
        super().__init__(message, param=param)


class ClientClosed(RequestError):
    """The client left. Never sent, as nobody listens: the status is for logs and metrics."""

    def __init__(
        self, message: str = "the client closed the connection", *, param: str | None = None
    ) -> None:
        super().__init__(message, param=param)


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """How an error looks on the wire: HTTP status, OpenAI's ``type``, and a ``code`` of our own."""

    status: int
    type: str
    code: str


# 499 is nginx's "client closed request"; the types are those of OpenAI's error reference.
ERROR_ROWS: dict[type[RequestError], ErrorRow] = {
    BadRequest: ErrorRow(400, "invalid_request_error", "bad_request"),
    Unauthorized: ErrorRow(401, "invalid_request_error", "unauthorized"),
    Forbidden: ErrorRow(403, "invalid_request_error", "forbidden"),
    NotFound: ErrorRow(404, "invalid_request_error", "not_found"),
    MethodNotAllowed: ErrorRow(405, "invalid_request_error", "method_not_allowed"),
    Conflict: ErrorRow(409, "invalid_request_error", "conflict"),
    BodyTooLarge: ErrorRow(413, "invalid_request_error", "body_too_large"),
    UnsupportedMedia: ErrorRow(415, "invalid_request_error", "unsupported_media_type"),
    TooManyTurns: ErrorRow(429, "rate_limit_error", "too_many_turns"),
    HeadTooLarge: ErrorRow(431, "invalid_request_error", "headers_too_large"),
    ClientClosed: ErrorRow(499, "client_closed_request", "client_closed"),
    InternalError: ErrorRow(500, "server_error", "internal_error"),
    UpstreamBroken: ErrorRow(502, "server_error", "engine_unreachable"),
    NoCapacity: ErrorRow(503, "server_error", "no_capacity"),
    UpstreamTimeout: ErrorRow(504, "server_error", "engine_timeout"),
}


def error_row(error: Exception) -> ErrorRow:
    """The table's row for an error; anything that is not of the tree counts as a fault of our own."""
    for kind in type(error).__mro__:
        if kind in ERROR_ROWS:
            return ERROR_ROWS[kind]
    return ERROR_ROWS[InternalError]


def openai_error(error: Exception) -> bytes:
    """The JSON body ``{"error": {"message", "type", "param", "code"}}`` of an error.

    An exception that is not of the tree is told as an ``InternalError``, without its text.
    """
    told = error if isinstance(error, RequestError) else InternalError()
    row = error_row(told)
    return msgspec.json.encode(
        {"error": {"message": told.message, "type": row.type, "param": told.param, "code": row.code}}
    )


def error_headers(error: Exception) -> tuple[tuple[str, str], ...]:
    """The headers that go with ``openai_error``'s body; ``Retry-After`` is in whole seconds, at least one."""
    headers = [("content-type", "application/json")]
    if isinstance(error, RequestError) and error.retry_after_s is not None:
        headers.append(("retry-after", str(max(1, round(error.retry_after_s)))))
    return tuple(headers)
