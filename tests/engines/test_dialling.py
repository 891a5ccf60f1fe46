"""Names become sockets: addresses in order, one look-up for all who ask, and never an old one for long."""

import asyncio
import contextlib
import socket
import time
from collections.abc import Iterator

import pytest

from router.engines.dialling import ConnectClock, Dialler
from router.engines.request_head import destination
from tests.engines.scripted import soon

NAME = "engine.invalid"
LIMIT_S = 10.0


class Names:
    """Stands for the name server, which tests must not ask: what it knows, and how often it was asked."""

    def __init__(self) -> None:
        self.addresses: list[str] = []
        self.asked = 0

    def __call__(self, host: str, port: int, *_: object, **__: object) -> list[tuple[object, ...]]:
        self.asked += 1
        assert host == NAME
        if not self.addresses:
            raise socket.gaierror(socket.EAI_NONAME, "name not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (found, port)) for found in self.addresses]


@pytest.fixture
async def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    if type(asyncio.get_running_loop()).__module__.startswith("uvloop"):
        pytest.skip("uvloop resolves names outside of Python, so this would ask a real name server")
    here = Names()
    monkeypatch.setattr(socket, "getaddrinfo", here)
    return here


@contextlib.contextmanager
def listening(address: str, port: int = 0) -> Iterator[int]:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen()
        yield listener.getsockname()[1]


@contextlib.contextmanager
def deaf(address: str, port: int) -> Iterator[None]:
    """A listener that accepts nothing and whose queue is full: further ones wait."""
    with socket.socket() as listener, contextlib.ExitStack() as stack:
        listener.bind((address, port))
        listener.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex((address, port))
        yield


async def reached(dialler: Dialler, port: int, limit_s: float = LIMIT_S) -> str:
    """The address that a connection goes to."""
    sock = await soon(dialler.connect(destination(f"http://{NAME}:{port}"), limit_s))
    with sock:
        found: str = sock.getpeername()[0]
        return found


async def test_the_next_address_is_tried_and_the_one_that_answered_is_first_then(names: Names) -> None:
    names.addresses = ["127.0.0.2", "127.0.0.3", "127.0.0.1"]
    dialler = Dialler()
    with listening("127.0.0.1") as port:
        assert await reached(dialler, port) == "127.0.0.1"
        with listening("127.0.0.2", port):
            assert await reached(dialler, port) == "127.0.0.1"
    assert names.asked == 1


async def test_a_deaf_address_has_only_its_share_of_the_time(names: Names) -> None:
    names.addresses = ["127.0.0.2", "127.0.0.1"]
    with listening("127.0.0.1") as port, deaf("127.0.0.2", port):
        assert await reached(Dialler(), port, 0.4) == "127.0.0.1"


async def test_where_no_address_answers_the_name_is_asked_again(names: Names) -> None:
    names.addresses = ["127.0.0.2", "127.0.0.3"]
    dialler = Dialler()
    with listening("127.0.0.1") as port:
        with pytest.raises(ConnectionRefusedError):
            await reached(dialler, port)
        names.addresses = ["127.0.0.1"]
        assert await reached(dialler, port) == "127.0.0.1"
    assert names.asked == 2


async def test_many_at_once_are_one_look_up(names: Names) -> None:
    names.addresses = ["127.0.0.1"]
    dialler = Dialler()
    with listening("127.0.0.1") as port:
        assert set(await asyncio.gather(*(reached(dialler, port) for _ in range(20)))) == {"127.0.0.1"}
    assert names.asked == 1


async def test_all_who_wait_learn_of_a_fault(names: Names) -> None:
    dialler = Dialler()
    asked = [reached(dialler, 80) for _ in range(5)]
    assert {type(told) for told in await asyncio.gather(*asked, return_exceptions=True)} == {socket.gaierror}
    assert names.asked == 1
    with pytest.raises(socket.gaierror):
        await reached(dialler, 80)
    assert names.asked == 2


async def test_a_look_up_that_is_given_up_is_begun_anew_by_who_waits(names: Names) -> None:
    names.addresses = ["127.0.0.1"]
    dialler = Dialler()
    with listening("127.0.0.1") as port:
        first, second, third = (asyncio.ensure_future(reached(dialler, port)) for _ in range(3))
        await asyncio.sleep(0)
        first.cancel()
        assert set(await soon(asyncio.gather(second, third))) == {"127.0.0.1"}
        with pytest.raises(asyncio.CancelledError):
            await first


async def test_an_address_is_not_looked_up() -> None:
    with listening("127.0.0.1") as port:
        sock = await soon(Dialler().connect(destination(f"http://127.0.0.1:{port}"), LIMIT_S))
        with sock:
            assert sock.getpeername() == ("127.0.0.1", port)
            assert sock.gettimeout() == 0
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_a_clock_ends_a_wait() -> None:
    with pytest.raises(TimeoutError):
        async with ConnectClock(0.05):
            await soon(asyncio.Event().wait())


async def test_a_clock_can_be_made_to_expire() -> None:
    with pytest.raises(TimeoutError):
        async with ConnectClock(LIMIT_S * 10) as clock:
            clock.expire()
            await soon(asyncio.Event().wait())


async def test_a_clock_gives_the_time_again_that_its_own_loop_took() -> None:
    async with ConnectClock(0.2):
        time.sleep(0.5)  # noqa: ASYNC251 - the loop stands still
        await asyncio.sleep(0.05)
    with pytest.raises(TimeoutError):
        async with ConnectClock(0.2):
            time.sleep(0.5)  # noqa: ASYNC251
            await soon(asyncio.Event().wait())
