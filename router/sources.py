"""Where nodes come from, as settings say: what is known at the start, and the sources that are asked."""

from collections.abc import Callable, Sequence

from router.engines.upstream import Limits, Upstream
from router.fleet.breaker import Rules
from router.fleet.discovery.dns import DnsName
from router.fleet.discovery.file import NodesFile
from router.fleet.discovery.reconcile import Source
from router.fleet.discovery.static import Addresses, static_nodes
from router.fleet.node import Node, Role
from router.fleet.pool import Fleet, Probe
from router.fleet.probe import PROBE_LIMITS, Probed, Prober
from router.settings import Settings
from router.telemetry.facts import Facts

SETTINGS_SOURCE = "settings"
"""The name of the source of nodes that settings list one by one."""


def probe_of(settings: Settings, key: Callable[[], str | None]) -> Probe:
    """Probes show the engines' key as it is now: with one set, vLLM answers nothing below /v1 without it."""
    limit_s = settings.probe_timeout_s
    limits = Limits(min(limit_s, PROBE_LIMITS.connect_s), limit_s, limit_s, PROBE_LIMITS.max_answer_bytes)

    async def probe(upstream: Upstream, node: Node) -> Probed:
        held = key()
        headers = (("authorization", f"Bearer {held}"),) if held is not None else ()
        # Of two requests, one after the other, only the first decides.
        return await Prober(limits=limits, probe_s=2 * limit_s + 1, headers=headers)(upstream, node)

    return probe


def fleet_of(
    settings: Settings, *, facts: Facts, key: Callable[[], str | None], now: Callable[[], float]
) -> Fleet:
    """A fleet with no nodes yet. ``now`` is the ledger's clock."""
    return Fleet(
        (),
        probe=probe_of(settings, key),
        facts=facts,
        rules=Rules(settings.breaker_failures, settings.breaker_open_s),
        linger_s=settings.linger_s,
        now=now,
    )


def settings_nodes(settings: Settings) -> tuple[Node, ...]:
    """The nodes that settings list one by one."""
    return static_nodes(Addresses.of(settings.prefill).fixed, Addresses.of(settings.decode).fixed)


def sources_of(settings: Settings) -> tuple[Source, ...]:
    """Everybody who is to be asked for nodes."""
    sources: list[Source] = []
    if settings.nodes_file is not None:
        sources.append(NodesFile(settings.nodes_file))
    for role, addresses in ((Role.PREFILL, settings.prefill), (Role.DECODE, settings.decode)):
        names = Addresses.of(addresses).names
        sources += [DnsName(name, role, interval_s=settings.dns_interval_s) for name in names]
    selectors = ((Role.PREFILL, settings.kubernetes_prefill), (Role.DECODE, settings.kubernetes_decode))
    return (*sources, *_in_kubernetes(settings, [(role, chosen) for role, chosen in selectors if chosen]))


def _in_kubernetes(settings: Settings, selectors: Sequence[tuple[Role, str]]) -> list[Source]:
    if not selectors:
        return []
    # Its client is not loaded where nobody asks for it: start-up stays short.
    from router.fleet.discovery.kubernetes import Cluster, EndpointSlices  # noqa: PLC0415

    cluster = Cluster(settings.kubernetes_server, settings.kubernetes_account, settings.kubernetes_namespace)
    return [EndpointSlices(cluster, role, chosen, settings.kubernetes_port) for role, chosen in selectors]
