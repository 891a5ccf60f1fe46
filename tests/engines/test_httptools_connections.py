"""What ``HttptoolsUpstream`` promises beyond the conformance suite: what may be used again, and whose fault a
delay is."""

import asyncio
import contextlib
import gc
import os
import socket
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from router.engines.answer_parser import AnswerParser
from router.engines.httptools_call import OpenCall
from router.engines.httptools_upstream import HttptoolsUpstream
from router.engines.upstream import Broken, Call, Limits, NeverSent, Stale, TimedOut
from tests.engines.conformance import GET, POST
from tests.engines.conformance_answers import CHUNKED, _certificate
from tests.engines.scripted import PATIENCE_S, Peer, engine, soon


@pytest.fixture
async def upstream() -> AsyncIterator[HttptoolsUpstream]:
    made = HttptoolsUpstream()
    yield made
    await made.close()


@contextlib.asynccontextmanager
async def by_hand() -> AsyncIterator[socket.socket]:
    """A listener whose connections the test serves with blocking calls, behind the loop's back."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.settimeout(PATIENCE_S)
        yield listener


def origin_of(listener: socket.socket) -> str:
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


async def first_call(upstream: HttptoolsUpstream, listener: socket.socket) -> socket.socket:
    """One call that ends well; the engine's side of its connection, which is idle then."""
    asked = asyncio.ensure_future(upstream.send(origin_of(listener), GET))
    peer, _ = await asyncio.to_thread(listener.accept)
    peer.settimeout(PATIENCE_S)
    await asyncio.to_thread(peer.recv, 65_536)
    peer.sendall(OK)
    assert (await soon(asked)).body == b"ok"
    return peer


async def second_call(upstream: HttptoolsUpstream, listener: socket.socket) -> None:
    """A call that needs a connection of its own."""
    asked = asyncio.ensure_future(upstream.send(origin_of(listener), GET))
    peer, _ = await asyncio.to_thread(listener.accept)
    with peer:
        peer.settimeout(PATIENCE_S)
        await asyncio.to_thread(peer.recv, 65_536)
        peer.sendall(OK.replace(b"ok", b"no"))
        assert (await soon(asked)).body == b"no"


async def test_an_end_that_the_loop_has_not_seen_makes_no_stale_call(upstream: HttptoolsUpstream) -> None:
    async with by_hand() as listener:
        peer = await first_call(upstream, listener)
        peer.close()
        await second_call(upstream, listener)


async def test_bytes_that_the_loop_has_not_seen_answer_nothing(upstream: HttptoolsUpstream) -> None:
    async with by_hand() as listener:
        with await first_call(upstream, listener) as peer:
            peer.sendall(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")
            await second_call(upstream, listener)


async def test_a_half_closed_connection_is_not_used_again(upstream: HttptoolsUpstream) -> None:
    async with by_hand() as listener:
        with await first_call(upstream, listener) as peer:
            peer.shutdown(socket.SHUT_WR)
            await second_call(upstream, listener)


async def test_an_answer_after_which_the_engine_ends_its_side_is_whole(upstream: HttptoolsUpstream) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.say(CHUNKED + b"2\r\nok\r\n0\r\n\r\n")
        peer.writer.write_eof()
        await peer.wait_gone()

    async with engine(script) as here:
        for _ in range(3):
            assert (await soon(upstream.send(here.origin, POST))).body == b"ok"
        assert len(here.peers) == 3


@pytest.mark.parametrize(
    "more", [OK, b"nonsense", b"H", OK * 3, b"HTTP/1.1 103 Early\r\n\r\n", b"\0" * 70_000]
)
async def test_what_follows_an_answer_ends_its_connection(upstream: HttptoolsUpstream, more: bytes) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.say(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n%d" % peer.number + more)
        await peer.wait_gone()

    async with engine(script) as here:
        for number in (1, 2, 3):
            answer = await soon(upstream.send(here.origin, GET))
            assert (answer.status, answer.body) == (200, b"%d" % number)
        assert len(here.peers) == 3


@pytest.mark.parametrize(("keeps", "connections"), [("Connection: keep-alive\r\n", 1), ("", 2)])
async def test_http_1_0_keeps_a_connection_only_if_it_says_so(
    upstream: HttptoolsUpstream, keeps: str, connections: int
) -> None:
    async def script(peer: Peer) -> None:
        while True:
            await peer.request()
            await peer.say(f"HTTP/1.0 200 OK\r\n{keeps}Content-Length: 2\r\n\r\nok".encode())

    async with engine(script) as here:
        for _ in range(2):
            assert (await soon(upstream.send(here.origin, GET))).body == b"ok"
        assert len(here.peers) == connections


async def test_an_early_answer_ends_the_connection_of_an_unsent_request(upstream: HttptoolsUpstream) -> None:
    async def script(peer: Peer) -> None:
        if (await peer.head()).line.startswith("POST"):
            await peer.answer(b"no", status="413 Content Too Large")
            await peer.wait_gone()
        await peer.answer()

    async with engine(script) as here:
        big = Call("POST", "/", body=b"a" * 30_000_000)
        async with upstream.stream(here.origin, big) as answer:
            assert (answer.status, await soon(answer.read())) == (413, b"no")
        await soon(here.peers[0].gone.wait())
        assert (await soon(upstream.send(here.origin, GET))).body == b"ok"


async def test_a_stale_call_takes_the_other_idle_connections_along(upstream: HttptoolsUpstream) -> None:
    all_here = asyncio.Barrier(3)
    fresh = 3

    async def script(peer: Peer) -> None:
        await peer.request()
        if peer.number <= fresh:
            await all_here.wait()
        await peer.answer()
        if peer.number <= fresh:
            await peer.request()

    async with engine(script) as here:
        await soon(asyncio.gather(*(upstream.send(here.origin, GET) for _ in range(fresh))))
        with pytest.raises(Stale):
            await soon(upstream.send(here.origin, GET))
        assert (await soon(upstream.send(here.origin, GET))).body == b"ok"
        assert len(here.peers) == fresh + 1


@pytest.mark.parametrize("limits", [Limits(answer_s=0.2), Limits(idle_s=0.2)])
async def test_a_loop_that_was_held_up_blames_no_engine(upstream: HttptoolsUpstream, limits: Limits) -> None:
    head, body = OK[:-2], OK[-2:]
    asked, go_on = threading.Event(), threading.Event()

    def serve(listener: socket.socket) -> None:
        peer, _ = listener.accept()
        with peer:
            peer.settimeout(PATIENCE_S)
            peer.recv(65_536)
            peer.sendall(head if limits.answer_s is None else b"HTTP/1.1 102 Processing\r\n\r\n")
            asked.set()
            go_on.wait(PATIENCE_S)
            peer.sendall(body if limits.answer_s is None else OK)
            peer.recv(1)

    async with by_hand() as listener:
        serving = asyncio.ensure_future(asyncio.to_thread(serve, listener))
        asking = asyncio.ensure_future(upstream.send(origin_of(listener), Call("GET", "/", limits=limits)))
        await asyncio.sleep(0)
        while not asked.is_set():
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.02)
        go_on.set()
        time.sleep(0.5)  # noqa: ASYNC251 - the loop stands still while the answer comes
        assert (await soon(asking)).body == b"ok"
        await upstream.close()
        await soon(serving)


async def test_a_body_read_whole_may_take_long_if_it_goes_on(upstream: HttptoolsUpstream) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.say(CHUNKED)
        for _ in range(10):
            await peer.chunk(b"a")
            await asyncio.sleep(0.1)
        if peer.number <= 2:
            await peer.say(b"0\r\n\r\n")
        else:
            await peer.wait_gone()

    async with engine(script) as here:
        call = Call("GET", "/", limits=Limits(idle_s=0.6))
        async with upstream.stream(here.origin, call) as answer:
            assert await soon(answer.read()) == b"a" * 10
        await soon(here.peers[0].wait_gone())
        assert (await soon(upstream.send(here.origin, call))).body == b"a" * 10
        await soon(here.peers[1].wait_gone())
        with pytest.raises(TimedOut, match="idle"):
            await soon(upstream.send(here.origin, call))


async def test_closing_ends_a_call_that_has_no_connection_yet(upstream: HttptoolsUpstream) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        fillers = [socket.socket() for _ in range(4)]
        try:
            for filler in fillers:
                filler.setblocking(False)
                filler.connect_ex(listener.getsockname())
            asked = asyncio.ensure_future(upstream.send(origin_of(listener), GET))
            await asyncio.sleep(0.05)
            await soon(upstream.close())
            with pytest.raises(NeverSent):
                await soon(asked)
            assert upstream.open_calls() == {}
        finally:
            for filler in fillers:
                filler.close()


async def test_an_engine_that_speaks_first_is_no_answer(upstream: HttptoolsUpstream) -> None:
    async def script(peer: Peer) -> None:
        await peer.say(b"HTTP/1.1 500 Too early\r\nContent-Length: 0\r\n\r\n")
        await peer.request()
        await peer.answer()

    async with engine(script) as here:
        # It cannot be told from an answer once the request is out; before that it is none.
        try:
            answer = await soon(upstream.send(here.origin, GET))
        except NeverSent:
            return
        assert answer.status == 500


@pytest.mark.parametrize("says_farewell", [True, False])
async def test_over_tls_a_cut_wire_is_no_end(tmp_path: Path, says_farewell: bool) -> None:
    server, client = _certificate(tmp_path)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.settimeout(PATIENCE_S)

        def serve() -> None:
            raw, _ = listener.accept()
            raw.settimeout(PATIENCE_S)
            with server.wrap_socket(raw, server_side=True) as peer:
                peer.recv(65_536)
                peer.sendall(b"HTTP/1.1 200 OK\r\n\r\nabc")
                if not says_farewell:
                    peer.shutdown(socket.SHUT_WR)  # of TCP alone
                    peer.recv(1)
                    return
                with contextlib.suppress(OSError):  # the client does not wait for ours
                    peer.unwrap()

        serving = asyncio.ensure_future(asyncio.to_thread(serve))
        upstream = HttptoolsUpstream(tls=client)
        try:
            call = upstream.send(origin_of(listener).replace("http:", "https:"), GET)
            if says_farewell:
                assert (await soon(call)).body == b"abc"
            else:
                with pytest.raises(Broken):
                    await soon(call)
        finally:
            await upstream.close()
            await soon(asyncio.gather(serving, return_exceptions=True))


async def test_over_tls_large_bodies_pass_both_ways(tmp_path: Path) -> None:
    server, client = _certificate(tmp_path)
    body = os.urandom(1_000_003) * 5

    async def script(peer: Peer) -> None:
        while True:
            await peer.answer((await peer.request()).body)

    async with engine(script, tls=server) as here:
        upstream = HttptoolsUpstream(tls=client)
        try:
            call = Call("POST", "/", body=body, limits=Limits(connect_s=PATIENCE_S))
            assert (await soon(upstream.send(here.origin, call))).body == body
            async with upstream.stream(here.origin, call) as answer:
                assert await soon(anext(answer.chunks())) + await soon(answer.read()) == body
            assert len(here.peers) == 1
        finally:
            await soon(upstream.close())
            for peer in here.peers:
                await soon(peer.gone.wait())


async def test_no_cycle_keeps_a_call_in_memory(upstream: HttptoolsUpstream) -> None:
    async def script(peer: Peer) -> None:
        while True:
            await peer.request()
            await peer.answer(b"a" * 1_000)

    async with engine(script) as here:
        gc.collect()
        gc.disable()
        try:
            async with upstream.stream(here.origin, GET) as answer:
                await soon(answer.read())
            await soon(upstream.send(here.origin, GET))
            del answer
            assert [one for one in gc.get_objects() if isinstance(one, AnswerParser | OpenCall)] == []
        finally:
            gc.enable()


async def test_the_request_has_left_before_what_can_wait_is_done(upstream: HttptoolsUpstream) -> None:
    seen: list[bytes] = []
    async with by_hand() as listener:
        peer = await first_call(upstream, listener)
        with peer:
            # The loop stands still here: what the peer reads was written before.
            call = Call("POST", "/", (), b"[1]", meanwhile=lambda: seen.append(peer.recv(65_536)))
            asked = asyncio.ensure_future(upstream.send(origin_of(listener), call))
            while not seen:
                await asyncio.sleep(0)
            assert seen[0].endswith(b"\r\n\r\n[1]")
            peer.sendall(OK)
            assert (await soon(asked)).body == b"ok"
