"""What EndpointSlices mean."""

from typing import Any

import msgspec
import pytest

from router.fleet.discovery.slices import EndpointSlice, nodes_of
from router.fleet.node import Role
from tests.fleet.discovery.api_server import endpoint, endpoint_slice


def keys(*documents: dict[str, Any], port: str = "http") -> list[str]:
    slices = [msgspec.convert(document, EndpointSlice) for document in documents]
    return [node.key for node in nodes_of(slices, Role.PREFILL, port)]


@pytest.mark.parametrize(("ready", "listed"), [(True, True), (None, True), (False, False)])
def test_who_is_ready_is_listed(ready: bool | None, listed: bool) -> None:
    """None is "not known", which consumers are to take for ready."""
    assert bool(keys(endpoint_slice("a", endpoint("10.0.0.1", ready=ready)))) is listed
    assert keys(endpoint_slice("a", {"addresses": ["10.0.0.1"]})) == ["p:10.0.0.1:8000"]


@pytest.mark.parametrize(
    ("port", "expected"), [("http", 8000), ("metrics", 9090), ("8000", 8000), ("9090", 9090), ("", 9090)]
)
def test_a_port_is_a_name_a_number_or_the_first(port: str, expected: int) -> None:
    assert keys(endpoint_slice("a", endpoint("10.0.0.1")), port=port) == [f"p:10.0.0.1:{expected}"]


def test_no_such_port() -> None:
    with pytest.raises(ValueError, match="no EndpointSlice has a port 'grpc'"):
        keys(endpoint_slice("a", endpoint("10.0.0.1")), port="grpc")
    with pytest.raises(ValueError, match=r"has a port$"):
        keys({**endpoint_slice("a", endpoint("10.0.0.1")), "ports": None}, port="")
    assert keys(endpoint_slice("a"), port="grpc") == [], "nobody is there, so nobody lacks it"


def test_an_engine_with_addresses_of_two_families_is_one_node() -> None:
    four = endpoint_slice("a", endpoint("10.0.0.1", uid="u1"), endpoint("10.0.0.2", uid="u2"))
    six = endpoint_slice("b", endpoint("fd00::1", uid="u1"), endpoint("fd00::3", uid="u3"), family="IPv6")
    expected = ["p:10.0.0.1:8000", "p:10.0.0.2:8000", "p:[fd00::3]:8000"]
    assert sorted(keys(four, six)) == sorted(keys(six, four)) == expected


def test_an_endpoint_in_two_slices_is_one_node() -> None:
    assert keys(endpoint_slice("a", endpoint("10.0.0.1")), endpoint_slice("b", endpoint("10.0.0.1"))) == [
        "p:10.0.0.1:8000"
    ]


def test_https_and_unknown_members() -> None:
    piece = endpoint_slice("a", endpoint("10.0.0.1", "10.0.0.7"))
    piece |= {"kind": "EndpointSlice", "ports": [{"port": 443, "appProtocol": "kubernetes.io/https"}]}
    (node,) = nodes_of([msgspec.convert(piece, EndpointSlice)], Role.DECODE, "")
    assert (node.key, node.origin) == ("d:10.0.0.1:443", "https://10.0.0.1")
