"""``Upstream`` on asyncio's protocols and httptools, made for what a router does: stream many answers.

* **One wake-up per chunk, and nothing else.** What a socket gives is parsed in the loop's own callback; the
  caller's task waits on a bare future. A call that is read whole wakes its task once. There is no task and no
  timer per chunk; time-outs are one timer each per call.
* **Nothing runs twice.** Whether a request may be repeated is the relay's decision.
* **Cancelled means closed.** A connection that is given up is aborted at once, whatever is still unwritten.
* **A broken body never looks complete**, and what came of it before the break is still given out.
* **Bytes through.** Bodies are not decompressed, values of headers go on byte for byte.

The files: ``request_head`` (what goes out), ``answer_parser`` (what comes back; both pure), ``dialling``,
``httptools_connection``, ``connection_pool``, ``httptools_call`` (one call). Why this client is there at all:
``docs/decisions/0001-upstream-client.md``.
"""

import ssl
from collections.abc import Mapping
from types import TracebackType

from router.engines.connection_pool import ConnectionPool
from router.engines.httptools_call import OpenCall
from router.engines.open_calls import OpenCalls
from router.engines.upstream import Answer, AnswerStream, Call, NeverSent


class HttptoolsUpstream:
    """Talks to engines over HTTP/1.1. Belongs to the event loop of its first call.

    ``keepalive_s``: idle connections are dropped after so long; keep it below the engines' own (vLLM: 5 s,
    ``VLLM_HTTP_TIMEOUT_KEEP_ALIVE``). ``tls`` replaces the system's trust store; certificates are verified.
    """

    def __init__(self, *, keepalive_s: float = 4.0, tls: ssl.SSLContext | None = None) -> None:
        if keepalive_s <= 0:
            raise ValueError(f"keepalive_s must be positive, not {keepalive_s:g}")
        self._pool = ConnectionPool(keepalive_s=keepalive_s, tls=tls)
        self._closed = False
        self._open: OpenCalls[OpenCall] = OpenCalls()

    async def send(self, origin: str, call: Call) -> Answer:
        """Send a request and read the answer whole, whatever its status. Raises UpstreamError."""
        running = self._begin(origin, call)
        try:
            body = await running.whole()
        finally:
            self._end(running)
        return Answer(running.status, running.headers, body)

    def stream(self, origin: str, call: Call) -> "_Streamed":
        """Send a request and give its answer as soon as the headers are there. Raises UpstreamError."""
        return _Streamed(self, origin, call)

    def open_calls(self) -> Mapping[str, int]:
        """How many calls are running, by origin."""
        return self._open.by_origin()

    async def close(self) -> None:
        """Close every connection; calls that are running end with an UpstreamError."""
        self._closed = True
        for running in self._open:
            running.give_up()
        await self._pool.close()

    def _begin(self, origin: str, call: Call) -> OpenCall:
        if self._closed:
            raise NeverSent(f"{origin}: the client is closed")
        running = OpenCall(self._pool, origin, call)
        self._open.begun(running)
        return running

    def _end(self, running: OpenCall) -> None:
        running.end()
        self._open.ended(running)


class _Streamed:
    """The context of a streamed call."""

    __slots__ = ("_call", "_origin", "_running", "_upstream")

    def __init__(self, upstream: HttptoolsUpstream, origin: str, call: Call) -> None:
        self._upstream = upstream
        self._origin = origin
        self._call = call
        self._running: OpenCall | None = None

    async def __aenter__(self) -> AnswerStream:
        running = self._upstream._begin(self._origin, self._call)
        try:
            await running.begin()
        except BaseException:
            self._upstream._end(running)
            raise
        self._running = running
        return running

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._running is not None:
            running, self._running = self._running, None
            self._upstream._end(running)
