"""What Kubernetes' EndpointSlices say of engines. Pure: documents in, nodes out.

``discovery.k8s.io/v1``, kubernetes.io, "EndpointSlice". One engine may stand in several slices: one for each
family of addresses, and for a moment two while endpoints move between slices.
"""

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from router.fleet.node import Node, Role, node_of
from router.origin import at_port

_FAMILIES: Final = ("IPv4", "IPv6", "FQDN")
"""In order of preference, where an engine has addresses of several families."""


class Conditions(msgspec.Struct):
    """None is "not known", and by Kubernetes' own rule to be taken for ready."""

    ready: bool | None = None


class Reference(msgspec.Struct):
    uid: str = ""


class Endpoint(msgspec.Struct, rename="camel"):
    addresses: list[str] = []
    conditions: Conditions = msgspec.field(default_factory=Conditions)
    target_ref: Reference | None = None


class Port(msgspec.Struct, rename="camel"):
    name: str | None = None
    port: int | None = None
    app_protocol: str | None = None


class Metadata(msgspec.Struct, rename="camel"):
    name: str = ""
    namespace: str = ""
    resource_version: str = ""


class EndpointSlice(msgspec.Struct, rename="camel"):
    metadata: Metadata = msgspec.field(default_factory=Metadata)
    address_type: str = "IPv4"
    endpoints: list[Endpoint] | None = None
    ports: list[Port] | None = None


class SliceList(msgspec.Struct):
    metadata: Metadata = msgspec.field(default_factory=Metadata)
    items: list[EndpointSlice] = []


class WatchEvent(msgspec.Struct):
    type: str
    object: msgspec.Raw = msgspec.Raw(b"{}")


def nodes_of(slices: Iterable[EndpointSlice], role: Role, port: str) -> tuple[Node, ...]:
    """The engines that are to get turns, as nodes. ``port`` is a name or a number; empty: the first one.

    An endpoint that is not ready, as it is while its pod ends, is not listed. Raises ValueError where no
    slice has such a port, although there are endpoints.
    """
    slices = tuple(slices)
    found: dict[str, tuple[int, Node]] = {}
    endpoints, lacking = 0, 0
    for piece in slices:
        at = _port(piece, port)
        family = _FAMILIES.index(piece.address_type) if piece.address_type in _FAMILIES else len(_FAMILIES)
        for endpoint in _ready(piece):
            endpoints += 1
            if at is None:
                lacking += 1
                continue
            scheme = "https" if (at.app_protocol or "").endswith("https") else "http"
            # One of an endpoint's addresses is enough, and all but the first are deprecated.
            node = node_of(at_port(endpoint.addresses[0], at.port or 0, scheme=scheme), role)
            target = endpoint.target_ref.uid if endpoint.target_ref is not None else ""
            engine = target or node.key
            if engine not in found or family < found[engine][0]:
                found[engine] = (family, node)
    if endpoints and lacking == endpoints:
        raise ValueError(f"no EndpointSlice has a port {port!r}" if port else "no EndpointSlice has a port")
    return tuple({node.key: node for _, node in found.values()}.values())


def _ready(piece: EndpointSlice) -> Iterator[Endpoint]:
    for endpoint in piece.endpoints or ():
        if endpoint.conditions.ready is not False and endpoint.addresses:
            yield endpoint


def _port(piece: EndpointSlice, wanted: str) -> Port | None:
    ports = [port for port in piece.ports or () if port.port]
    if not wanted:
        return ports[0] if ports else None
    if wanted.isdecimal():
        return next((port for port in ports if port.port == int(wanted)), None)
    return next((port for port in ports if port.name == wanted), None)
