"""Ways to a store: TLS, sentinels, and what a cluster's nodes are asked for."""

import asyncio
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from router.ledger.breaker import OPENS_AFTER
from router.ledger.redis import RedisLedger
from router.ledger.store import Found, LedgerUnavailable
from tests.ledger import servers
from tests.ledger.play import Clock, Play, asking
from tests.ledger.redis_play import redis_ledger
from tests.ledger.servers import Server


async def plays(ledger: RedisLedger) -> Found:
    """A turn, and the one that goes on from it."""
    play = Play(ledger, Clock(time.time()))
    await play.turn(asking("m0"))
    return await play.find(asking("m0", "a0", "m1"))


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that signs itself, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl on PATH to make a certificate with")
    paths = (tmp_path / "certificate.pem", tmp_path / "key.pem")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-nodes", "-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-out", str(paths[0]), "-keyout", str(paths[1])),
        ],
        check=True,
        capture_output=True,
    )
    return paths


@pytest.fixture
def encrypted(certificate: tuple[Path, Path]) -> Iterator[tuple[Server, str]]:
    """A server, and its address with TLS."""
    servers.needed()
    port = servers.free_port()
    files = ("--tls-cert-file", str(certificate[0]), "--tls-key-file", str(certificate[1]))
    options = ("--tls-port", str(port), *files, "--tls-ca-cert-file", str(certificate[0]))
    with servers.server(*options, "--tls-auth-clients", "no") as one:
        yield one, f"rediss://127.0.0.1:{port}"


async def test_tls_with_a_certificate_that_is_known(
    encrypted: tuple[Server, str], certificate: tuple[Path, Path]
) -> None:
    async with redis_ledger(encrypted[1], access={"ca_file": certificate[0]}) as ledger:
        assert (await plays(ledger)).handle is not None
        await ledger.sweep()
        assert (await ledger.stats()).branches == 1


async def test_tls_refuses_a_certificate_that_is_not(encrypted: tuple[Server, str]) -> None:
    async with redis_ledger(encrypted[1]) as ledger:
        with pytest.raises(LedgerUnavailable, match=r"(?i)certificate"):
            await ledger.find(asking("m0"))


async def test_without_tls_a_server_that_wants_it_is_not_there(encrypted: tuple[Server, str]) -> None:
    async with redis_ledger(encrypted[1].replace("rediss", "redis"), answer_s=1.0) as ledger:
        with pytest.raises(LedgerUnavailable):
            await ledger.find(asking("m0"))


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[tuple[Server, str]]:
    """A server, and the address of a sentinel that knows it."""
    servers.needed()
    with servers.server() as one:
        file = tmp_path / "sentinel.conf"
        file.write_text(f"sentinel monitor main 127.0.0.1 {one.port} 1\n")
        sentinel = Server(tmp_path / "sentinel", (), config=file)
        sentinel.start()
        try:
            yield one, f"redis+sentinel://127.0.0.1:{sentinel.port}/main"
        finally:
            sentinel.kill()


async def test_sentinels_name_the_primary(watched: tuple[Server, str]) -> None:
    async with redis_ledger(watched[1]) as ledger:
        assert (await plays(ledger)).handle is not None
        assert int(watched[0].say("DBSIZE")) > 0
        await ledger.sweep()
        assert (await ledger.stats()).branches == 1


async def test_a_primary_that_sentinels_do_not_know(watched: tuple[Server, str]) -> None:
    async with redis_ledger(watched[1].replace("main", "other")) as ledger:
        with pytest.raises(LedgerUnavailable, match="MasterNotFound"):
            await ledger.find(asking("m0"))


async def test_one_dead_node_of_a_cluster_costs_its_own_conversations_alone() -> None:
    servers.needed()
    with servers.cluster() as nodes:
        states: list[tuple[str, bool]] = []
        async with redis_ledger(
            servers.cluster_url(nodes),
            on_state=lambda server, up, _: states.append((server, up)),
        ) as ledger:
            play = Play(ledger, Clock(time.time()))
            for at in range(60):
                await play.turn(asking(f"m{at}"))
            used = [int(node.say("DBSIZE")) for node in nodes]
            assert min(used) > 0, "conversations are spread over the nodes"
            nodes[0].kill()
            for _ in range(OPENS_AFTER):
                await _answered(ledger)
            assert 20 < await _answered(ledger) < 60
            down = f"127.0.0.1:{nodes[0].port}"
            assert states == [(down, False)]
            nodes[0].start()
            async with asyncio.timeout(30):
                while states[-1] != (down, True):
                    try:
                        await ledger.sweep()
                    except LedgerUnavailable:
                        await asyncio.sleep(0.05)


async def _answered(ledger: RedisLedger) -> int:
    """Of how many conversations the store can be asked."""
    count = 0
    for at in range(60):
        try:
            await ledger.find(asking(f"m{at}", "a", "m"))
            count += 1
        except LedgerUnavailable:
            continue
    return count
