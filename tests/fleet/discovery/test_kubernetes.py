"""Nodes from EndpointSlices, against an API server over HTTP."""

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from router.fleet.discovery import kubernetes
from router.fleet.discovery.kubernetes import Cluster, EndpointSlices
from router.fleet.node import Role
from tests.fleet.discovery.api_server import ApiServer, api_server, endpoint, endpoint_slice
from tests.fleet.discovery.listened import PATIENCE_S, listening


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes, "PAUSES_S", (0.005,))
    monkeypatch.setattr(kubernetes, "TAKE_UP_S", 0.001)


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    async with api_server() as server:
        yield server


@pytest.fixture
def account(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text("tok\n")
    (tmp_path / "namespace").write_text("serving")
    return tmp_path


def slices(api: ApiServer, account: Path, *, port: str = "http", namespace: str = "") -> EndpointSlices:
    return EndpointSlices(Cluster(api.origin, account, namespace), Role.DECODE, "app=vllm", port)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.002)


async def test_a_list_and_then_a_watch(api: ApiServer, account: Path) -> None:
    api.put(endpoint_slice("a", endpoint("10.0.0.1"), endpoint("10.0.0.2")))
    api.put({**endpoint_slice("other", endpoint("10.9.9.9")), "metadata": {"name": "other", "labels": {}}})
    async with listening(slices(api, account)) as heard:
        await heard.until_keys("d:10.0.0.1:8000", "d:10.0.0.2:8000")
        api.put(endpoint_slice("a", endpoint("10.0.0.2"), endpoint("10.0.0.3")))
        await heard.until_keys("d:10.0.0.2:8000", "d:10.0.0.3:8000")
        api.put(endpoint_slice("b", endpoint("10.0.1.1")))
        await heard.until_keys("d:10.0.0.2:8000", "d:10.0.0.3:8000", "d:10.0.1.1:8000")
        api.delete("a")
        await heard.until_keys("d:10.0.1.1:8000")
    assert (api.lists, len(api.watches)) == (1, 1)
    assert not heard.failures


async def test_a_watch_that_breaks_is_taken_up_where_it_ended(api: ApiServer, account: Path) -> None:
    api.put(endpoint_slice("a", endpoint("10.0.0.1")))
    async with listening(slices(api, account)) as heard:
        await until(lambda: api.open_watches == 1)
        api.bookmark()
        api.put(endpoint_slice("a", endpoint("10.0.0.2")))
        await heard.until_keys("d:10.0.0.2:8000")
        at = api.version
        api.cut_watches()
        api.put(endpoint_slice("a", endpoint("10.0.0.3")))
        await heard.until_keys("d:10.0.0.3:8000")
        assert api.watches[-1] == str(at), "from the newest event on"
    assert api.lists == 1


@pytest.mark.parametrize("as_event", [False, True])
async def test_a_version_that_is_gone_means_a_new_list(api: ApiServer, account: Path, as_event: bool) -> None:
    api.gone_as_event = as_event
    api.put(endpoint_slice("a", endpoint("10.0.0.1")))
    async with listening(slices(api, account)) as heard:
        await until(lambda: api.open_watches == 1)
        api.slices["a"] = endpoint_slice("a", endpoint("10.0.0.9"))
        api.forget()
        api.cut_watches()
        await heard.until_keys("d:10.0.0.9:8000")
        await until(lambda: api.open_watches == 1)
    assert api.lists == 2


async def test_a_bookmark_moves_the_version_on(api: ApiServer, account: Path) -> None:
    api.put(endpoint_slice("a", endpoint("10.0.0.1")))
    async with listening(slices(api, account)) as heard:
        await until(lambda: api.open_watches == 1)
        told = len(heard.told)
        api.bookmark()
        await heard.until(lambda: len(heard.told) > told)
        at = api.version
        api.cut_watches()
        await until(lambda: len(api.watches) == 2)
    assert api.watches[-1] == str(at)


async def test_rbac_says_no_and_then_yes(api: ApiServer, account: Path) -> None:
    api.put(endpoint_slice("a", endpoint("10.0.0.1")))
    api.allowed = False
    async with listening(slices(api, account)) as heard:
        await heard.until(lambda: bool(heard.failures))
        assert heard.failures[0] == (
            "the API server answered 403 to a list:"
            " endpointslices.discovery.k8s.io is forbidden: cannot list resource"
        )
        api.allowed = True
        await heard.until_keys("d:10.0.0.1:8000")
        api.allowed = False
        api.cut_watches()
        await heard.until(lambda: "answered 403" in str(heard.told[-1]))
        assert [told for told in heard.told if told == ()] == [], "nothing was taken out of the pool"


async def test_a_token_that_rotates_is_read_again(api: ApiServer, account: Path) -> None:
    api.put(endpoint_slice("a", endpoint("10.0.0.1")))
    api.token = "new"
    async with listening(slices(api, account)) as heard:
        await heard.until(lambda: bool(heard.failures))
        assert "answered 401" in heard.failures[0]
        (account / "token").write_text("new")
        await heard.until_keys("d:10.0.0.1:8000")


async def test_no_server_no_namespace_no_certificate(api: ApiServer, account: Path) -> None:
    origin = api.origin
    api.put(endpoint_slice("a", endpoint("10.0.0.1")))
    (account / "namespace").unlink()
    async with listening(slices(api, account)) as heard:
        await heard.until(lambda: bool(heard.failures))
        assert "FileNotFoundError" in heard.failures[0]
        (account / "namespace").write_text("serving")
        await heard.until_keys("d:10.0.0.1:8000")
    async with listening(slices(api, account, namespace="serving")) as heard:
        await heard.until_keys("d:10.0.0.1:8000")
    api.origin = "http://127.0.0.1:1"
    async with listening(slices(api, account)) as heard:
        await heard.until(lambda: bool(heard.failures))
        assert "ConnectError" in heard.failures[0]
    api.origin = origin.replace("http://", "https://")
    async with listening(slices(api, account)) as heard:
        await heard.until(lambda: bool(heard.failures))
        assert "cannot be talked to" in heard.failures[0]


@pytest.mark.parametrize("line", ["no json", '{"type":"ADDED","object":7}', '{"type":"ADDED"', "[]"])
async def test_nonsense_in_a_watch_is_told_and_survived(api: ApiServer, account: Path, line: str) -> None:
    api.put(endpoint_slice("a", endpoint("10.0.0.1")))
    async with listening(slices(api, account)) as heard:
        await until(lambda: api.open_watches == 1)
        api.send(line)
        await heard.until(lambda: bool(heard.failures))
        assert "cannot be read" in heard.failures[0]
        api.put(endpoint_slice("a", endpoint("10.0.0.2")))
        await heard.until_keys("d:10.0.0.2:8000")


async def test_an_error_in_a_watch_is_told(api: ApiServer, account: Path) -> None:
    api.put(endpoint_slice("a", endpoint("10.0.0.1")))
    async with listening(slices(api, account)) as heard:
        await until(lambda: api.open_watches == 1)
        api.send('{"type":"ERROR","object":{"code":500,"message":"etcd\\nis away"}}')
        await heard.until(lambda: bool(heard.failures))
        assert heard.failures == ["the API server answered 500 to a watch: etcd is away"]
        await heard.until_keys("d:10.0.0.1:8000")


async def test_a_port_that_is_not_there_is_told(api: ApiServer, account: Path) -> None:
    api.put(endpoint_slice("a", endpoint("10.0.0.1")))
    async with listening(slices(api, account, port="grpc")) as heard:
        await heard.until(lambda: bool(heard.failures))
        assert heard.failures == ["no EndpointSlice has a port 'grpc'"]


async def test_over_tls_the_service_accounts_authority_is_trusted_and_no_other(account: Path) -> None:
    async with api_server(tls=certified(account)) as api:
        api.put(endpoint_slice("a", endpoint("10.0.0.1")))
        async with listening(slices(api, account)) as heard:
            await heard.until_keys("d:10.0.0.1:8000")
        certified(account)
        async with listening(slices(api, account)) as heard:
            await heard.until(lambda: bool(heard.failures))
            assert "CERTIFICATE_VERIFY_FAILED" in heard.failures[0]


def certified(folder: Path) -> ssl.SSLContext:
    """A server's context with a new certificate, which the service account in ``folder`` trusts."""
    cert, key = folder / "ca.crt", folder / "key.pem"
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=api"
        f" -addext subjectAltName=IP:127.0.0.1 -keyout {key} -out {cert}"
    )
    try:
        subprocess.run(command.split(), check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("needs the openssl command to make a certificate")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(cert, key)
    return server
