"""What the turns through a pair tell of its engines: connector, handles, streams, addresses. Pure.

A rule returns None where what it judges was not reached.
"""

import ipaddress
import re
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import urlsplit

from router.check.findings import Judged, error, ok, skipped, warning
from router.check.observed import Assumed, HandlePlace, LegSeen, PairSeen, ParamsSeen

_UUID = re.compile(r"[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}", re.IGNORECASE)
_CLOCK_SLACK_S = 2.0
"""How much later than its request, or earlier than its answer, an engine may have stamped a handle."""

BOTH_WAYS: Final = (
    '--kv-transfer-config \'{"kv_connector":"NixlConnector","kv_role":"kv_both",'
    '"kv_connector_extra_config":{"bidirectional_kv_xfer":true}}\''
)


def connector(seen: PairSeen, _: Assumed) -> Judged | None:
    if seen.first is None:
        return None
    prefill, decode = seen.first.prefill, seen.first.decode
    if not prefill.is_good:
        return error(f"{seen.prefill.key} {prefill.fault}", failed_advice(prefill))
    params = prefill.params
    if params is None or not params.read.do_remote_prefill:
        return error(
            f"{seen.prefill.key} returns no kv_transfer_params",
            f"start it with {BOTH_WAYS}; without a connector D computes every prompt itself",
        )
    if decode is None or not decode.is_good:
        told = decode.fault if decode is not None else "was not asked"
        return error(
            f"{seen.decode.key}, given P's params, {told}",
            "D cannot read P's KV: look at D's log for NIXL, and at the rows side_channel and versions_equal",
        )
    reused = params.read.reused_tokens
    return ok(
        "P's params came, and D decoded with them" + (", reuse is counted" if reused is not None else "")
    )


def failed_advice(leg: LegSeen) -> str:
    if leg.timed_out:
        return "the engine is stuck or slow: look at its log; --timeout-s gives a slow one more time"
    if leg.status in (401, 403):
        return "the engine wants a key: name the file that holds it with --api-key-file"
    if leg.status is None:
        return "the connection failed: look whether the engine still runs"
    return "look at the engine's log"


def templates(seen: PairSeen, _: Assumed) -> Judged | None:
    if seen.first is None or seen.first.decode is None:
        return None
    legs = (seen.first.prefill, seen.first.decode)
    ours, theirs = (leg.answer.prompt_token_ids if leg.answer is not None else None for leg in legs)
    if not ours or not theirs:
        return skipped("return_token_ids brought no prompt token ids")
    if ours == theirs:
        return ok(f"both nodes read the same {len(ours)} tokens")
    at = next(
        (at for at, (one, other) in enumerate(zip(ours, theirs, strict=False)) if one != other),
        min(len(ours), len(theirs)),
    )
    return error(
        f"{len(ours)} tokens on P and {len(theirs)} on D, different from token {at} on",
        "start both nodes with the same model revision, tokenizer and --chat-template: now D answers on"
        " another prompt's KV, also without any reuse",
    )


def bidirectional_decode(seen: PairSeen, _: Assumed) -> Judged | None:
    if seen.first is None or seen.first.decode is None or not seen.first.decode.is_good:
        return None
    handle = seen.handle
    if handle is None:
        return error(
            f"{seen.decode.key} returns no handle",
            f"start it with {BOTH_WAYS}; without handles nothing is reused",
        )
    if not handle.read.is_handle:
        return error("D's params are no handle: address or blocks are missing", "look at D's log for NIXL")
    return ok(f"D returns a handle of {handle.read.tokens} tokens")


def push_mode(seen: PairSeen, _: Assumed) -> Judged | None:
    told = _all_params(seen)
    if not told:
        return None
    pushing = [key for key, params in told if params.read.push_mode]
    if pushing:
        return error(
            f"{' and '.join(dict.fromkeys(pushing))}: the connector pushes",
            "start the engine with the pulling NixlConnector; handles of a pushing one cannot be reused",
        )
    return ok("the connector pulls")


def side_channel(seen: PairSeen, _: Assumed) -> Judged | None:
    told = _all_params(seen)
    if not told:
        return None
    hosts = {key: params.host for key, params in told}
    apart = not _one_machine(seen.prefill.origin, seen.decode.origin)
    wrong = {key: host for key, host in hosts.items() if not host or (apart and _is_loopback(host))}
    if wrong:
        return error(
            ", ".join(f"{key} names {host or 'no address'}" for key, host in wrong.items()),
            "set VLLM_NIXL_SIDE_CHANNEL_HOST there to an address that the other node reaches; the router's"
            " --rewrite-remote-host helps only towards nodes that read from D",
        )
    return ok(", ".join(f"{key} names {host}" for key, host in hosts.items()))


def engine_id(seen: PairSeen, _: Assumed) -> Judged | None:
    told = {key: params.read.engine_id for key, params in _all_params(seen)}
    if not told:
        return None
    ids = list(told.values())
    if seen.prefill.origin != seen.decode.origin and len(ids) > 1 and base_id(ids[0]) == base_id(ids[1]):
        return error(
            f"both nodes call themselves {ids[0]}",
            "give each engine its own engine_id, or none: one node's blocks are read as the other's",
        )
    fixed = [f"{key} calls itself {name or 'nothing'}" for key, name in told.items() if not is_fresh(name)]
    if fixed:
        return warning(
            ", ".join(fixed),
            "set no engine_id in --kv-transfer-config: a fixed one hides restarts, and old block ids are then"
            " read from a new process",
        )
    return ok("fresh at each start (uuids)")


def base_id(name: str) -> str:
    """An engine id without its data-parallel rank (``_dp<rank>``)."""
    return name.partition("_dp")[0]


def is_fresh(name: str) -> bool:
    """Whether an engine id looks like the uuid that vLLM draws at each start."""
    return _UUID.fullmatch(base_id(name)) is not None


def ttl(seen: PairSeen, assumed: Assumed) -> Judged | None:
    handle = seen.handle
    if handle is None:
        return None
    ours = f"{assumed.ttl_s:g} s"
    if handle.ttl_s is not None:
        told = f"D keeps a turn for {handle.ttl_s:g} s"
        if assumed.ttl_s > handle.ttl_s:
            return error(
                f"{told}, the router would count on {ours}",
                f"set decode_ttl_s to {handle.ttl_s:g}, or raise decoder_kv_blocks_ttl on D; now handles are"
                " used that D has freed, and those prefill legs fail",
            )
        return ok(f"{told}, the router counts on {ours}")
    if handle.expiry_s is None:
        seen_text = "handles do not say when they end (vLLM before 0.26)"
        if assumed.ttl_is_set:
            return warning(
                f"{seen_text}; {ours}, as you say",
                "make sure that decoder_kv_blocks_ttl on D is at least that: freed blocks would be read",
            )
        return warning(seen_text, "set decode_ttl_s to D's decoder_kv_blocks_ttl: else nothing is reused")
    if not _steady(seen):
        return warning(
            "two handles do not end as far apart as they were made",
            "D's clock or its decoder_kv_blocks_ttl changes; keep the router's deadline_margin_s large",
        )
    how = "as --ttl says" if assumed.ttl_is_set else "vLLM's default"
    return ok(
        f"handles say when they end, on D's own clock only; the router counts on {ours}, {how}",
        "" if assumed.ttl_is_set else "if D has another decoder_kv_blocks_ttl, set decode_ttl_s to it",
    )


def _steady(seen: PairSeen) -> bool:
    """Whether the ends of two handles are as far apart as the turns that left them."""
    first, last = seen.first, seen.reference
    if first is None or last is None or first.decode is None or last.decode is None:
        return True
    one, other = first.decode.params, last.decode.params
    if one is None or other is None or one.read.engine_id != other.read.engine_id:
        return True
    if one.expiry_s is None or other.expiry_s is None:
        return True
    apart_s = other.expiry_s - one.expiry_s
    least_s, most_s = last.decode.began_s - first.decode.ended_s, last.decode.ended_s - first.decode.began_s
    return least_s - _CLOCK_SLACK_S <= apart_s <= most_s + _CLOCK_SLACK_S


def lease(seen: PairSeen, assumed: Assumed) -> Judged | None:
    turns = [seen.first, seen.second.turn if seen.second else None, seen.reference]
    waits = [
        turn.decode.ended_s - turn.prefill.ended_s
        for turn in turns
        if turn is not None and turn.decode is not None and turn.decode.is_good
    ]
    if not waits:
        return None
    longest_s = max(waits)
    text = f"{longest_s:.2f} s from prefill to the end of its decode, of a {assumed.lease_s:g} s lease"
    if longest_s <= assumed.lease_s / 2:
        return ok(text)
    return warning(
        text,
        "P frees a prompt that D has not asked for within kv_lease_duration: raise that on P (and"
        " prefill_lease_s of the router), or find out why D is slow",
    )


def stream_handle(seen: PairSeen, _: Assumed) -> Judged | None:
    if seen.handle is None or seen.streamed is None:
        return None
    decode = seen.streamed.turn.decode
    if decode is None or not decode.is_good:
        leg = decode or seen.streamed.turn.prefill
        return error(f"the streamed turn failed: {leg.fault or 'P gave no params'}", failed_advice(leg))
    if seen.streamed.place is HandlePlace.NONE:
        return error(
            "none: streamed turns are pinned on D for its whole TTL, and their handles seen by nobody",
            "upgrade D to vLLM 0.33, or install the plugin (boomerang-vllm) on it; else turn"
            " bidirectional_kv_xfer off",
        )
    where = {HandlePlace.NATIVE: "the engine's own", HandlePlace.PLUGIN: "from the plugin"}
    return ok(f"{seen.streamed.place}: {where[seen.streamed.place]}")


def stamping(seen: PairSeen, _: Assumed) -> Judged | None:
    if seen.handle is None:
        return None
    if seen.handle.read.stamped:
        return ok("D stamps its handles")
    if _verifies(seen):
        return warning("P verifies, but D does not stamp", "install the plugin (boomerang-vllm) on D, too")
    return ok("no plugin on D: the router keeps the digests")


def verification(seen: PairSeen, _: Assumed) -> Judged | None:
    if seen.handle is None:
        return None
    if seen.by_engine:
        return ok("engine: P compares the stamp before it reads")
    if seen.handle.read.stamped:
        return warning(
            "router: D stamps, but P does not verify", "install the plugin (boomerang-vllm) on P, too"
        )
    return ok("router: Boomerang compares the tokens")


def prompt_tokens(seen: PairSeen, _: Assumed) -> Judged | None:
    route = seen.route
    if route is None:
        return None
    needed = not seen.by_engine
    if not route.name:
        text = "P tells no prompt's tokens: /render and /tokenize do not answer"
        advice = (
            "let the router reach /tokenize on P; in router mode nothing is reused for messages without it"
        )
        return error(text, advice) if needed else ok(f"{text}; not needed, as P verifies")
    if route.agrees is False:
        text = f"/{route.name} gives other tokens than P then reads"
        advice = (
            "the router would find that out at the first turn and reuse nothing: look at P's template options"
        )
        return error(text, advice) if needed else warning(text, "router mode would not work as a fallback")
    if route.name == "tokenize":
        return ok(
            "/tokenize",
            "--enable-scale-out on P opens /render, which also sees documents, truncation and more",
        )
    return ok(f"/{route.name}")


def _verifies(seen: PairSeen) -> bool:
    params = seen.first.prefill.params if seen.first is not None else None
    return params is not None and params.read.verified_tokens is not None


def _all_params(seen: PairSeen) -> list[tuple[str, ParamsSeen]]:
    """P's and D's params of the first turn, by the node's key."""
    if seen.first is None:
        return []
    named = ((seen.prefill.key, seen.first.prefill.params), (seen.decode.key, seen.handle))
    return [(key, params) for key, params in named if params is not None]


def _one_machine(one: str, other: str) -> bool:
    hosts = [urlsplit(origin).hostname or "" for origin in (one, other)]
    return hosts[0] == hosts[1] or all(_is_loopback(host) for host in hosts)


def _is_loopback(host: str) -> bool:
    """Whether an address leads nowhere but to the machine itself; also the unspecified one."""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


TURN_RULES: Final[Mapping[str, Callable[[PairSeen, Assumed], Judged | None]]] = {
    "connector": connector,
    "templates": templates,
    "side_channel": side_channel,
    "engine_id": engine_id,
    "push_mode": push_mode,
    "bidirectional_decode": bidirectional_decode,
    "ttl": ttl,
    "lease": lease,
    "stream_handle": stream_handle,
    "stamping": stamping,
    "verification": verification,
    "prompt_tokens": prompt_tokens,
}
