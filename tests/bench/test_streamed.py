import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from router.bench.streamed import NoAnswer, ask


@contextmanager
def answering(status: int, body: bytes) -> Iterator[http.client.HTTPConnection]:
    """A connection to a server that always answers the same."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(status)
            self.send_header("x-boomerang-plan", "pull")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            """Nothing is logged."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
        try:
            yield connection
        finally:
            connection.close()
            server.shutdown()
            thread.join()


EVENTS = (
    b'data: {"choices": [{"delta": {"role": "assistant", "content": ""}}]}\n\n'
    b'data: {"choices": [{"delta": {"content": "two "}}]}\n\n'
    b'data: {"choices": [{"delta": {"content": "words"}}]}\n\n'
    b'data: {"choices": [], "usage": {"prompt_tokens": 7}}\n\n'
)


def test_a_whole_stream() -> None:
    with answering(200, EVENTS + b"data: [DONE]\n\n") as connection:
        streamed = ask(connection, {"stream": True})
    assert streamed.text == "two words"
    assert streamed.events[-1]["usage"] == {"prompt_tokens": 7}
    assert streamed.headers["x-boomerang-plan"] == "pull"
    assert streamed.first_ms > 0


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, EVENTS),
        (503, EVENTS + b"data: [DONE]\n\n"),
        (200, b""),
        (200, b'data: {"error": {"message": "broken"}}\n\ndata: [DONE]\n\n'),
    ],
    ids=["no end", "status", "nothing", "an error in the stream"],
)
def test_anything_else_is_no_answer(status: int, body: bytes) -> None:
    with answering(status, body) as connection, pytest.raises(NoAnswer):
        ask(connection, {"stream": True})
