from dataclasses import replace

from router.check.observed import Assumed
from router.check.quick import PairMode, quick
from router.fleet.node import Role, State
from tests.check.values import node


def test_pairs_have_a_mode_and_a_reason() -> None:
    plugin = node(Role.PREFILL, "10.0.0.3", verifies=True)
    stamps = node(Role.DECODE, "10.0.0.2", stamps=True)
    nodes = (node(Role.PREFILL, "10.0.0.1"), plugin, stamps)
    found = quick(nodes, mode="auto", assumed=Assumed())
    assert [pair.verify for pair in found.pairs] == ["router", "engine"]
    assert "does not verify" in found.pairs[0].reason
    assert not found.hints
    assert not found.findings
    cooling = quick(nodes, mode="auto", assumed=Assumed(), cooling={(plugin.key, stamps.key)})
    assert cooling.pairs[1] == PairMode(plugin.key, stamps.key, "off", cooling.pairs[1].reason)


def test_what_probes_show_is_found_without_a_turn() -> None:
    nodes = (
        node(Role.PREFILL, "10.0.0.1", version="0.25.0"),
        node(Role.DECODE, "10.0.0.2", block_size=32, stream_handle=False),
        replace(node(Role.DECODE, "10.0.0.3"), state=State.STARTING, reason="connection refused"),
    )
    found = quick(nodes, mode="auto", assumed=Assumed())
    assert {each.check for each in found.findings} == {
        "version",
        "versions_equal",
        "block_sizes",
        "reachable",
    }
    assert len(found.hints) == 2
    assert any("streamed answers carry no handle" in hint for hint in found.hints)
