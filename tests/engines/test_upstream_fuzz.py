"""What a broken or hostile engine may say, over sockets: an answer or an UpstreamError, and always soon."""

import asyncio
from collections.abc import Callable, Iterator

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from router.engines.httptools_upstream import HttptoolsUpstream
from router.engines.upstream import Answer, Broken, Call, Limits, UpstreamError
from tests.engines.scripted import PATIENCE_S, Peer, engine, soon
from tests.engines.test_answer_parser_fuzz import CUTS, Said, answers, mutated

LIMITS = Limits(connect_s=PATIENCE_S)
EXAMPLES = 60


@pytest.fixture(scope="module", params=[asyncio.new_event_loop, uvloop.new_event_loop])
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    """A loop for all examples of a test: hypothesis itself is not asynchronous."""
    make: Callable[[], asyncio.AbstractEventLoop] = request.param
    with asyncio.Runner(loop_factory=make) as running:
        yield running


def pieces(wire: bytes, cuts: list[int]) -> list[bytes]:
    ends = [cut for cut in sorted(set(cuts)) if cut < len(wire)]
    return [wire[begin:end] for begin, end in zip([0, *ends], [*ends, len(wire)], strict=True)]


async def ask(parts: list[bytes], *, is_streamed: bool) -> Answer | UpstreamError:
    """What comes of one request whose answer comes in ``parts``, and then the connection's end."""

    async def script(peer: Peer) -> None:
        await peer.request()
        for part in parts:
            if peer.writer.is_closing():
                return  # what came before was enough to hang up on, and uvloop writes nothing more
            await peer.say(part)
            await asyncio.sleep(0)

    async with engine(script) as here:
        upstream = HttptoolsUpstream()
        try:
            if not is_streamed:
                return await soon(upstream.send(here.origin, Call("POST", "/", body=b"{}", limits=LIMITS)))
            async with upstream.stream(here.origin, Call("POST", "/", body=b"{}", limits=LIMITS)) as answer:
                chunks = answer.chunks()
                body = b""
                while chunk := await soon(anext(chunks, b"")):
                    body += chunk
                return Answer(answer.status, answer.headers, body)
        except UpstreamError as error:
            return error
        finally:
            await soon(upstream.close())
            assert upstream.open_calls() == {}


@settings(max_examples=EXAMPLES)
@given(said=answers(), cuts=CUTS, is_streamed=st.booleans())
def test_any_split_gives_the_same_answer(
    runner: asyncio.Runner, said: Said, cuts: list[int], is_streamed: bool
) -> None:
    got = runner.run(ask(pieces(said.wire, cuts), is_streamed=is_streamed))
    assert got == Answer(said.status, tuple(said.headers), said.body)


@settings(max_examples=EXAMPLES)
@given(said=answers(), cuts=CUTS, is_streamed=st.booleans(), data=st.data())
def test_a_cut_answer_is_broken(
    runner: asyncio.Runner, said: Said, cuts: list[int], is_streamed: bool, data: st.DataObject
) -> None:
    last = len(said.wire) - (0 if said.has_end else len(said.body)) - 1
    wire = said.wire[: data.draw(st.integers(min_value=0, max_value=last), label="left")]
    got = runner.run(ask(pieces(wire, cuts), is_streamed=is_streamed))
    assert type(got) is Broken


@settings(max_examples=EXAMPLES)
@given(
    wire=st.one_of(
        mutated(), st.binary(max_size=300), st.builds(lambda a, b: a.wire + b.wire, answers(), answers())
    ),
    cuts=CUTS,
    is_streamed=st.booleans(),
)
def test_any_bytes_end_in_an_answer_or_an_error(
    runner: asyncio.Runner, wire: bytes, cuts: list[int], is_streamed: bool
) -> None:
    got = runner.run(ask(pieces(wire, cuts), is_streamed=is_streamed))
    assert isinstance(got, Answer) or type(got) is Broken
