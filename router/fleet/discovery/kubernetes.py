"""Nodes from Kubernetes: the endpoints of the EndpointSlices that a label selector names.

Two requests of one API are all that is needed, a list and a watch, so the HTTP client that is a dependency
already makes them, and no client library is one: kubernetes-asyncio 36 is 23 MB of generated models of every
resource, lightkube 1.0 brings another HTTP client, and what matters here would be ours with either. It is
below, in one page: a watch that ends is taken up where it ended, a version that the server has forgotten
(410 Gone) means a new list, and a token is read anew for each request, because service account tokens rotate.

The service account needs ``list`` and ``watch`` on ``endpointslices`` in ``discovery.k8s.io``. Slices carry
the labels of their Service, and ``kubernetes.io/service-name``.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import msgspec

from router.fleet.discovery.reconcile import Listing
from router.fleet.discovery.slices import EndpointSlice, SliceList, WatchEvent, nodes_of
from router.fleet.node import Role

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
WATCH_S: Final = 240
"""How long the server is asked to keep a watch; it ends well then."""
SILENCE_S: Final = WATCH_S + 30.0
"""A watch that says nothing for longer has lost its connection. Bookmarks come about once a minute."""
ANSWER_S: Final = 10.0
TAKE_UP_S: Final = 0.2
"""Before a watch that ended well is taken up again: a server that ends each at once is not to be run down."""
PAUSES_S: Final = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Between attempts that fail, one after another."""
MAX_LINE_BYTES: Final = 8_388_608
"""Of one event: a slice holds at most 1,000 endpoints."""


class _Gone(Exception):
    """The server has forgotten the version that a watch was to go on from."""


class _Refused(Exception):
    """An answer that is no list and no watch; its text is for people."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where the API server is. ``account`` is a folder with ``token``, ``ca.crt`` and ``namespace``."""

    api: str
    account: Path = SERVICE_ACCOUNT
    namespace: str = ""
    """Empty: the service account's own."""


class EndpointSlices:
    """The source that ``kubernetes_prefill`` and ``kubernetes_decode`` name."""

    def __init__(self, cluster: Cluster, role: Role, selector: str, port: str) -> None:
        self._cluster, self._role, self._selector, self._port = cluster, role, selector, port
        self._slices: dict[str, EndpointSlice] = {}
        self._version = ""
        """Of what is known; empty where a list is needed."""

    @property
    def name(self) -> str:
        return f"kubernetes {self._role} {self._selector}"

    async def run(self, listing: Listing) -> None:
        failures = 0
        while True:
            try:
                async with self._client() as client:
                    # A watch that ends well is taken up where it ended.
                    while True:
                        if not self._version:
                            await self._list(client)
                            self._tell(listing)
                        failures = 0
                        async for event in self._events(client):
                            self._take(event)
                            self._tell(listing)
                        await asyncio.sleep(TAKE_UP_S)
            except _Gone:
                self._version = ""
                await asyncio.sleep(TAKE_UP_S)
                continue
            except _Refused as refused:
                self._version = ""
                listing.failed(str(refused))
            except (httpx.HTTPError, OSError) as error:
                listing.failed(f"the API server cannot be talked to: {type(error).__name__}: {error}")
            except (ValueError, msgspec.MsgspecError) as error:
                self._version = ""  # what cannot be read now could not be read again either
                listing.failed(f"the API server's answer cannot be read: {error}")
            await asyncio.sleep(PAUSES_S[min(failures, len(PAUSES_S) - 1)])
            failures += 1

    def _client(self) -> httpx.AsyncClient:
        """Raises OSError where the authority's certificate cannot be read."""
        trusted: ssl.SSLContext | bool = False
        if self._cluster.api.startswith("https://"):
            trusted = ssl.create_default_context(cafile=str(self._cluster.account / "ca.crt"))
        return httpx.AsyncClient(
            base_url=self._cluster.api, verify=trusted, trust_env=False, timeout=ANSWER_S
        )

    def _namespace(self) -> str:
        return self._cluster.namespace or _text(self._cluster.account / "namespace")

    def _request(self, client: httpx.AsyncClient, **query: str) -> httpx.Request:
        """Raises OSError where token or namespace cannot be read."""
        token_file = self._cluster.account / "token"
        headers = {"authorization": f"Bearer {_text(token_file)}"} if token_file.exists() else {}
        path = f"/apis/discovery.k8s.io/v1/namespaces/{self._namespace()}/endpointslices"
        return client.build_request(
            "GET", path, params={"labelSelector": self._selector, **query}, headers=headers
        )

    async def _list(self, client: httpx.AsyncClient) -> None:
        answer = await client.send(self._request(client))
        if answer.status_code != 200:
            raise _refusal(answer.status_code, "list", answer.content)
        listed = msgspec.json.decode(answer.content, type=SliceList)
        self._slices = {piece.metadata.name: piece for piece in listed.items}
        self._version = listed.metadata.resource_version

    async def _events(self, client: httpx.AsyncClient) -> AsyncIterator[WatchEvent]:
        """What changes from the known version on, until the server ends the watch."""
        request = self._request(
            client,
            watch="1",
            resourceVersion=self._version,
            allowWatchBookmarks="true",
            timeoutSeconds=str(WATCH_S),
        )
        request.extensions["timeout"] = httpx.Timeout(ANSWER_S, read=SILENCE_S).as_dict()
        answer = await client.send(request, stream=True)
        try:
            if answer.status_code == 410:
                raise _Gone
            if answer.status_code != 200:
                raise _refusal(answer.status_code, "watch", await answer.aread())
            async for line in _lines(answer):
                yield msgspec.json.decode(line, type=WatchEvent)
        finally:
            await answer.aclose()

    def _take(self, event: WatchEvent) -> None:
        """Raises _Gone and _Refused for an error that comes as an event."""
        if event.type == "ERROR":
            status: Any = msgspec.json.decode(event.object)
            code = status.get("code") if isinstance(status, dict) else None
            if code == 410:
                raise _Gone
            raise _refusal(code if isinstance(code, int) else 0, "watch", bytes(event.object))
        piece = msgspec.json.decode(event.object, type=EndpointSlice)
        self._version = piece.metadata.resource_version or self._version
        match event.type:
            case "ADDED" | "MODIFIED":
                self._slices[piece.metadata.name] = piece
            case "DELETED":
                self._slices.pop(piece.metadata.name, None)

    def _tell(self, listing: Listing) -> None:
        try:
            listing.are(nodes_of(self._slices.values(), self._role, self._port))
        except ValueError as error:
            listing.failed(str(error))


async def _lines(answer: httpx.Response) -> AsyncIterator[bytes]:
    """The lines of a watch: JSON may hold what other readers of lines take for their end."""
    rest = b""
    async for piece in answer.aiter_bytes():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.strip():
                yield line
        if len(rest) > MAX_LINE_BYTES:
            raise ValueError(f"an event of more than {MAX_LINE_BYTES} bytes")


def _refusal(status: int, what: str, body: bytes) -> _Refused:
    """What the API server said, in one line."""
    try:
        told = msgspec.json.decode(body, type=_Status).message
    except msgspec.MsgspecError:
        told = ""
    why = " ".join(told.split())[:300]
    return _Refused(f"the API server answered {status} to a {what}{f': {why}' if why else ''}")


class _Status(msgspec.Struct):
    message: str = ""


def _text(path: Path) -> str:
    return path.read_text(encoding="ascii").strip()
