"""What probes alone tell of a node, and of a pair of nodes. Pure."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from router.check.findings import Finding, Judged, error, finding, ok, skipped, warning
from router.check.observed import Assumed
from router.fleet.node import Engine, Node, State

_VERSION = re.compile(r"(\d+)\.(\d+)")

EXPIRY_SINCE: Final = (0, 26)
"""vLLM from which handles name their own end (``remote_blocks_expiry_time``)."""
STREAMS_SINCE: Final = (0, 33)
"""vLLM from which streamed answers carry the handle."""
OLDEST_READ: Final = (0, 21)
"""The oldest vLLM whose sources this project has read."""


def version_of(engine: Engine) -> tuple[int, int] | None:
    """Major and minor; None where it is not known, or is a build from no release."""
    found = _VERSION.match(engine.version or "")
    version = (int(found[1]), int(found[2])) if found else None
    return version if version != (0, 0) else None


def reachable(node: Node, _: Assumed) -> Judged:
    if node.state is State.READY:
        return ok(node.origin)
    told = node.reason if node.reason.startswith(node.origin) else f"{node.origin}: {node.reason}"
    return error(
        told,
        "start the engine, or correct the address; a firewall or a wrong port looks the same",
    )


def version(node: Node, assumed: Assumed) -> Judged:
    told, known = node.engine.version, version_of(node.engine)
    if known is None:
        return warning(
            told or "not told by /version",
            "what this engine can do is not known from its version; the rows below show what it did",
        )
    if known < OLDEST_READ:
        return warning(f"vLLM {told}", "older than any version this project knows; upgrade to 0.33")
    if known < EXPIRY_SINCE:
        advice = "upgrade to 0.26 or newer; until then set decode_ttl_s, without which nothing is reused"
        seen = f"vLLM {told}: its handles do not say when they end, and expired ones are read"
        return ok(seen) if assumed.ttl_is_set else warning(seen, advice)
    if known < STREAMS_SINCE:
        return ok(f"vLLM {told}: streams carry no handle without the plugin")
    return ok(f"vLLM {told}: streams carry the handle")


def block_size(node: Node, _: Assumed) -> Judged:
    size = node.engine.block_size
    if size is not None:
        cache = {True: ", prefix cache on", False: ", prefix cache off", None: ""}[node.engine.prefix_cache]
        return ok(f"{size} tokens{cache}")
    return warning(
        "not told by /metrics",
        "the engine's /metrics has to answer, here and to the router (no --disable-log-stats); without"
        " the block size a handle is used whole or not at all",
    )


NODE_RULES: Final[Mapping[str, Callable[[Node, Assumed], Judged]]] = {
    "reachable": reachable,
    "version": version,
    "block_size": block_size,
}


def models(prefill: Node, decode: Node) -> Judged:
    ours, theirs = prefill.engine.models, decode.engine.models
    if not ours or not theirs:
        silent = " and ".join(node.key for node in (prefill, decode) if not node.engine.models)
        return error(
            f"{silent} lists no models",
            "/v1/models has to answer within --timeout-s; an engine with --api-key needs --api-key-file here",
        )
    if not set(ours) & set(theirs):
        return error(
            f"{_listed(ours)} and {_listed(theirs)}",
            "serve the same model, under the same --served-model-name, on both nodes",
        )
    alone = sorted(set(ours) ^ set(theirs))
    if alone:
        return warning(
            f"only one of the nodes serves {_listed(alone)}",
            "load it on the other node too; requests for it find no pair",
        )
    return ok(_listed(ours))


def versions_equal(prefill: Node, decode: Node) -> Judged:
    ours, theirs = prefill.engine.version, decode.engine.version
    if ours is None or theirs is None:
        return skipped("a version is not known")
    if ours == theirs:
        return ok(ours)
    return warning(
        f"{ours} and {theirs}",
        "run one version on both nodes: by default NIXL's handshake refuses a peer of another vLLM",
    )


def block_sizes(prefill: Node, decode: Node) -> Judged:
    ours, theirs = prefill.engine.block_size, decode.engine.block_size
    if ours is None or theirs is None:
        return skipped("a block size is not known")
    if ours == theirs:
        return ok(f"{ours} tokens")
    seen, advice = f"{ours} and {theirs} tokens", "start both nodes with the same --block-size"
    if prefill.engine.prefix_cache is False:
        return warning(seen, f"{advice}; until then a handle is used whole or not at all")
    return error(seen, f"{advice}; until then nothing is reused between them")


PROBED_PAIR_RULES: Final[Mapping[str, Callable[[Node, Node], Judged]]] = {
    "models": models,
    "versions_equal": versions_equal,
    "block_sizes": block_sizes,
}


def judge_node(node: Node, assumed: Assumed) -> list[Finding]:
    """Every rule about one node; of one that cannot be reached only that."""
    found = []
    for name, rule in NODE_RULES.items():
        found.append(finding(name, node.key, rule(node, assumed)))
        if node.state is not State.READY:
            break
    return found


def judge_probed_pair(prefill: Node, decode: Node, subject: str) -> list[Finding]:
    """What probes tell of a pair that can be reached."""
    return [finding(name, subject, rule(prefill, decode)) for name, rule in PROBED_PAIR_RULES.items()]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
