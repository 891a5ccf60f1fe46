"""A fleet follows its sources: differences only, and nothing for a source that fails."""

from router.engines.upstream import Upstream
from router.fleet.discovery.reconcile import MAX_NODES, Reconciler
from router.fleet.node import Node, Role, State, node_of
from router.fleet.pool import Fleet
from router.fleet.probe import Probed
from router.telemetry.facts import DiscoveryFailed, Fact, Facts, NodeChanged, NodesListed

A, B, C = (node_of(f"http://127.0.0.1:{port}", Role.PREFILL) for port in (1, 2, 3))


async def good(upstream: Upstream, node: Node) -> Probed:
    return Probed(State.READY)


def fleet() -> tuple[Fleet, Reconciler, list[Fact]]:
    facts, heard = Facts(), list[Fact]()
    facts.subscribe(heard.append)
    made = Fleet((), probe=good, facts=facts)
    return made, Reconciler(made, facts), heard


def keys(of: Fleet) -> set[str]:
    return {node.key for node in of.snapshot.nodes}


def test_what_is_listed_comes_and_what_is_not_any_more_leaves() -> None:
    made, reconciler, heard = fleet()
    reconciler.are("file", [A, B])
    assert keys(made) == {A.key, B.key}
    with made.leg(B.key):
        reconciler.are("file", [A, C])
        leaving = made.snapshot.by_key[B.key]
        assert (leaving.state, leaving.reason) == (State.DRAINING, "file does not list it any more")
    assert keys(made) == {A.key, C.key}
    assert [fact.nodes for fact in heard if isinstance(fact, NodesListed)] == [2, 2]


def test_a_node_stays_as_long_as_one_source_lists_it() -> None:
    made, reconciler, _ = fleet()
    reconciler.are("settings", [A])
    reconciler.are("file", [A, B])
    reconciler.are("file", [])
    assert keys(made) == {A.key}
    reconciler.are("settings", [])
    assert keys(made) == set()


def test_what_an_operator_did_is_not_undone_until_the_source_changes() -> None:
    made, reconciler, _ = fleet()
    reconciler.are("file", [A])
    made.remove(A.key)
    made.add(B)
    reconciler.are("file", [A])
    assert keys(made) == {B.key}
    reconciler.are("file", [])
    reconciler.are("file", [A])
    assert keys(made) == {A.key, B.key}


def test_weights_and_limits_change_in_place() -> None:
    made, reconciler, _ = fleet()
    reconciler.are("file", [A])
    with made.leg(A.key):
        reconciler.are("file", [node_of(A.origin, Role.PREFILL, weight=2.0, limit=3)])
        (node,) = made.snapshot.nodes
        assert (node.weight, node.limit, node.in_flight) == (2.0, 3, 1)


def test_a_source_that_fails_changes_nothing_and_says_so_once() -> None:
    made, reconciler, heard = fleet()
    listing = reconciler.listing("dns")
    listing.are([A])
    for why in ("no answer", "no answer", "refused", "refused"):
        listing.failed(why)
    assert keys(made) == {A.key}
    assert [fact.error for fact in heard if isinstance(fact, DiscoveryFailed)] == ["no answer", "refused"]
    listing.are([A])
    listing.failed("refused")
    assert [type(fact) for fact in heard[-2:]] == [NodesListed, DiscoveryFailed], "it could be read again"


def test_a_list_without_end_is_a_mistake() -> None:
    made, reconciler, heard = fleet()
    reconciler.are("dns", [A])
    many = [node_of(f"http://h{n}:1", Role.DECODE) for n in range(MAX_NODES + 1)]
    reconciler.are("dns", many)
    assert keys(made) == {A.key}
    assert isinstance(heard[-1], DiscoveryFailed)


def test_what_an_operator_drained_stays_drained_when_it_is_listed_again() -> None:
    made, reconciler, heard = fleet()
    reconciler.are("file", [A, B])
    made.drain(A.key, "repairs")
    made.drain(B.key, "repairs")
    with made.leg(B.key):
        reconciler.are("file", [])
        assert keys(made) == {B.key}, "one has gone, and one is still leaving"
        reconciler.are("file", [A, B])
    for key in (A.key, B.key):
        node = made.snapshot.by_key[key]
        assert (node.state, node.reason) == (State.DRAINING, "repairs")
    assert not any(isinstance(fact, NodeChanged) and fact.state == State.READY for fact in heard)
    made.undrain(A.key)
    assert made.snapshot.by_key[A.key].state is State.STARTING
    reconciler.are("file", [B])
    reconciler.are("file", [A, B])
    assert made.snapshot.by_key[A.key].state is State.STARTING
