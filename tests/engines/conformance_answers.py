"""What every ``Upstream`` keeps to, part two: what goes out and what comes back, byte for byte."""

import asyncio
import gzip
import os
import ssl
import subprocess
from pathlib import Path

import pytest

from router.engines.upstream import Call, NeverSent
from tests.engines.conformance import GET, MakeUpstream
from tests.engines.scripted import Peer, Seen, engine, soon

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
SSE = [f'data: {{"n":{n}}}\n\n'.encode() for n in range(20)]


class AnswersConformance:
    async def test_each_event_arrives_before_the_next_one_is_sent(self, make_upstream: MakeUpstream) -> None:
        got = asyncio.Semaphore(0)

        async def script(peer: Peer) -> None:
            await peer.request()
            await peer.say(CHUNKED)
            await soon(got.acquire())
            for event in SSE:
                await peer.chunk(event)
                await soon(got.acquire())
            await peer.say(b"0\r\n\r\n")

        async with engine(script) as here, make_upstream().stream(here.origin, GET) as answer:
            assert answer.status == 200
            # The headers are here and no body is.
            got.release()
            seen = []
            async for chunk in answer.chunks():
                seen.append(chunk)
                got.release()
            assert seen == SSE

    async def test_an_answer_in_single_bytes(self, make_upstream: MakeUpstream) -> None:
        body = "data: é漢字🙂\r\n\r\n".encode()

        async def script(peer: Peer) -> None:
            await peer.request()
            whole = CHUNKED + b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
            for byte in whole:
                await peer.say(bytes([byte]))
                await asyncio.sleep(0)

        async with engine(script) as here:
            assert (await soon(make_upstream().send(here.origin, GET))).body == body

    @pytest.mark.parametrize("interim", [b"100 Continue", b"103 Early Hints", b"102 Processing"])
    async def test_interim_answers_are_passed_over(self, make_upstream: MakeUpstream, interim: bytes) -> None:
        async def script(peer: Peer) -> None:
            await peer.request()
            await peer.say(b"HTTP/1.1 %s\r\nLink: </a>\r\n\r\n" % interim)
            await peer.answer(b"done")

        async with engine(script) as here:
            answer = await soon(make_upstream().send(here.origin, Call("POST", "/", body=b"{}")))
            assert (answer.status, answer.body, answer.header("link")) == (200, b"done", None)

    async def test_chunk_extensions_and_trailers(self, make_upstream: MakeUpstream) -> None:
        async def script(peer: Peer) -> None:
            while True:
                await peer.request()
                await peer.say(CHUNKED + b'3;a=b;c="d"\r\nabc\r\n002\r\nde\r\n0\r\nX-Sum: 1\r\n\r\n')

        async with engine(script) as here:
            upstream = make_upstream()
            for _ in range(2):
                assert (await soon(upstream.send(here.origin, GET))).body == b"abcde"
            assert len(here.peers) == 1

    @pytest.mark.parametrize("version", [b"1.0", b"1.1"])
    async def test_a_body_that_ends_with_the_connection(
        self, make_upstream: MakeUpstream, version: bytes
    ) -> None:
        async def script(peer: Peer) -> None:
            await peer.request()
            await peer.say(b"HTTP/%s 200 OK\r\n\r\nabc" % version)
            await peer.say(b"def")

        async with engine(script) as here:
            assert (await soon(make_upstream().send(here.origin, GET))).body == b"abcdef"

    @pytest.mark.parametrize(
        ("method", "said", "status"),
        [
            ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n", 200),
            ("GET", b"HTTP/1.1 204 No Content\r\n\r\n", 204),
            ("GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 99\r\n\r\n", 304),
            ("GET", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200),
        ],
    )
    async def test_answers_without_a_body(
        self, make_upstream: MakeUpstream, method: str, said: bytes, status: int
    ) -> None:
        async def script(peer: Peer) -> None:
            while True:
                await peer.request()
                await peer.say(said)

        async with engine(script) as here:
            upstream = make_upstream()
            for _ in range(2):
                answer = await soon(upstream.send(here.origin, Call(method, "/")))
                assert (answer.status, answer.body) == (status, b"")
            assert len(here.peers) == 1, "the connection was not used again"

    async def test_large_bodies_both_ways(self, make_upstream: MakeUpstream) -> None:
        body = os.urandom(1_000_003) * 8

        async def script(peer: Peer) -> None:
            while True:
                seen = await peer.request()
                await peer.answer(seen.body)

        async with engine(script) as here:
            upstream = make_upstream()
            call = Call("POST", "/", body=body)
            assert (await soon(upstream.send(here.origin, call))).body == body
            async with upstream.stream(here.origin, call) as answer:
                first = await soon(anext(answer.chunks()))
                assert first + await soon(answer.read()) == body

    async def test_only_what_was_given_is_sent(
        self, make_upstream: MakeUpstream, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, "http://127.0.0.1:9")
        seen: list[Seen] = []

        async def script(peer: Peer) -> None:
            while True:
                seen.append(await peer.request())
                await peer.answer(headers="Set-Cookie: a=b; Path=/\r\n")

        given = (("X-Request-Id", "1"), ("x-twice", "a"), ("x-twice", "b"), ("authorization", "Bearer é漢"))
        wire = tuple((name, value.encode().decode("latin-1")) for name, value in given)
        async with engine(script) as here:
            upstream = make_upstream()
            host = ("host", f"127.0.0.1:{here.port}")
            identity = ("accept-encoding", "identity")
            for call, length in (
                (Call("POST", "/v1/chat/completions", wire, b"{}"), (("content-length", "2"),)),
                (Call("POST", "/v1/chat/completions", wire), (("content-length", "0"),)),
                (Call("GET", "/v1/models", wire), ()),
            ):
                await soon(upstream.send(here.origin, call))
                last = seen.pop()
                assert last.line == f"{call.method} {call.path} HTTP/1.1"
                assert sorted((name.lower(), value) for name, value in last.headers) == sorted(
                    (*((name.lower(), value) for name, value in wire), host, identity, *length)
                )

    async def test_framing_headers_of_a_caller_are_not_sent(self, make_upstream: MakeUpstream) -> None:
        seen: list[Seen] = []

        async def script(peer: Peer) -> None:
            seen.append(await peer.request())
            await peer.answer()

        bad = (
            ("Content-Length", "9"),
            ("transfer-encoding", "chunked"),
            ("Host", "b"),
            ("expect", "100-continue"),
        )
        async with engine(script) as here:
            await soon(make_upstream().send(here.origin, Call("POST", "/", bad, b"{}")))
            assert sorted((name.lower(), value) for name, value in seen[0].headers) == [
                ("accept-encoding", "identity"),
                ("content-length", "2"),
                ("host", f"127.0.0.1:{here.port}"),
            ]

    async def test_a_compressed_answer_is_passed_on_as_it_is(self, make_upstream: MakeUpstream) -> None:
        packed = gzip.compress(b"abc")
        asked: list[str | None] = []

        async def script(peer: Peer) -> None:
            while True:
                asked.append((await peer.request()).header("accept-encoding"))
                await peer.answer(packed, headers="Content-Encoding: gzip\r\n")

        async with engine(script) as here:
            upstream = make_upstream()
            plain = await soon(upstream.send(here.origin, GET))
            named = await soon(upstream.send(here.origin, Call("GET", "/", (("Accept-Encoding", "gzip"),))))
            assert plain == named
            assert (plain.body, plain.header("content-encoding")) == (packed, "gzip")
            assert asked == ["identity", "gzip"]

    async def test_redirects_are_answers_and_cookies_are_not_kept(self, make_upstream: MakeUpstream) -> None:
        seen: list[Seen] = []

        async def script(peer: Peer) -> None:
            while True:
                seen.append(await peer.request())
                await peer.answer(status="307 Moved", headers="Location: /b\r\nSet-Cookie: a=b\r\n")

        async with engine(script) as here:
            upstream = make_upstream()
            for _ in range(2):
                answer = await soon(upstream.send(here.origin, Call("POST", "/a", body=b"{}")))
                assert (answer.status, answer.header("location")) == (307, "/b")
            assert [one.line for one in seen] == ["POST /a HTTP/1.1"] * 2
            assert seen[1].header("cookie") is None

    async def test_header_names_are_lower_case_and_values_pass(self, make_upstream: MakeUpstream) -> None:
        async def script(peer: Peer) -> None:
            await peer.request()
            await peer.say(b"HTTP/1.1 429 Slow\r\nRetry-After: 7\r\nX-A: 1\r\nX-A: 2\r\nX-B: \xe9\xff\r\n")
            await peer.say(b"Content-Length: 0\r\n\r\n")

        async with engine(script) as here:
            answer = await soon(make_upstream().send(here.origin, GET))
            assert answer.status == 429
            assert answer.headers == (
                ("retry-after", "7"),
                ("x-a", "1"),
                ("x-a", "2"),
                ("x-b", "\xe9\xff"),
                ("content-length", "0"),
            )

    @pytest.mark.parametrize(
        "path", ["/a%2Fb/%7e?c=%20d&e=f+g&h", "/a/../b/./c//d", "/?q='()*!;:@[]", "/v1/models/org%2Fname"]
    )
    async def test_the_path_goes_as_it_came(self, make_upstream: MakeUpstream, path: str) -> None:
        seen: list[Seen] = []

        async def script(peer: Peer) -> None:
            seen.append(await peer.request())
            await peer.answer()

        async with engine(script) as here:
            await soon(make_upstream().send(here.origin, Call("GET", path)))
            assert seen[0].line == f"GET {path} HTTP/1.1"

    async def test_ipv6(self, make_upstream: MakeUpstream) -> None:
        seen: list[Seen] = []

        async def script(peer: Peer) -> None:
            seen.append(await peer.request())
            await peer.answer()

        try:
            async with engine(script, host="::1") as here:
                assert (await soon(make_upstream().send(here.origin, GET))).body == b"ok"
                assert seen[0].header("host") == f"[::1]:{here.port}"
        except OSError:
            pytest.skip("this machine has no IPv6 loopback")

    async def test_tls_is_verified(self, make_upstream: MakeUpstream, tmp_path: Path) -> None:
        server, client = _certificate(tmp_path)

        async def script(peer: Peer) -> None:
            await peer.request()
            await peer.answer(b"secret")
            await peer.wait_gone()

        async with engine(script, tls=server) as here:
            with pytest.raises(NeverSent):
                await soon(make_upstream().send(here.origin, GET))
            trusting = make_upstream(tls=client)
            async with trusting.stream(here.origin, GET) as answer:
                assert await soon(answer.read()) == b"secret"
            await soon(trusting.close())
            await soon(here.peers[-1].gone.wait())


def _certificate(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Contexts of a server with a certificate of its own, and of a client that trusts it."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=engine"
    )
    try:
        subprocess.run(
            [
                *command.split(),
                "-addext",
                "subjectAltName=IP:127.0.0.1",
                "-keyout",
                str(key),
                "-out",
                str(cert),
            ],
            check=True,
            capture_output=True,
        )
    except FileNotFoundError:
        pytest.skip("needs the openssl command to make a certificate")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(cert, key)
    return server, ssl.create_default_context(cafile=str(cert))
