"""Nodes that settings list one by one."""

import pytest

from router.fleet.discovery.static import Addresses, static_nodes


def test_addresses_of_settings() -> None:
    assert Addresses.of(("http://a", "dns://b:1", "http://c@1")) == Addresses(
        ("http://a", "http://c@1"), ("dns://b:1",)
    )
    nodes = static_nodes(("http://c:1@1",), ("http://d",))
    assert [(node.key, node.rank, node.origin) for node in nodes] == [
        ("p:c:1@1", 1, "http://c:1"),
        ("d:d:80", None, "http://d"),
    ]


def test_what_is_no_address_is_refused() -> None:
    with pytest.raises(ValueError, match="origin"):
        static_nodes(("p:8100",), ())
