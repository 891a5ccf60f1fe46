"""Bodies that are pumped: given as they come, to a sink that may say at any time that it takes no more."""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from router.engines.upstream import AnswerStream, Broken, Call, Limits, TimedOut
from tests.engines.conformance import GET, PATIENT, MakeUpstream
from tests.engines.scripted import PATIENCE_S, Peer, Script, engine, soon

CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENTS = [b"data: %d\n\n" % number for number in range(20)]
END = b"0\r\n\r\n"


@dataclass
class Taker:
    """A sink that keeps what it is given; it goes on for as long as ``goes_on`` says."""

    goes_on: Callable[[bytes], bool] = lambda _: True
    taken: list[bytes] = field(default_factory=list)
    more: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))

    def __call__(self, piece: bytes, chunk: bytes | None) -> bool:
        assert chunk is None or chunk == b"%x\r\n%b\r\n" % (len(piece), piece)
        self.taken.append(piece)
        self.more.release()
        return self.goes_on(piece)

    @property
    def body(self) -> bytes:
        return b"".join(self.taken)


async def to_the_end(answer: AnswerStream, taker: Taker) -> None:
    while not await soon(answer.pump(taker)):
        pass


class PumpConformance:
    async def test_each_event_is_given_before_the_next_one_is_sent(self, make_upstream: MakeUpstream) -> None:
        taker = Taker()

        async def script(peer: Peer) -> None:
            await peer.request()
            await peer.say(CHUNKED)
            for event in EVENTS:
                await peer.chunk(event)
                await soon(taker.more.acquire())
            await peer.say(END)

        async with engine(script) as here, make_upstream().stream(here.origin, GET) as answer:
            assert await soon(answer.pump(taker)) is True
            assert taker.taken == EVENTS

    @pytest.mark.parametrize("framing", ["chunked", "length", "end", "extensions", "upper_case", "zeros"])
    async def test_a_sink_that_stops_loses_nothing(self, make_upstream: MakeUpstream, framing: str) -> None:
        body = b"".join(EVENTS)
        line = {"extensions": b"%x;a=b\r\n", "upper_case": b"%X\r\n", "zeros": b"0%x\r\n"}.get(
            framing, b"%x\r\n"
        )

        async def script(peer: Peer) -> None:
            await peer.request()
            if framing == "length":
                await peer.say(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body))
            else:
                await peer.say(b"HTTP/1.1 200 OK\r\n\r\n" if framing == "end" else CHUNKED)
            for event in EVENTS:
                plain = framing in ("length", "end")
                await peer.say(event if plain else line % len(event) + event + b"\r\n")
                await asyncio.sleep(0)
            if framing == "end":
                peer.writer.close()
            elif framing != "length":
                await peer.say(END)

        async with engine(script) as here, make_upstream().stream(here.origin, GET) as answer:
            taker = Taker(goes_on=lambda _: False)
            await to_the_end(answer, taker)
            assert taker.body == body
            assert await soon(answer.pump(taker)) is True  # an end stays one

    async def test_any_split_gives_the_same_body(self, make_upstream: MakeUpstream) -> None:
        wire = b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in EVENTS)

        def script_of(step: int) -> Script:
            async def script(peer: Peer) -> None:
                await peer.request()
                await peer.say(CHUNKED)
                for at in range(0, len(wire), step):
                    await peer.say(wire[at : at + step])
                    await asyncio.sleep(0)
                await peer.say(END)

            return script

        for step in (1, 2, 3, 7, 15, 16, 30, 31):
            async with engine(script_of(step)) as here, make_upstream().stream(here.origin, GET) as answer:
                taker = Taker()
                assert await soon(answer.pump(taker)) is True
                assert taker.body == b"".join(EVENTS), step

    async def test_the_other_ways_to_read_go_on_where_it_stopped(self, make_upstream: MakeUpstream) -> None:
        async def script(peer: Peer) -> None:
            await peer.request()
            await peer.say(CHUNKED)
            for event in EVENTS:
                await peer.chunk(event)
            await peer.say(END)

        async with engine(script) as here, make_upstream().stream(here.origin, GET) as answer:
            taker = Taker(goes_on=lambda _: False)
            assert await soon(answer.pump(taker)) is False
            assert taker.body + await soon(answer.read()) == b"".join(EVENTS)

    async def test_what_came_before_a_break_is_given_first(self, make_upstream: MakeUpstream) -> None:
        taker = Taker()

        async def script(peer: Peer) -> None:
            await peer.request()
            await peer.say(CHUNKED)
            for event in EVENTS:
                await peer.chunk(event)
            await peer.say(b"5\r\nab")
            while taker.body != b"".join(EVENTS) + b"ab":
                await soon(taker.more.acquire())
            peer.reset()

        async with engine(script) as here, make_upstream().stream(here.origin, GET) as answer:
            with pytest.raises(Broken):
                await soon(answer.pump(taker))
            with pytest.raises(Broken):
                await soon(answer.pump(taker))

    async def test_what_is_no_chunk_is_a_fault(self, make_upstream: MakeUpstream) -> None:
        taker = Taker()

        async def script(peer: Peer) -> None:
            await peer.request()
            await peer.say(CHUNKED)
            await peer.chunk(b"good")
            await soon(taker.more.acquire())
            await peer.say(b"+3\r\nbad\r\n")
            await peer.wait_gone()

        async with engine(script) as here, make_upstream().stream(here.origin, GET) as answer:
            with pytest.raises(Broken):
                await soon(answer.pump(taker))
            assert taker.body == b"good"

    async def test_what_the_sink_raises_comes_out(self, make_upstream: MakeUpstream) -> None:
        class Refused(Exception):
            pass

        def refuse(piece: bytes) -> bool:
            if piece.endswith(EVENTS[3]):
                raise Refused
            return True

        taker = Taker(goes_on=refuse)

        async def script(peer: Peer) -> None:
            await peer.request()
            await peer.say(CHUNKED)
            for event in EVENTS[:4]:
                await peer.chunk(event)
                await soon(taker.more.acquire())
            await peer.wait_gone()

        async with engine(script) as here:
            with contextlib.suppress(Refused):
                async with make_upstream().stream(here.origin, GET) as answer:
                    await soon(answer.pump(taker))
                    pytest.fail("it was not raised")
            await soon(here.peers[0].gone.wait())
            assert taker.taken == EVENTS[:4]

    async def test_silence_is_bounded_and_each_piece_ends_it(self, make_upstream: MakeUpstream) -> None:
        taker = Taker()
        call = replace(GET, limits=Limits(connect_s=PATIENCE_S, idle_s=0.3))

        async def script(peer: Peer) -> None:
            await peer.request()
            await peer.say(CHUNKED)
            for event in EVENTS[:4]:
                await peer.chunk(event)
                await asyncio.sleep(0.1)  # longer in all than the limit
            await peer.wait_gone()

        async with engine(script) as here, make_upstream().stream(here.origin, call) as answer:
            with pytest.raises(TimedOut) as caught:
                await soon(answer.pump(taker))
            assert caught.value.phase == "idle"
            assert taker.taken == EVENTS[:4]

    async def test_a_sink_that_takes_no_more_holds_the_engine_back(self, make_upstream: MakeUpstream) -> None:
        total, written = 64 * 1024 * 1024, 0
        stuck = asyncio.Event()

        async def script(peer: Peer) -> None:
            nonlocal written
            await peer.request()
            await peer.say(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % total)
            piece = bytes(1024 * 1024)
            while written < total:
                peer.writer.write(piece)
                if peer.writer.transport.get_write_buffer_size() > 2 * len(piece):
                    stuck.set()
                await soon(peer.writer.drain())
                written += len(piece)

        async with engine(script) as here, make_upstream().stream(here.origin, GET) as answer:
            size = 0

            def take_one(piece: bytes, _: bytes | None) -> bool:
                nonlocal size
                size += len(piece)
                return False

            assert await soon(answer.pump(take_one)) is False
            await asyncio.wait({asyncio.ensure_future(stuck.wait())}, timeout=0.5)
            assert written < total  # the kernel's buffers and ours are full
            while not await soon(answer.pump(take_one)):
                pass
            assert size == total

    async def test_leaving_closes_at_once(self, make_upstream: MakeUpstream) -> None:
        async def script(peer: Peer) -> None:
            await peer.request()
            await peer.say(CHUNKED)
            await peer.chunk(EVENTS[0])
            await peer.wait_gone()

        taker = Taker()
        upstream = make_upstream()

        async def read(call: Call, origin: str) -> None:
            async with upstream.stream(origin, call) as answer:
                await answer.pump(taker)

        async with engine(script) as here:
            reading = asyncio.create_task(read(replace(GET, limits=PATIENT), here.origin))
            await soon(taker.more.acquire())
            reading.cancel()
            await soon(here.peers[0].gone.wait())
            assert await asyncio.gather(reading, return_exceptions=True)
            assert not upstream.open_calls()
