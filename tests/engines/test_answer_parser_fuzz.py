"""Any split of an answer gives the same result, and no bytes at all give anything but a result or a fault."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from router.engines.answer_parser import AnswerParser

INTERIM = st.sampled_from(
    [b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early\r\nLink: </a>\r\n\r\n"]
)
FIELDS = st.lists(
    st.tuples(
        st.from_regex(rb"[Xx]-[A-Za-z0-9]{1,12}", fullmatch=True),
        st.from_regex(rb"([!-~\x80-\xff]([ \t!-~\x80-\xff]{0,30}[!-~\x80-\xff])?)?", fullmatch=True),
    ),
    max_size=4,
)
BODIES = st.lists(st.binary(min_size=1, max_size=60), max_size=5)


@dataclass(frozen=True, slots=True)
class Said:
    """An answer as it goes over the wire, and what it is to be taken for."""

    wire: bytes
    status: int
    headers: list[tuple[str, str]]
    body: bytes
    has_end: bool
    """Its end stands in it; else it lasts until the connection ends."""


@dataclass(frozen=True, slots=True)
class Taken:
    status: int
    headers: list[tuple[str, str]]
    body: bytes
    is_complete: bool
    may_reuse: bool
    fault: str | None


@st.composite
def answers(draw: st.DrawFn) -> Said:
    """Valid answers of every framing."""
    status = draw(st.sampled_from([200, 206, 307, 404, 429, 500, 503]))
    fields, pieces = draw(FIELDS), draw(BODIES)
    framing = draw(st.sampled_from(["length", "chunked", "end", "none"]))
    body = b"".join(pieces)
    if framing == "length":
        fields.append((b"Content-Length", b"%d" % len(body)))
        wire = body
    elif framing == "chunked":
        fields.append((b"Transfer-Encoding", draw(st.sampled_from([b"chunked", b"Chunked"]))))
        extension = draw(st.sampled_from([b"", b";a=b", b';c="d"']))
        trailer = draw(st.sampled_from([b"", b"X-Sum: 1\r\n", b"X-Sum: 1\r\nx-more: \r\n"]))
        wire = b"".join(b"%x%b\r\n%b\r\n" % (len(piece), extension, piece) for piece in pieces)
        wire += b"0\r\n" + trailer + b"\r\n"
    elif framing == "end":
        wire = body
    else:
        status, wire, body = draw(st.sampled_from([204, 304])), b"", b""
    head = b"HTTP/1.1 %d %b\r\n" % (status, draw(st.sampled_from([b"", b"OK", b"No reason"])))
    head += b"".join(name + b": " + value + b"\r\n" for name, value in fields) + b"\r\n"
    headers = [(name.decode().lower(), value.decode("latin-1")) for name, value in fields]
    return Said(draw(INTERIM) + head + wire, status, headers, body, framing != "end")


def parse(wire: bytes, cuts: list[int], *, ends: bool = False, to_head: bool = False) -> Taken:
    """What a parser takes ``wire`` for when it comes in pieces."""
    parser = AnswerParser(to_head=to_head)
    body, last = b"", 0
    for cut in [*sorted(set(cuts)), len(wire)]:
        if last < cut <= len(wire):
            # As the connection does it: nothing is fed after the end.
            if not parser.is_complete:
                parser.feed(wire[last:cut])
            last = cut
            if cut % 2:
                body += parser.take()
    if ends and not parser.is_complete:
        parser.feed_end()
    body += parser.take()
    return Taken(parser.status, parser.headers, body, parser.is_complete, parser.may_reuse, parser.fault)


CUTS = st.lists(st.integers(min_value=1, max_value=600), max_size=12)


@given(answers(), CUTS)
def test_any_split_gives_the_same_answer(said: Said, cuts: list[int]) -> None:
    taken = parse(said.wire, cuts, ends=not said.has_end)
    assert taken == Taken(said.status, said.headers, said.body, True, said.has_end, None)


@given(answers())
def test_single_bytes_give_the_same_answer(said: Said) -> None:
    taken = parse(said.wire, list(range(1, len(said.wire))), ends=not said.has_end)
    assert taken == Taken(said.status, said.headers, said.body, True, said.has_end, None)


@given(answers(), CUTS, st.data())
def test_a_cut_answer_never_looks_complete(said: Said, cuts: list[int], data: st.DataObject) -> None:
    if not said.has_end:
        # Its head is what can be cut: the body may end anywhere.
        said = Said(said.wire[: len(said.wire) - len(said.body)], said.status, said.headers, b"", False)
    left = data.draw(st.integers(min_value=0, max_value=len(said.wire) - 1), label="left")
    taken = parse(said.wire[:left], cuts, ends=True)
    assert not taken.is_complete
    assert taken.fault is not None
    assert said.body.startswith(taken.body)


@given(answers(), CUTS, st.binary(min_size=1, max_size=30), st.booleans())
def test_what_follows_an_answer_is_not_part_of_it(
    said: Said, cuts: list[int], more: bytes, has_another: bool
) -> None:
    if not said.has_end:
        return
    more = said.wire if has_another else more
    taken = parse(said.wire + more, cuts)
    assert (taken.status, taken.headers, taken.body) == (said.status, said.headers, said.body)
    assert (taken.is_complete, taken.fault) == (True, None)
    # Either it came in a piece of its own, which an idle connection does not survive, or it is noticed here.
    fed = min((cut for cut in cuts if cut >= len(said.wire)), default=len(said.wire + more))
    beyond = (said.wire + more)[len(said.wire) : fed].lstrip(b"\r\n")
    assert taken.may_reuse is not bool(beyond)


@given(answers(), CUTS, st.booleans())
def test_an_answer_to_head_has_no_body(said: Said, cuts: list[int], body_is_sent: bool) -> None:
    framed = [
        (name, value) for name, value in said.headers if name in ("content-length", "transfer-encoding")
    ]
    body_at = said.wire.rindex(b"\r\n\r\n", 0, len(said.wire) - len(said.body) if not framed else None) + 4
    if framed and framed[0][0] == "content-length":
        body_at = len(said.wire) - len(said.body)
    elif framed:
        body_at = said.wire.lower().index(b"transfer-encoding: chunked\r\n\r\n") + 30
    wire = said.wire if body_is_sent else said.wire[:body_at]
    taken = parse(wire, cuts, to_head=True)
    assert (taken.status, taken.headers, taken.body) == (said.status, said.headers, b"")
    assert (taken.is_complete, taken.fault) == (True, None)
    if not framed and said.status not in (204, 304):
        assert not taken.may_reuse
    elif not body_is_sent:
        assert taken.may_reuse


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A valid answer with bytes changed, put in, taken out, or doubled."""
    wire = bytearray(draw(answers()).wire)
    for _ in range(draw(st.integers(min_value=1, max_value=6))):
        at = draw(st.integers(min_value=0, max_value=len(wire)))
        what = draw(st.sampled_from(["change", "insert", "delete", "double"]))
        some = draw(
            st.sampled_from([b"\r", b"\n", b"\0", b"\xff", b" ", b":", b"0", b"f", b"\r\n", b"\r\n\r\n"])
        )
        if what == "change":
            wire[at : at + 1] = some
        elif what == "insert":
            wire[at:at] = some
        elif what == "delete":
            del wire[at : at + draw(st.integers(min_value=1, max_value=20))]
        else:
            wire[at:at] = wire[at : at + draw(st.integers(min_value=1, max_value=40))]
    return bytes(wire)


@given(st.one_of(mutated(), st.binary(max_size=300)), CUTS, st.booleans())
def test_any_bytes_give_a_result_that_does_not_depend_on_their_split(
    wire: bytes, cuts: list[int], to_head: bool
) -> None:
    taken = parse(wire, cuts, ends=True, to_head=to_head)
    assert taken.is_complete is (taken.fault is None)
    whole = parse(wire, [], ends=True, to_head=to_head)
    assert (taken.is_complete, taken.body) == (whole.is_complete, whole.body)
    if taken.is_complete:
        assert 200 <= taken.status <= 999
        assert (taken.status, taken.headers) == (whole.status, whole.headers)
