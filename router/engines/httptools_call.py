"""One call on its way: request out, answer in.

No task and no queue: the caller's own task waits on one future at a time, which the connection's callbacks
wake. Where a body is pumped, they hand it on themselves, and wake the task at its end.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from router.engines.answer_parser import AnswerParser
from router.engines.body_chunks import BodyChunks
from router.engines.connection_pool import ConnectionPool
from router.engines.dialling import HELD_UP_S, ConnectClock
from router.engines.httptools_connection import Connection
from router.engines.request_head import destination, request_head
from router.engines.upstream import (
    Broken,
    Call,
    NeverSent,
    Shortcut,
    Sink,
    Stale,
    TimedOut,
    TooLarge,
    UpstreamError,
    not_connected,
)
from router.engines.whole_chunks import body_of

_READ_BUFFER_BYTES: Final = 131_072
"""An unread body may grow to this, and by one read of the socket more; then the engine is held back."""


class OpenCall:
    """A call, its answer (an ``AnswerStream``), and its connection's receiver.

    ``status`` and ``headers`` are valid from ``begin`` on. One task at a time reads the body.
    """

    __slots__ = (
        "_answer_timer",
        "_body_timer",
        "_call",
        "_clock",
        "_connection",
        "_fault",
        "_heard",
        "_idle_s",
        "_is_reused",
        "_is_whole",
        "_largest_bytes",
        "_loop",
        "_parser",
        "_pool",
        "_shortcut",
        "_sink",
        "_waiter",
        "_waiting_since_s",
        "headers",
        "origin",
        "status",
    )

    def __init__(self, pool: ConnectionPool, origin: str, call: Call) -> None:
        self.origin = origin
        self.status = 0
        self.headers: tuple[tuple[str, str], ...] = ()
        self._pool = pool
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._parser = AnswerParser(to_head=call.method == "HEAD")
        self._connection: Connection | None = None
        self._clock: ConnectClock | None = None
        self._fault: UpstreamError | None = None
        self._heard = False
        """Whether any byte came since the request."""
        self._is_reused = False
        self._is_whole = False
        """Whether only the whole body is waited for."""
        self._idle_s = call.limits.idle_s
        self._largest_bytes = call.limits.max_answer_bytes
        self._sink: Sink | None = None
        """Takes what comes while the caller's task sleeps."""
        self._shortcut: Shortcut | None = None
        self._waiter: asyncio.Future[bool] | None = None
        self._waiting_since_s: float | None = None
        self._answer_timer: asyncio.TimerHandle | None = None
        self._body_timer: asyncio.TimerHandle | None = None

    # For the caller.

    async def begin(self) -> None:
        """Send the request and wait for the answer's head. Raises UpstreamError; ``end`` has to follow."""
        if (unsent := self._send_on_idle()) is not None:
            await self._send_on_new(unsent)
        if not self._parser.has_head:
            try:
                await self._expect_answer()
            finally:
                self._waiter = None
        self._take_head()

    async def whole(self) -> bytes:
        """Send the request and wait for the whole answer, and return its body.

        Raises UpstreamError; ``end`` has to follow.
        """
        self._is_whole = True
        if (unsent := self._send_on_idle()) is not None:
            await self._send_on_new(unsent)
        if not self._parser.is_complete:
            try:
                await self._expect_answer()
            finally:
                self._waiter = None
        if self._fault is not None:
            raise self._fault
        self._take_head()
        return self._parser.take()

    def end(self) -> None:
        """Close the connection at once, if the answer has not come to its end."""
        self._stop_timers()
        self._parser.drop()
        if self._connection is not None:
            self._let_go().abort()
        if self._fault is None and (self._parser.pieces or not self._parser.is_complete):
            self._fault = Broken(f"{self.origin}: closed by us before the body was read")
        self._parser.pieces.clear()

    def give_up(self) -> None:
        """The client is being closed: fail."""
        if self._clock is None:
            self._fail(Broken(f"{self.origin}: closed by us"))
        else:
            self._fail(NeverSent(f"{self.origin}: the client is closed"))
            self._clock.expire()

    def chunks(self) -> AsyncIterator[bytes]:
        """The body, as it arrives, each chunk as soon as it is there; raises UpstreamError."""
        return BodyChunks(self)

    async def read(self) -> bytes:
        """The whole rest of the body; raises UpstreamError, ``TooLarge`` past ``max_answer_bytes``."""
        self._is_whole = True
        if self._connection is not None:
            self._connection.resume()
        self._check_size()
        if not (self._parser.is_complete or self._fault):
            try:
                await self._expect_body()
            finally:
                self._waiter = self._waiting_since_s = None
        if self._fault is not None:
            raise self._fault
        return self._parser.take()

    async def next(self) -> bytes:
        """What has come since the last time, or as soon as something comes.

        Raises UpstreamError, and StopAsyncIteration at the end.
        """
        parser = self._parser
        if not parser.pieces and not parser.is_complete and self._fault is None:
            try:
                await self._expect_body()
            finally:
                self._waiter = self._waiting_since_s = None
        if parser.pieces:
            piece = parser.take()
            if self._connection is not None and not self._connection.is_reading:
                self._connection.resume()
            return piece
        if self._fault is not None:
            raise self._fault
        raise StopAsyncIteration

    async def pump(self, sink: Sink, shortcut: Shortcut | None = None) -> bool:
        """Give the body to ``sink`` as it arrives, until that takes no more; whether the body has ended.

        Raises UpstreamError, and whatever ``sink`` raises.
        """
        parser = self._parser
        while True:
            if parser.pieces:
                piece = parser.take()
                if self._connection is not None and not self._connection.is_reading:
                    self._connection.resume()
                if not sink(piece, None):
                    return False
            if self._fault is not None:
                raise self._fault
            if parser.is_complete:
                return True
            self._sink, self._shortcut = sink, shortcut
            self._open_shortcut()
            try:
                if not await self._expect_body():
                    return False
            finally:
                self._sink = self._shortcut = self._waiter = self._waiting_since_s = None
                self._open_shortcut()

    # For the connection.

    def received(self, data: bytes) -> None:
        parser = self._parser
        if self._sink is not None:
            piece = body_of(data) if parser.is_between_chunks else None
            if piece is not None and not parser.pieces:
                self._hand_on(self._sink, piece, data)
                return
            parser.feed(data)
            if parser.pieces and self._waiter is not None and not self._waiter.done():
                self._hand_on(self._sink, parser.take(), None)
            if parser.is_complete:
                self._complete()
            elif parser.fault is not None:
                self._fail(Broken(f"{self.origin}: {parser.fault}"))
            self._open_shortcut()
            return
        self._heard = True
        had_head = parser.has_head
        parser.feed(data)
        if parser.is_complete:
            self._complete()
        elif parser.fault is not None:
            self._fail(Broken(f"{self.origin}: {parser.fault}"))
        elif self._is_whole:
            if parser.has_head:
                self._whole_goes_on(had_head=had_head)
        elif parser.pieces or parser.has_head:
            if parser.size_bytes > _READ_BUFFER_BYTES and self._connection is not None:
                self._connection.hold()
            if not had_head:
                self._stop_answer_timer()
                self._wake()
            elif parser.pieces:
                self._wake()

    def _open_shortcut(self) -> None:
        """Let the connection ask the shortcut first, where chunks may go by the parser; only there."""
        connection, parser = self._connection, self._parser
        if connection is not None:
            is_open = parser.is_between_chunks and not parser.pieces and self._sink is not None
            connection.shortcut = self._shortcut if is_open else None

    def _hand_on(self, sink: Sink, piece: bytes, chunk: bytes | None) -> None:
        """Give ``sink`` what has come; the task is woken only if that is all it takes."""
        self._waiting_since_s = self._loop.time()
        waiter, fault = self._waiter, None
        try:
            if sink(piece, chunk):
                return
        except Exception as error:  # the caller's own, and for it
            fault = error
        self._sink = self._shortcut = None
        self._open_shortcut()
        if waiter is not None and not waiter.done():
            if fault is None:
                waiter.set_result(False)
            else:
                waiter.set_exception(fault)

    def ended(self) -> None:
        parser = self._parser
        if self._connection is not None and self._connection.ended_in_good_order():
            parser.feed_end()
        if parser.is_complete:
            self._let_go().abort()
            self._stop_timers()
            self._wake()
        else:
            self._break("the connection was closed")

    def lost(self, error: Exception | None) -> None:
        self._connection = None
        self._break(f"connection lost: {type(error).__name__}" if error else "the connection was closed")

    # Within.

    def _send_on_idle(self) -> bytes | None:
        """Send the request on a connection that waits for one; its head, where there is none."""
        to = destination(self.origin)
        head = request_head(to, self._call)
        connection = self._pool.take(to.origin)
        if connection is None:
            return head
        self._send(connection, head)
        return None

    async def _send_on_new(self, head: bytes) -> None:
        """Send the request on a new connection. Raises UpstreamError."""
        to = destination(self.origin)
        limit_s = self._call.limits.connect_s
        try:
            async with ConnectClock(limit_s) as self._clock:
                connection = await self._pool.open(to, limit_s)
        except TimeoutError:
            raise self._fault or NeverSent(f"{self.origin}: no connection within {limit_s:g} s") from None
        except (OSError, ValueError) as error:
            raise not_connected(self.origin, error) from error
        finally:
            self._clock = None
        if not connection.is_open:
            raise NeverSent(f"{self.origin}: the connection was closed before it was used")
        if self._fault is not None:
            connection.abort()
            raise self._fault
        self._send(connection, head)

    def _send(self, connection: Connection, head: bytes) -> None:
        call, answer_s = self._call, self._call.limits.answer_s
        self._is_reused = connection.uses > 0
        self._connection = connection
        connection.receiver = self
        connection.send(head, call.body)
        if answer_s is not None:
            due_s = self._loop.time() + answer_s
            self._answer_timer = self._loop.call_at(due_s, self._check_answer, due_s, answer_s)
        if call.meanwhile is not None:
            call.meanwhile()

    def _expect_answer(self) -> asyncio.Future[bool]:
        """What to wait on for what the connection's callbacks have to tell. Raises UpstreamError."""
        if self._fault is not None:
            raise self._fault
        self._waiter = self._loop.create_future()
        return self._waiter

    def _expect_body(self) -> asyncio.Future[bool]:
        """What to wait on for more of the body; the wait counts from now. False: the sink takes no more."""
        self._waiting_since_s = self._loop.time()
        if self._body_timer is None and self._idle_s is not None:
            self._watch_body(self._waiting_since_s + self._idle_s)
        self._waiter = self._loop.create_future()
        return self._waiter

    def _take_head(self) -> None:
        if not self._parser.has_head:
            raise self._fault or Broken(f"{self.origin}: no answer")
        self.status = self._parser.status
        self.headers = tuple(self._parser.headers)

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None:
            self._waiter = self._waiting_since_s = None
            if not waiter.done():
                waiter.set_result(True)

    def _whole_goes_on(self, *, had_head: bool) -> None:
        """More of a body came that is read whole; nobody needs to know yet."""
        self._check_size()
        if self._idle_s is not None and self._fault is None:
            self._waiting_since_s = self._loop.time()
            if not had_head and self._body_timer is None:
                self._watch_body(self._waiting_since_s + self._idle_s)

    def _check_size(self) -> None:
        if self._parser.size_bytes > self._largest_bytes:
            self._parser.pieces.clear()
            self._fail(TooLarge(f"{self.origin}: the answer is larger than {self._largest_bytes} bytes"))

    def _complete(self) -> None:
        connection = self._let_go()
        if self._parser.may_reuse and connection.is_sent:
            self._pool.put(connection)
        else:
            connection.abort()
        self._stop_timers()
        if self._is_whole:
            self._check_size()
        self._wake()

    def _let_go(self) -> Connection:
        connection, self._connection = self._connection, None
        if connection is None:
            raise RuntimeError("a call without a connection has nothing to let go")
        connection.receiver = connection.shortcut = None
        return connection

    def _break(self, text: str) -> None:
        """The connection ended where it should not have."""
        if self._is_reused and not self._heard:
            # The engine closes what has been idle for so long. Whoever tries again is not to meet the next.
            self._pool.drop_idle(destination(self.origin).origin)
            self._fail(Stale(f"{self.origin}: {text}"))
        else:
            self._fail(Broken(f"{self.origin}: {text}"))

    def _fail(self, fault: UpstreamError) -> None:
        # An answer that is all there is good, whatever happens to its connection; unless it is too large.
        if isinstance(fault, TooLarge) or (self._fault is None and not self._parser.is_complete):
            self._fault = fault
        self._parser.drop()
        self._stop_timers()
        if self._connection is not None:
            self._let_go().abort()
        self._wake()

    def _check_answer(self, due_s: float, answer_s: float) -> None:
        self._answer_timer = None
        now_s = self._loop.time()
        if now_s >= due_s + HELD_UP_S:
            # Our own loop was held up: what has arrived meanwhile is read before anybody is blamed.
            due_s = now_s + HELD_UP_S
            self._answer_timer = self._loop.call_at(due_s, self._check_answer, due_s, answer_s)
        else:
            self._fail(TimedOut("answer", answer_s))

    def _watch_body(self, due_s: float) -> None:
        self._body_timer = self._loop.call_at(due_s, self._check_body, due_s)

    def _check_body(self, due_s: float) -> None:
        """End a wait that has lasted too long. One timer for the whole body, not one for each chunk."""
        self._body_timer = None
        idle_s = self._idle_s or 0.0
        now_s = self._loop.time()
        since_s = now_s if self._waiting_since_s is None else self._waiting_since_s
        if self._connection is not None:
            since_s = max(since_s, self._connection.passed_at_s)
        if now_s >= due_s + HELD_UP_S:
            self._watch_body(now_s + HELD_UP_S)
        elif now_s < since_s + idle_s:
            self._watch_body(since_s + idle_s)
        else:
            self._fail(TimedOut("idle", idle_s))

    def _stop_answer_timer(self) -> None:
        if self._answer_timer is not None:
            self._answer_timer.cancel()
            self._answer_timer = None

    def _stop_timers(self) -> None:
        self._stop_answer_timer()
        if self._body_timer is not None:
            self._body_timer.cancel()
            self._body_timer = None
