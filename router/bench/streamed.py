"""One streamed answer over a plain connection, and when its first event came."""

import http.client
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec


class NoAnswer(Exception):
    """A request that was not answered as it should."""


@dataclass(frozen=True, slots=True)
class Streamed:
    """An answer to a chat request."""

    events: tuple[dict[str, Any], ...]
    """All but ``[DONE]``."""
    headers: http.client.HTTPMessage
    first_ms: float
    """From the request's first byte to the whole first event, which comes with the first token."""

    @property
    def text(self) -> str:
        return "".join(
            (choice.get("delta") or {}).get("content") or ""
            for event in self.events
            for choice in event["choices"]
        )


def ask(connection: http.client.HTTPConnection, body: Mapping[str, Any]) -> Streamed:
    """Send a chat request and read its stream to the end.

    Raises NoAnswer for anything but a whole stream; OSError or HTTPException where there is no connection.
    """
    raw = msgspec.json.encode(body)
    began_s = time.perf_counter()
    connection.request("POST", "/v1/chat/completions", raw, {"content-type": "application/json"})
    answer = connection.getresponse()
    first = answer.readline()
    first_ms = (time.perf_counter() - began_s) * 1e3
    events = [line[6:] for line in (first + answer.read()).splitlines() if line.startswith(b"data: ")]
    if answer.status != 200 or not events or events[-1] != b"[DONE]":
        raise NoAnswer(f"status {answer.status}: {first[:200]!r}")
    documents = tuple(msgspec.json.decode(event) for event in events[:-1])
    for document in documents:
        if "error" in document:
            raise NoAnswer(str(document["error"])[:200])
    return Streamed(documents, answer.headers, first_ms)
