"""``Upstream`` on aiohttp.

What is asked of aiohttp beyond its defaults, and why:

* **Nothing runs twice.** aiohttp repeats an idempotent request by itself when its connection turns out to be
  dead. Whether a request may be repeated is the relay's decision, so that is off.
* **Cancelled means closed.** A connection that is given up is aborted at once, whatever is still unwritten.
* **Stale or broken** depends on two facts that aiohttp does not give: whether the connection had served
  before, and whether a single byte of an answer came. ``Wire`` keeps both.
* **A broken body never looks complete**, and what came of it before the break is still given out.
* **Bytes through.** Bodies are not decompressed. We ask for ``accept-encoding: identity`` unless the caller
  names one; the answer of an engine that compresses all the same is passed on as it is, ``content-encoding``
  and all, so whoever looks into a body checks that header first.

Connections are pooled per origin, without a limit, and so without a queue: admission is the fleet's part.
"""

import asyncio
import ssl
from collections.abc import Mapping
from types import TracebackType

import aiohttp
from aiohttp.client_middlewares import ClientHandlerType
from aiohttp.client_reqrep import ConnectionKey
from yarl import URL

from router.engines.aiohttp_answer import Arriving, told
from router.engines.aiohttp_wire import Body, Request, Wire, drop_idle, use_wires
from router.engines.headers import as_utf8
from router.engines.open_calls import OpenCalls
from router.engines.request_head import sendable_headers
from router.engines.upstream import (
    Answer,
    AnswerStream,
    Broken,
    Call,
    Limits,
    NeverSent,
    Stale,
    TimedOut,
    Unsendable,
    UpstreamError,
    not_connected,
)

_READ_BUFFER_BYTES = 65_536
"""Low-water mark of a body that nobody reads; the socket is paused at twice that."""
_MAX_STATUS_LINE_BYTES = 8_192
_MAX_HEADER_BYTES = 16_384
_MAX_HEADERS = 128
_DNS_TTL_S = 10
_HELD_UP_S = 0.1
"""A timer that fires later than this was kept waiting by the event loop."""

_NO_AUTOMATIC_HEADERS = ("accept", "accept-encoding", "content-type", "user-agent")


class AiohttpUpstream:
    """Talks to engines over HTTP/1.1. Belongs to the event loop of its first call.

    ``keepalive_s``: idle connections are dropped after so long; keep it below the engines' own (vLLM: 5 s,
    ``VLLM_HTTP_TIMEOUT_KEEP_ALIVE``). ``tls`` replaces the system's trust store; certificates are verified.
    """

    def __init__(self, *, keepalive_s: float = 4.0, tls: ssl.SSLContext | None = None) -> None:
        if keepalive_s <= 0:
            raise ValueError(f"keepalive_s must be positive, not {keepalive_s:g}")
        self._keepalive_s = keepalive_s
        self._tls = tls
        self._session: aiohttp.ClientSession | None = None
        self._closed = False
        self._open: OpenCalls[_Exchange] = OpenCalls()

    async def send(self, origin: str, call: Call) -> Answer:
        """Send a request and read the answer whole, whatever its status. Raises UpstreamError."""
        exchange = self._begin(origin, call)
        try:
            async with asyncio.timeout(None) as clock:
                answer = await exchange.open(clock)
                body = await answer.read()
        except TimeoutError:
            raise _late(call.limits) from None
        finally:
            self._end(exchange)
        return Answer(answer.status, answer.headers, body)

    def stream(self, origin: str, call: Call) -> "_Streamed":
        """Send a request and give its answer as soon as the headers are there. Raises UpstreamError."""
        return _Streamed(self, origin, call)

    def open_calls(self) -> Mapping[str, int]:
        """How many calls are running, by origin."""
        return self._open.by_origin()

    async def close(self) -> None:
        """Close every connection; calls that are running end with an UpstreamError."""
        self._closed = True
        for exchange in self._open:
            exchange.close()
        if self._session is not None:
            await self._session.close()

    def _begin(self, origin: str, call: Call) -> "_Exchange":
        if self._closed:
            raise NeverSent(f"{origin}: the client is closed")
        if self._session is None:
            self._session = self._new_session()
        exchange = _Exchange(self._session, origin, call)
        self._open.begun(exchange)
        return exchange

    def _end(self, exchange: "_Exchange") -> None:
        exchange.close()
        self._open.ended(exchange)

    def _new_session(self) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            limit=0,
            limit_per_host=0,
            keepalive_timeout=self._keepalive_s,
            ttl_dns_cache=_DNS_TTL_S,
            ssl=self._tls if self._tls is not None else True,
        )
        use_wires(connector)
        session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=_NO_AUTOMATIC_HEADERS,
            request_class=Request,
            auto_decompress=False,
            trust_env=False,
            read_bufsize=_READ_BUFFER_BYTES,
            max_line_size=_MAX_STATUS_LINE_BYTES,
            max_field_size=_MAX_HEADER_BYTES,
            max_headers=_MAX_HEADERS,
        )
        session._retry_connection = False
        return session


class _Streamed:
    """The context of a streamed call."""

    def __init__(self, upstream: AiohttpUpstream, origin: str, call: Call) -> None:
        self._upstream = upstream
        self._origin = origin
        self._call = call
        self._exchange: _Exchange | None = None

    async def __aenter__(self) -> AnswerStream:
        exchange = self._upstream._begin(self._origin, self._call)
        try:
            async with asyncio.timeout(None) as clock:
                answer = await exchange.open(clock)
        except TimeoutError:
            self._upstream._end(exchange)
            raise _late(self._call.limits) from None
        except BaseException:
            self._upstream._end(exchange)
            raise
        self._exchange = exchange
        return answer

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._exchange is not None:
            exchange, self._exchange = self._exchange, None
            self._upstream._end(exchange)


class _Exchange:
    """One call on its way."""

    def __init__(self, session: aiohttp.ClientSession, origin: str, call: Call) -> None:
        self.origin = origin
        self._session = session
        self._call = call
        self._wire: Wire | None = None
        self._clock: asyncio.Timeout | None = None
        self._answer: Arriving | None = None
        self._given_up = False
        self._key: ConnectionKey | None = None

    async def open(self, clock: asyncio.Timeout) -> Arriving:
        """Send the request and wait for the headers; ``clock`` is set when the request gets a connection.

        Raises UpstreamError, or TimeoutError when ``clock`` runs out.
        """
        call, limits = self._call, self._call.limits
        headers = [(name, as_utf8(value)) for name, value in sendable_headers(call)]
        self._clock = clock
        try:
            response = await self._request(headers)
        except aiohttp.InvalidURL as error:
            raise Unsendable(f"not an origin: {self.origin}") from error
        except aiohttp.ClientError as error:
            raise self._fault(error) from error
        except ValueError as error:
            raise Unsendable(f"{self.origin}: {error}") from error
        finally:
            self._clock = None
        self._answer = Arriving(self.origin, response, limits)
        if response.status == 101:
            raise Broken(f"{self.origin}: answered 101, which nobody had asked for")
        return self._answer

    def close(self) -> None:
        """Close the connection at once, if the answer has not been read to its end."""
        self._given_up = True
        if self._answer is not None:
            self._answer.close()
        elif self._wire is not None:
            self._wire.abort()

    async def _request(self, headers: list[tuple[str, str]]) -> aiohttp.ClientResponse:
        """The answer's head. Raises as aiohttp does.

        A connection is given a second time where the limit passed unseen: whoever held this loop up for so
        long kept it from seeing the connection too, which says nothing of the engine.
        """
        call, connect_s = self._call, self._call.limits.connect_s
        loop = asyncio.get_running_loop()
        late = False
        while True:
            due_s = loop.time() + connect_s
            try:
                return await self._session.request(
                    call.method,
                    URL(self.origin + call.path, encoded=True),
                    headers=headers,
                    data=Body(call.body) if call.body else None,
                    allow_redirects=False,
                    timeout=aiohttp.ClientTimeout(total=None, connect=connect_s),
                    middlewares=(self._attach,),
                )
            except aiohttp.ConnectionTimeoutError:
                if late or loop.time() < due_s + _HELD_UP_S:
                    raise
                late = True

    async def _attach(
        self, request: aiohttp.ClientRequest, handler: ClientHandlerType
    ) -> aiohttp.ClientResponse:
        if isinstance(request, Request):
            request.on_connection = self._connected
            request.on_sent = self._call.meanwhile
        self._key = request.connection_key
        return await handler(request)

    def _connected(self, wire: Wire) -> None:
        self._wire = wire
        answer_s = self._call.limits.answer_s
        if self._clock is not None and answer_s is not None:
            self._clock.reschedule(asyncio.get_running_loop().time() + answer_s)

    def _fault(self, error: aiohttp.ClientError) -> UpstreamError:
        """Which fault it was that came instead of the headers."""
        text = told(self.origin, error)
        if self._wire is None:
            cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
            return type(not_connected(self.origin, cause))(text)
        if self._wire.uses > 1 and not self._wire.heard and not self._given_up:
            # The engine closes what has been idle for so long, and aiohttp takes the longest idle one first:
            # whoever tries again is not to meet the next of them.
            if self._key is not None and self._session.connector is not None:
                drop_idle(self._session.connector, self._key)
            return Stale(text)
        return Broken(text)


def _late(limits: Limits) -> TimedOut:
    return TimedOut("answer", limits.answer_s or 0.0)
