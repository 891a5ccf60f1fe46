"""What every ``Upstream`` keeps to, part one: the frame of the suite, and which fault becomes which error.

A test module for a client derives the classes of ``conformance*.py`` and defines one fixture,
``make_upstream``: it makes a client, and closes it after the test.
"""

import asyncio
import socket
import ssl
import time
from dataclasses import replace
from typing import Protocol

import pytest

from router.engines.upstream import (
    Broken,
    Call,
    Exhausted,
    Limits,
    NeverSent,
    Stale,
    TimedOut,
    TooLarge,
    Unsendable,
    Upstream,
)
from tests.engines.scripted import PATIENCE_S, Peer, closed_port, engine, no_files_left, soon


class MakeUpstream(Protocol):
    def __call__(self, *, keepalive_s: float = 4.0, tls: ssl.SSLContext | None = None) -> Upstream: ...


PATIENT = Limits(connect_s=PATIENCE_S)
"""No bound that a busy machine could run into; a test replaces the one that it is about."""
GET = Call("GET", "/health", limits=PATIENT)
POST = Call(
    "POST", "/v1/completions", (("content-type", "application/json"),), b'{"prompt":[1]}', limits=PATIENT
)


async def collect(upstream: Upstream, origin: str, call: Call, into: bytearray) -> None:
    """Stream a call to its end; what came stands in ``into`` also when it fails."""
    async with upstream.stream(origin, call) as answer:
        async for chunk in answer.chunks():
            into += chunk


async def answer_once(peer: Peer) -> None:
    await peer.request()
    await peer.answer()


class FaultsConformance:
    async def test_what_this_host_lacks_is_no_engines_fault(self, make_upstream: MakeUpstream) -> None:
        async with engine(answer_once) as here:
            upstream = make_upstream()
            with no_files_left(), pytest.raises(Exhausted) as caught:
                await upstream.send(here.origin, POST)
            assert caught.value.sent is False
            assert (await soon(upstream.send(here.origin, POST))).status == 200

    async def test_refused_is_never_sent(self, make_upstream: MakeUpstream) -> None:
        with pytest.raises(NeverSent) as caught:
            await soon(make_upstream().send(f"http://127.0.0.1:{closed_port()}", POST))
        assert caught.value.sent is False
        assert "127.0.0.1" in str(caught.value)

    async def test_unresolvable_is_never_sent(
        self, make_upstream: MakeUpstream, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if type(asyncio.get_running_loop()).__module__.startswith("uvloop"):
            pytest.skip("uvloop resolves names outside of Python, so this would ask a real name server")

        def nothing(*_: object, **__: object) -> None:
            raise socket.gaierror(socket.EAI_NONAME, "name not known")

        monkeypatch.setattr(socket, "getaddrinfo", nothing)
        with pytest.raises(NeverSent):
            await soon(make_upstream().send("http://no-such-engine.invalid:8000", POST))

    async def test_no_connection_in_time_is_never_sent(self, make_upstream: MakeUpstream) -> None:
        # A listener that accepts nothing and whose queue is full lets further ones wait.
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen(0)
            fillers = [socket.socket() for _ in range(4)]
            try:
                for filler in fillers:
                    filler.setblocking(False)
                    filler.connect_ex(listener.getsockname())
                origin = f"http://127.0.0.1:{listener.getsockname()[1]}"
                with pytest.raises(NeverSent):
                    await soon(make_upstream().send(origin, Call("GET", "/", limits=Limits(connect_s=0.2))))
            finally:
                for filler in fillers:
                    filler.close()

    async def test_a_loop_that_was_held_up_is_no_connect_time_out(self, make_upstream: MakeUpstream) -> None:
        async with engine(answer_once) as here:
            call = Call("GET", "/", limits=Limits(connect_s=0.2))
            asked = asyncio.create_task(make_upstream().send(here.origin, call))
            await asyncio.sleep(0)
            time.sleep(0.5)  # noqa: ASYNC251 - the loop stands still while the connection is made
            assert (await soon(asked)).status == 200

    @pytest.mark.parametrize("origin", ["http://", "nonsense", "ftp://127.0.0.1:1", "http://127.0.0.1:99999"])
    async def test_an_impossible_origin_is_unsendable(self, make_upstream: MakeUpstream, origin: str) -> None:
        with pytest.raises(NeverSent):
            await soon(make_upstream().send(origin, GET))

    @pytest.mark.parametrize(
        "call",
        [
            Call("GET", "/", (("x-a", "b\r\nx-injected: c"),)),
            Call("GET", "/", (("x-a", "b\nc"),)),
            Call("GET", "/", (("x-a\r\nx-injected", "b"),)),
            Call("GET", "/", (("x a", "b"),)),
            Call("GET", "/", (("x-a", "b\0"),)),
            Call("GET", "/ HTTP/1.1\r\nx-injected: b"),
            Call("GET", "/a b"),
            Call("GET", "relative"),
            Call("GET /", "/"),
        ],
    )
    async def test_injection_is_refused_before_anything_is_opened(
        self, make_upstream: MakeUpstream, call: Call
    ) -> None:
        async with engine(Peer.wait_gone) as here:
            with pytest.raises(Unsendable):
                await soon(make_upstream().send(here.origin, call))
            assert here.peers == []

    async def test_no_headers_in_time(self, make_upstream: MakeUpstream) -> None:
        async def script(peer: Peer) -> None:
            await peer.request()
            await peer.wait_gone()

        async with engine(script) as here:
            upstream = make_upstream()
            call = Call("POST", "/", body=b"{}", limits=replace(PATIENT, answer_s=0.1))
            with pytest.raises(TimedOut) as caught:
                await soon(upstream.send(here.origin, call))
            assert (caught.value.phase, caught.value.limit_s, caught.value.sent) == ("answer", 0.1, True)
            with pytest.raises(TimedOut, match="answer"):
                async with upstream.stream(here.origin, call):
                    pytest.fail("there were no headers")
            for peer in here.peers:
                await soon(peer.gone.wait())
            assert len(here.peers) == 2

    async def test_answer_limit_covers_a_whole_sent_body_but_not_a_streamed_one(
        self, make_upstream: MakeUpstream
    ) -> None:
        finish = asyncio.Event()

        async def script(peer: Peer) -> None:
            await peer.request()
            await peer.say(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nab")
            if peer.number == 1:
                await soon(finish.wait())
                await peer.say(b"cd")
            await peer.wait_gone()

        async with engine(script) as here:
            upstream = make_upstream()
            call = Call("GET", "/", limits=replace(PATIENT, answer_s=1.0))
            async with upstream.stream(here.origin, call) as answer:
                with pytest.raises(TimedOut) as caught:
                    await soon(upstream.send(here.origin, call))
                assert caught.value.phase == "answer"
                # The limit has passed for the streamed call too, and does not count there.
                finish.set()
                assert await soon(answer.read()) == b"abcd"

    async def test_a_silent_body_times_out_as_idle(self, make_upstream: MakeUpstream) -> None:
        async def script(peer: Peer) -> None:
            await peer.request()
            await peer.say(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nab")
            await peer.wait_gone()

        async with engine(script) as here:
            upstream = make_upstream()
            call = Call("GET", "/", limits=replace(PATIENT, idle_s=0.5))
            got = bytearray()
            with pytest.raises(TimedOut) as caught:
                await soon(collect(upstream, here.origin, call, got))
            assert (caught.value.phase, caught.value.limit_s) == ("idle", 0.5)
            assert got == b"ab"
            with pytest.raises(TimedOut, match="idle"):
                await soon(upstream.send(here.origin, call))
            for peer in here.peers:
                await soon(peer.gone.wait())

    async def test_a_slow_reader_is_not_an_idle_engine(self, make_upstream: MakeUpstream) -> None:
        async def script(peer: Peer) -> None:
            await peer.request()
            await peer.answer(b"abcd")
            await peer.wait_gone()

        call = Call("GET", "/", limits=replace(PATIENT, idle_s=0.3))
        async with engine(script) as here, make_upstream().stream(here.origin, call) as answer:
            chunks = answer.chunks()
            await asyncio.sleep(0.5)
            assert await soon(anext(chunks)) == b"abcd"
            assert [chunk async for chunk in chunks] == []

    @pytest.mark.parametrize("reset", [False, True])
    @pytest.mark.parametrize("call", [GET, POST])
    async def test_closed_without_an_answer_on_a_fresh_connection_is_broken(
        self, make_upstream: MakeUpstream, call: Call, reset: bool
    ) -> None:
        async def script(peer: Peer) -> None:
            await peer.request()
            if reset:
                peer.reset()

        async with engine(script) as here:
            with pytest.raises(Broken):
                await soon(make_upstream().send(here.origin, call))
            assert len(here.peers) == 1, "the client repeated the request"

    @pytest.mark.parametrize("reset", [False, True])
    @pytest.mark.parametrize("call", [GET, POST])
    async def test_closed_without_an_answer_on_a_reused_connection_is_stale(
        self, make_upstream: MakeUpstream, call: Call, reset: bool
    ) -> None:
        async def script(peer: Peer) -> None:
            await peer.request()
            await peer.answer()
            await peer.request()
            if reset:
                peer.reset()

        async with engine(script) as here:
            upstream = make_upstream()
            await soon(upstream.send(here.origin, call))
            with pytest.raises(Stale) as caught:
                await soon(upstream.send(here.origin, call))
            assert caught.value.sent is True
            assert len(here.peers) == 1, "the client repeated the request"

    @pytest.mark.parametrize("start", [b"H", b"HTTP/1.1 200 OK\r\nContent-Le", b"HTTP/1.1 103 Early\r\n\r\n"])
    async def test_a_byte_of_an_answer_makes_it_broken(
        self, make_upstream: MakeUpstream, start: bytes
    ) -> None:
        async def script(peer: Peer) -> None:
            await peer.request()
            await peer.answer()
            await peer.request()
            await peer.say(start)

        async with engine(script) as here:
            upstream = make_upstream()
            await soon(upstream.send(here.origin, POST))
            with pytest.raises(Broken):
                await soon(upstream.send(here.origin, POST))

    @pytest.mark.parametrize("reset", [False, True])
    @pytest.mark.parametrize(
        ("head", "body"),
        [
            (b"Transfer-Encoding: chunked", b"5\r\nabcde\r\n"),
            (b"Transfer-Encoding: chunked", b"5\r\nabcde\r\n0\r\n"),
            (b"Transfer-Encoding: chunked", b"9\r\nabcde"),
            (b"Content-Length: 9", b"abcde"),
        ],
    )
    async def test_a_body_cut_short_is_broken_after_what_came_of_it(
        self, make_upstream: MakeUpstream, head: bytes, body: bytes, reset: bool
    ) -> None:
        read = asyncio.Event()

        async def script(peer: Peer) -> None:
            await peer.request()
            await peer.say(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n\r\n" + body)
            if reset:
                # A reset may overtake data that is not read yet; that is no client's fault.
                await soon(read.wait())
                peer.reset()

        async with engine(script) as here:
            upstream = make_upstream()
            got = bytearray()

            async def run() -> None:
                async with upstream.stream(here.origin, POST) as answer:
                    async for chunk in answer.chunks():
                        got.extend(chunk)
                        read.set()

            with pytest.raises(Broken):
                await soon(run())
            assert got == b"abcde"

    async def test_what_came_before_a_break_is_not_lost_on_a_slow_reader(
        self, make_upstream: MakeUpstream
    ) -> None:
        waiting = asyncio.Event()

        async def script(peer: Peer) -> None:
            await peer.request()
            await peer.say(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n")
            await soon(waiting.wait())
            await peer.say(b"abcde")

        async with engine(script) as here, make_upstream().stream(here.origin, POST) as answer:
            chunks = answer.chunks()
            waiting.set()
            # Time for the data and the end to arrive together; without it the test only proves less.
            await asyncio.sleep(0.1)
            assert await soon(anext(chunks)) == b"abcde"
            for _ in range(2):
                with pytest.raises(Broken):
                    await soon(anext(chunks))

    async def test_a_reset_is_no_end_of_a_body_without_a_length(self, make_upstream: MakeUpstream) -> None:
        read = asyncio.Event()

        async def script(peer: Peer) -> None:
            await peer.request()
            await peer.say(b"HTTP/1.1 200 OK\r\n\r\nabcde")
            await soon(read.wait())
            peer.reset()

        async with engine(script) as here, make_upstream().stream(here.origin, GET) as answer:
            chunks = answer.chunks()
            assert await soon(anext(chunks)) == b"abcde"
            read.set()
            with pytest.raises(Broken):
                await soon(anext(chunks))
            with pytest.raises(Broken):
                await soon(anext(chunks))

    @pytest.mark.parametrize(
        "said",
        [
            b"SSH-2.0-OpenSSH_9.6\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
            b"HTTP/1.1 twohundred OK\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nabc",
            b"HTTP/1.1 200 OK\r\nX-Long: " + b"a" * 100_000 + b"\r\n\r\n",
            b"HTTP/1.1 200 OK\r\n" + b"".join(b"X-%d: a\r\n" % n for n in range(2_000)) + b"\r\n",
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
        ],
    )
    async def test_what_is_not_http_is_broken(self, make_upstream: MakeUpstream, said: bytes) -> None:
        async def script(peer: Peer) -> None:
            await peer.request()
            await peer.say(said)
            await peer.wait_gone()

        async with engine(script) as here:
            with pytest.raises(Broken):
                await soon(make_upstream().send(here.origin, GET))
            await soon(here.peers[0].gone.wait())

    async def test_what_stops_being_http_in_mid_body_is_broken(self, make_upstream: MakeUpstream) -> None:
        read = asyncio.Event()

        async def script(peer: Peer) -> None:
            await peer.request()
            await peer.say(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
            await soon(read.wait())
            await peer.say(b"nonsense\r\n")
            await peer.wait_gone()

        async with engine(script) as here:
            async with make_upstream().stream(here.origin, GET) as answer:
                chunks = answer.chunks()
                assert await soon(anext(chunks)) == b"abc"
                read.set()
                with pytest.raises(Broken):
                    await soon(anext(chunks))
            await soon(here.peers[0].gone.wait())

    async def test_an_answer_read_whole_is_bounded(self, make_upstream: MakeUpstream) -> None:
        async def script(peer: Peer) -> None:
            await peer.request()
            await peer.say(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            while True:
                await peer.chunk(b"a" * 1_000)

        async with engine(script) as here:
            upstream = make_upstream()
            call = Call("GET", "/", limits=replace(PATIENT, max_answer_bytes=10_000))
            with pytest.raises(TooLarge):
                await soon(upstream.send(here.origin, call))
            async with upstream.stream(here.origin, call) as answer:
                with pytest.raises(TooLarge):
                    await soon(answer.read())
            for peer in here.peers:
                await soon(peer.gone.wait())

    async def test_an_early_refusal_of_a_large_body_is_the_answer(self, make_upstream: MakeUpstream) -> None:
        async def script(peer: Peer) -> None:
            await peer.head()
            await peer.answer(b"too much", status="413 Content Too Large", headers="Connection: close\r\n")

        async with engine(script) as here:
            answer = await soon(make_upstream().send(here.origin, Call("POST", "/", body=b"a" * 30_000_000)))
            assert (answer.status, answer.body) == (413, b"too much")

    async def test_an_engine_that_leaves_while_it_is_sent_to_is_broken(
        self, make_upstream: MakeUpstream
    ) -> None:
        async def script(peer: Peer) -> None:
            await peer.head()

        async with engine(script) as here:
            with pytest.raises(Broken):
                await soon(make_upstream().send(here.origin, Call("POST", "/", body=b"a" * 30_000_000)))
