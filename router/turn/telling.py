"""What a client is told of a leg's fault: 502 broken, 504 our time-out, 503 our lack, or its own answer."""

from typing import Any

import msgspec

from router import errors
from router.engines.upstream import Answer, Exhausted, TimedOut, UpstreamError
from router.turn.refusal import Refused


def told(role: str, node: str, error: UpstreamError) -> errors.RequestError:
    """Our error for a leg that broke, was not to be reached, or was overdue."""
    if isinstance(error, Exhausted):
        return errors.NoCapacity(f"the router can open no more connections: {error}")
    text = f"{role} node {node}: {error}"
    return errors.UpstreamTimeout(text) if isinstance(error, TimedOut) else errors.UpstreamBroken(text)


def answered(role: str, node: str, answer: Answer | None, why: str) -> Exception:
    """An engine's server error: its own answer, if that is an error in OpenAI's shape, else a 502."""
    if answer is not None and 500 <= answer.status < 600 and _is_openai_error(answer.body):
        return Refused(role, node, answer)
    return errors.UpstreamBroken(f"{role} node {node}: {why}")


def _is_openai_error(body: bytes) -> bool:
    try:
        document: Any = msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return False
    return isinstance(document, dict) and isinstance(document.get("error"), dict)
