"""What every ``Upstream`` keeps to, part three: the life of connections, and many of them."""

import asyncio
import socket
from dataclasses import replace

import pytest

from router.engines.upstream import Broken, Call, NeverSent, Stale, UpstreamError
from tests.engines.conformance import GET, POST, MakeUpstream
from tests.engines.scripted import Peer, closed_port, engine, soon

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
PROMPTLY_S = 3.0
"""It takes milliseconds; the bound is generous to a busy machine, and below every time-out of the client."""


async def serve(peer: Peer) -> None:
    while True:
        await peer.request()
        await peer.answer()


class ConnectionsConformance:
    async def test_connections_are_used_again(self, make_upstream: MakeUpstream) -> None:
        async with engine(serve) as here:
            upstream = make_upstream()
            for call in (GET, POST, GET):
                await soon(upstream.send(here.origin, call))
                async with upstream.stream(here.origin, call) as answer:
                    assert await soon(answer.read()) == b"ok"
            assert len(here.peers) == 1

    async def test_a_connection_that_the_engine_announces_to_close_is_not_used_again(
        self, make_upstream: MakeUpstream
    ) -> None:
        async def script(peer: Peer) -> None:
            await peer.request()
            await peer.answer(headers="Connection: close\r\n")
            await peer.wait_gone()

        async with engine(script) as here:
            upstream = make_upstream()
            for _ in range(3):
                assert (await soon(upstream.send(here.origin, POST))).status == 200
            assert len(here.peers) == 3

    @pytest.mark.parametrize("is_streamed", [False, True])
    async def test_what_can_wait_is_done_once_and_before_the_answer(
        self, make_upstream: MakeUpstream, *, is_streamed: bool
    ) -> None:
        told: list[str] = []

        async def script(peer: Peer) -> None:
            for _ in range(2):
                await peer.request()
                told.append("asked")
                await peer.answer()

        async with engine(script) as here:
            upstream = make_upstream()
            call = replace(POST, meanwhile=lambda: told.append("meanwhile"))
            for _ in range(2):
                if is_streamed:
                    async with upstream.stream(here.origin, call) as answer:
                        told.append("answered")
                        await soon(answer.read())
                else:
                    await soon(upstream.send(here.origin, call))
                    told.append("answered")
            assert told == 2 * ["meanwhile", "asked", "answered"]

    async def test_nothing_is_done_meanwhile_where_nothing_was_sent(
        self, make_upstream: MakeUpstream
    ) -> None:
        told: list[str] = []
        call = replace(POST, meanwhile=lambda: told.append("meanwhile"))
        with pytest.raises(NeverSent):
            await soon(make_upstream().send(f"http://127.0.0.1:{closed_port()}", call))
        assert told == []

    async def test_idle_connections_expire(self, make_upstream: MakeUpstream) -> None:
        async def script(peer: Peer) -> None:
            await peer.request()
            await peer.answer()
            await peer.wait_gone()

        async with engine(script) as here:
            upstream = make_upstream(keepalive_s=0.1)
            await soon(upstream.send(here.origin, GET))
            await soon(here.peers[0].gone.wait())
            await soon(upstream.send(here.origin, GET))
            assert len(here.peers) == 2

    async def test_a_connection_past_its_keepalive_is_not_used_again(
        self, make_upstream: MakeUpstream
    ) -> None:
        async with engine(serve) as here:
            upstream = make_upstream(keepalive_s=0.05)
            await soon(upstream.send(here.origin, GET))
            await asyncio.sleep(0.06)
            await soon(upstream.send(here.origin, GET))
            assert len(here.peers) == 2

    async def test_a_connection_closed_while_idle_is_not_used_again(
        self, make_upstream: MakeUpstream
    ) -> None:
        async def script(peer: Peer) -> None:
            await peer.request()
            await peer.answer()

        async with engine(script) as here:
            upstream = make_upstream()
            for turn in range(5):
                # Where the close has not been seen yet it is a stale connection, never a wrong answer.
                try:
                    assert (await soon(upstream.send(here.origin, POST))).body == b"ok"
                except Stale:
                    assert turn > 0
                await asyncio.sleep(0.01)
            assert len(here.peers) >= 2

    async def test_what_an_engine_says_out_of_turn_answers_nothing(self, make_upstream: MakeUpstream) -> None:
        said = asyncio.Event()

        async def script(peer: Peer) -> None:
            await peer.request()
            await peer.answer(b"first")
            if peer.number == 1:
                await peer.answer(b"nobody asked", status="408 Request Timeout")
                said.set()
            await peer.request()
            await peer.answer(b"second")

        async with engine(script) as here:
            upstream = make_upstream()
            assert (await soon(upstream.send(here.origin, GET))).body == b"first"
            await soon(said.wait())
            # Another connection's bytes come after those, so that they have arrived when this is answered.
            reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            await soon(reader.readuntil(b"first"))
            writer.close()
            try:
                assert (await soon(upstream.send(here.origin, GET))).body == b"first"
            except Stale:
                assert (await soon(upstream.send(here.origin, GET))).body == b"first"

    @pytest.mark.parametrize("size", [2, 20_000_000])
    @pytest.mark.parametrize("way", ["send", "stream"])
    async def test_cancelling_before_the_answer_closes_at_once(
        self, make_upstream: MakeUpstream, way: str, size: int
    ) -> None:
        arrived = asyncio.Event()

        async def script(peer: Peer) -> None:
            await peer.head()
            arrived.set()
            if size > 1_000_000:
                # Do not read on: the client cannot write all that it has.
                await lost(peer)
            await peer.wait_gone()

        async with engine(script) as here:
            upstream = make_upstream()
            call = replace(POST, body=b"a" * size)

            async def stream() -> None:
                async with upstream.stream(here.origin, call) as answer:
                    await answer.read()

            task = asyncio.ensure_future(upstream.send(here.origin, call) if way == "send" else stream())
            await soon(arrived.wait())
            assert upstream.open_calls() == {here.origin: 1}
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await soon(task)
            await asyncio.wait_for(here.peers[0].gone.wait(), PROMPTLY_S)
            assert upstream.open_calls() == {}

    @pytest.mark.parametrize("leave", ["cancel", "break", "error", "untouched"])
    async def test_leaving_a_stream_closes_at_once(self, make_upstream: MakeUpstream, leave: str) -> None:
        async def script(peer: Peer) -> None:
            await peer.request()
            await peer.say(CHUNKED)
            await peer.chunk(b"abc")
            await peer.wait_gone()

        async with engine(script) as here:
            upstream = make_upstream()
            begun = asyncio.Event()

            async def run() -> None:
                async with upstream.stream(here.origin, POST) as answer:
                    begun.set()
                    if leave == "untouched":
                        return
                    async for chunk in answer.chunks():
                        assert chunk == b"abc"
                        if leave == "break":
                            break
                        if leave == "error":
                            raise LookupError("of the caller's own")

            task = asyncio.ensure_future(run())
            await soon(begun.wait())
            if leave == "cancel":
                task.cancel()
            result = (await soon(asyncio.gather(task, return_exceptions=True)))[0]
            expected = {"cancel": asyncio.CancelledError, "error": LookupError}.get(leave, type(None))
            assert isinstance(result, expected)
            await asyncio.wait_for(here.peers[0].gone.wait(), PROMPTLY_S)
            assert upstream.open_calls() == {}

    async def test_a_stream_that_was_left_gives_no_more(self, make_upstream: MakeUpstream) -> None:
        async def script(peer: Peer) -> None:
            await peer.request()
            await peer.say(CHUNKED)
            await peer.chunk(b"abc")
            await peer.wait_gone()

        async with engine(script) as here:
            async with make_upstream().stream(here.origin, POST) as answer:
                chunks = answer.chunks()
                await soon(anext(chunks))
            with pytest.raises(UpstreamError):
                await soon(anext(chunks))

    async def test_calls_are_counted_and_given_back_whatever_happens(
        self, make_upstream: MakeUpstream
    ) -> None:
        async def script(peer: Peer) -> None:
            await peer.request()
            await peer.say(b"nonsense\r\n\r\n")

        async with engine(script) as here:
            upstream = make_upstream()
            for origin in (here.origin, f"http://127.0.0.1:{closed_port()}"):
                for call in (GET, Call("GET", "no path")):
                    with pytest.raises(UpstreamError):
                        await soon(upstream.send(origin, call))
                    with pytest.raises(UpstreamError):
                        async with upstream.stream(origin, call):
                            pytest.fail("there is no answer")
            assert upstream.open_calls() == {}

    async def test_three_hundred_streams_at_once(self, make_upstream: MakeUpstream) -> None:
        count = 300
        waiting = 0
        all_here = asyncio.Event()

        async def script(peer: Peer) -> None:
            nonlocal waiting
            seen = await peer.request()
            waiting += 1
            if waiting == count:
                all_here.set()
            await all_here.wait()
            await peer.say(CHUNKED)
            for part in range(3):
                await peer.chunk(b"%s:%d;" % (seen.body, part))
            await peer.say(b"0\r\n\r\n")
            await peer.wait_gone()

        async with engine(script) as here:
            upstream = make_upstream()

            async def one(number: int) -> bytes:
                body = str(number).encode()
                async with upstream.stream(here.origin, replace(POST, body=body)) as answer:
                    return b"".join([chunk async for chunk in answer.chunks()])

            async with asyncio.timeout(30):
                got = await asyncio.gather(*(one(number) for number in range(count)))
            assert got == [b"%d:0;%d:1;%d:2;" % (n, n, n) for n in range(count)]
            assert upstream.open_calls() == {}

    async def test_one_silent_engine_holds_up_no_other(self, make_upstream: MakeUpstream) -> None:
        count = 150
        waiting_there = asyncio.Semaphore(0)

        async def silent(peer: Peer) -> None:
            await peer.request()
            waiting_there.release()
            await peer.wait_gone()

        async with engine(silent) as stuck, engine(serve) as well:
            upstream = make_upstream()
            waiting = [asyncio.ensure_future(upstream.send(stuck.origin, POST)) for _ in range(count)]
            for _ in range(count):
                await soon(waiting_there.acquire())
            assert (await soon(upstream.send(well.origin, POST))).body == b"ok"
            assert upstream.open_calls() == {stuck.origin: count}
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            assert upstream.open_calls() == {}

    async def test_a_reader_that_stops_holds_the_engine_back(self, make_upstream: MakeUpstream) -> None:
        piece, pieces = b"a" * 65_536, 800
        held = asyncio.Event()

        async def script(peer: Peer) -> None:
            await peer.request()
            sock: socket.socket = peer.writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
            await peer.say(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (len(piece) * pieces))
            for _ in range(pieces):
                peer.writer.write(piece)
                try:
                    await asyncio.wait_for(peer.writer.drain(), 0.5)
                except TimeoutError:
                    held.set()
                    await soon(peer.writer.drain())

        async with engine(script) as here, make_upstream().stream(here.origin, GET) as answer:
            # 52 MB are more than sockets buffer, so an engine that can write all was not held back.
            await soon(held.wait())
            assert len(await soon(answer.read())) == len(piece) * pieces

    async def test_closing_ends_what_is_running(self, make_upstream: MakeUpstream) -> None:
        arrived = asyncio.Semaphore(0)

        async def script(peer: Peer) -> None:
            seen = await peer.request()
            arrived.release()
            if seen.body == b"stream":
                await peer.say(CHUNKED)
                await peer.chunk(b"abc")
            await peer.wait_gone()

        async with engine(script) as here:
            upstream = make_upstream()
            begun = asyncio.Event()

            async def stream() -> None:
                async with upstream.stream(here.origin, replace(POST, body=b"stream")) as answer:
                    async for _ in answer.chunks():
                        begun.set()

            tasks = [
                asyncio.ensure_future(stream()),
                asyncio.ensure_future(upstream.send(here.origin, replace(POST, body=b"send"))),
            ]
            await soon(begun.wait())
            for _ in tasks:
                await soon(arrived.acquire())
            await soon(upstream.close())
            for task in tasks:
                with pytest.raises(UpstreamError):
                    await soon(task)
            for peer in here.peers:
                await soon(peer.gone.wait())
            assert upstream.open_calls() == {}
            with pytest.raises(NeverSent):
                await upstream.send(here.origin, GET)
            await upstream.close()

    async def test_a_connection_that_we_close_is_not_stale(self, make_upstream: MakeUpstream) -> None:
        arrived = asyncio.Event()

        async def script(peer: Peer) -> None:
            await peer.request()
            await peer.answer()
            await peer.request()
            arrived.set()
            await peer.wait_gone()

        async with engine(script) as here:
            upstream = make_upstream()
            await soon(upstream.send(here.origin, POST))
            task = asyncio.ensure_future(upstream.send(here.origin, POST))
            await soon(arrived.wait())
            await soon(upstream.close())
            # Stale would invite the relay to send it again.
            with pytest.raises(Broken):
                await soon(task)


async def lost(peer: Peer) -> None:
    """Until the connection is lost, without reading what comes on it."""
    try:
        while True:
            await peer.say(b"HTTP/1.1 102 Processing\r\n\r\n")
            await asyncio.sleep(0.01)
    except ConnectionError:
        return
