"""Which way a turn goes: each way that the rules leave is estimated, and the least is taken. Pure.

A split turn's two halves do not depend on each other: how long P takes does not change with D, nor the other
way round, and whether a handle can be read depends on P and on the D that holds it, not on the D that
decodes. So the best pair is the best P and the best D. What falls out of that: the P that computed the last
turn and the D that holds the conversation are preferred, by as much as they save; an overloaded one is left,
and its conversation moves.

Two rules stand above the estimates. A handle that can be read is left for computing only where both were
measured and the gain is worth more than the handle (``LEAVE_PRICE_S``). And equals go by preference: the
nodes of the last turn, then the fewest open legs, then in turns.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from router.fleet.node import Node
from router.ledger.store import Absence, Handle, Relation, Trace
from router.turn.estimate import (
    DecodePart,
    PrefillPart,
    Sizes,
    measure,
    on_decode,
    on_prefill,
    staying,
)
from router.turn.plan import (
    Estimate,
    Kind,
    Plan,
    Reason,
    Situation,
    Unfit,
    Verify,
    obstacle,
    restarted,
    verifier,
)
from router.turn.policy import Policy, pick, turn_of
from router.turn.request import Endpoint

LEAVE_PRICE_S: Final = 0.02
"""What leaving a readable handle costs besides: estimates err, and the handle is gone for good."""
STAY_PRICE_S: Final = 0.005
"""The same for a turn that renews no handle; less, as the old one is kept."""
STAY_LEFT_S: Final = 60.0
"""A handle with less life than this counts for nothing in the turn after the one that stays."""
_MS: Final = 1e3
_EQUAL_MS: Final = 2
_EQUAL_PERCENT: Final = 3
"""Totals, in whole milliseconds, that differ by less are equal: no estimate is better than that."""


class _Way(NamedTuple):
    """One node's part of a turn, and where it stands among the others: ``rank`` is compared."""

    rank: tuple[int, int, int, int]
    node: Node
    kind: Kind
    reason: str
    verify: Verify
    part: PrefillPart | DecodePart
    why_not: str


@dataclass(frozen=True, slots=True)
class Alternative:
    """A way that a turn could go. ``why_not`` is empty where it may be taken."""

    kind: Kind
    reason: str
    prefill: str | None
    decode: str
    estimate_s: float
    price_s: float
    """What it costs others or later turns, in seconds of a first token."""
    why_not: str = ""


def choose(situation: Situation) -> Plan | None:
    """The plan of a turn; None where no node or no full pair is ready."""
    sizes = sizes_of(situation)
    if situation.request.unsplit is not None:
        decode = _best(_decodes(situation, sizes))
        return None if decode is None else Plan(Kind.UNSPLIT, situation.request.unsplit, decode.node, None)
    decode, prefill = _best(_decodes(situation, sizes)), _best(_prefills(situation, sizes))
    # Where staying is off, it need not be estimated; ``weigh`` shows it all the same.
    stay = _best(_stays(situation, sizes)) if situation.stay_max_tokens > 0 else None
    if decode is None or prefill is None:
        return None
    if stay is not None and stay.rank[0] < decode.rank[0] + prefill.rank[0]:
        return _stay_plan(stay, sizes)
    return _split_plan(situation, sizes, prefill, decode)


def weigh(situation: Situation) -> tuple[Alternative, ...]:
    """All ways of a turn: the one that is taken, then those that could be, then those that could not.

    Each P is shown with the D that would be taken, each D with the P that would be.
    """
    sizes = sizes_of(situation)
    decodes = _decodes(situation, sizes)
    decode = _best(decodes)
    if situation.request.unsplit is not None:
        kind, reason = Kind.UNSPLIT, situation.request.unsplit
        return _sorted(
            [(way.rank[0], _alternative(kind, reason, None, way)) for way in decodes],
            first=None if decode is None else _alternative(kind, reason, None, decode),
        )
    prefills, stays = _prefills(situation, sizes), _stays(situation, sizes)
    prefill, stay = _best(prefills), _best(stays)
    ways = [(way.rank[0], _alternative(Kind.STAY, way.reason, None, way)) for way in stays]
    if decode is None or prefill is None:
        return _sorted(ways, first=None)
    total = prefill.rank[0] + decode.rank[0]
    split = _alternative(prefill.kind, prefill.reason, prefill, decode)
    first = ways[0][1] if stay is not None and stay.rank[0] < total else split
    ways += [
        (way.rank[0] + decode.rank[0], _alternative(way.kind, way.reason, way, decode)) for way in prefills
    ]
    for way in decodes:
        if way is not decode:
            alternative = _alternative(prefill.kind, prefill.reason, prefill, way)
            ways.append((prefill.rank[0] + way.rank[0], alternative))
    return _sorted(ways, first=first)


def sizes_of(situation: Situation) -> Sizes:
    """The turn in tokens, as far as that can be told before anybody has counted."""
    return measure(
        situation.found,
        situation.sizes_bytes,
        by_message=situation.request.endpoint is Endpoint.CHAT,
        bytes_per_token=situation.loads.bytes_per_token,
    )


def _best(ways: Sequence[_Way]) -> _Way | None:
    """The least of those that may be taken; of such as are as good as that, the one to be preferred."""
    if len(ways) == 1:
        return ways[0] if not ways[0].why_not else None
    usable = [way for way in ways if not way.why_not]
    if len(usable) <= 1:
        return usable[0] if usable else None
    least = min([way.rank[0] for way in usable])
    limit = least + max(_EQUAL_MS, least * _EQUAL_PERCENT // 100)
    return min([way for way in usable if way.rank[0] <= limit], key=_preference)


def _preference(way: _Way) -> tuple[int, int, int, int]:
    total, known, legs, turn = way.rank
    return (known, legs, turn, total)


def _usable(nodes: Sequence[Node], situation: Situation) -> Sequence[Node]:
    exclude = situation.exclude
    return [node for node in nodes if node.key not in exclude] if exclude else nodes


def _last_decode(situation: Situation) -> str | None:
    found = situation.found
    if found is None:
        return None
    return found.handle.decode if found.handle else found.trace.decode


def _only(situation: Situation, nodes: Sequence[Node], last: str | None) -> Node | None:
    """The node that the policy picks; None where all are weighed."""
    if situation.policy == Policy.PLANNED:
        return None
    return pick(situation.policy, nodes, last=last, turn=situation.turn)


def _first(situation: Situation, nodes: Sequence[Node]) -> int:
    return turn_of(nodes, situation.turn) if nodes else 0


def _keeps(node: Node, trace: Trace) -> bool:
    """Whether a node may still have in its own cache what it had when the trace was made."""
    renewed_at_s = node.renewed_at_s
    since = renewed_at_s is None or renewed_at_s < trace.computed_at_s
    return node.engine.prefix_cache is True and since


def _equals(node: Node, at: int, first: int, count: int) -> tuple[int, int]:
    """Where a node stands among equals: the fewest open legs for its weight, then whose turn it is."""
    if count == 1:
        return (0, 0)
    return (round(100 * node.in_flight / node.weight), (at - first) % count)


def _decodes(situation: Situation, sizes: Sizes) -> list[_Way]:
    found, loads = situation.found, situation.loads
    last, answered_by = _last_decode(situation), found.trace.decode if found is not None else None
    usable = _usable(situation.decodes, situation)
    only, first = _only(situation, usable, last), _first(situation, usable)
    ways = []
    for at, node in enumerate(usable):
        holds = found is not None and node.key == answered_by and _keeps(node, found.trace)
        load, held = loads.decode(node), sizes.decode_held if holds else 0.0
        if situation.request.unsplit is not None:
            part = staying(load, node, prompt=sizes.prompt, held=held, kept_handle=None)
        else:
            part = on_decode(load, node, prompt=sizes.prompt, held=held)
        rank = (
            int((part.seconds + part.price_s) * _MS),
            0 if node.key == last else 1,
            *_equals(node, at, first, len(usable)),
        )
        why_not = Unfit.POLICY if only is not None and node is not only else ""
        ways.append(_Way(rank, node, Kind.COLD, "", Verify.OFF, part, why_not))
    return ways


def _prefills(situation: Situation, sizes: Sizes) -> list[_Way]:
    """Each P with what it can do: compute, and read a handle, or why not."""
    found, loads = situation.found, situation.loads
    handle = found.handle if found is not None else None
    computed_by = found.trace.prefill if found is not None else None
    closed = _closed(situation)
    holder = situation.holder(handle) if handle is not None else None
    usable = _usable(situation.prefills, situation)
    only, first = _only(situation, usable, computed_by), _first(situation, usable)
    ways: list[_Way] = []
    reads = False
    for at, node in enumerate(usable):
        load = loads.prefill(node)
        warm = found is not None and node.key == computed_by and _keeps(node, found.trace)
        held = sizes.prefill_held if warm else 0.0
        order = (0 if node.key == computed_by else 1, *_equals(node, at, first, len(usable)))
        why_not: str = Unfit.POLICY if only is not None and node is not only else ""
        reason, verify = (closed, None) if closed is not None else _reads(situation, node, holder)
        part = on_prefill(load, prompt=sizes.prompt, held=held, readable=0.0, threshold=1.0, verify=None)
        extra_s = 0.0
        if reason is None:
            extra_s = LEAVE_PRICE_S
            cold_not = why_not or (Unfit.POLICY if only is not None else "")
            cold_not = cold_not or ("" if load.is_measured else Unfit.UNMEASURED)
        else:
            cold_not = why_not
        total = int((part.seconds + part.price_s + extra_s) * _MS)
        ways.append(
            _Way((total, *order), node, Kind.COLD, reason or Reason.CHEAPER, Verify.OFF, part, cold_not)
        )
        if reason is not None or verify is None or found is None:
            continue
        reads = reads or not why_not
        part = on_prefill(
            load,
            prompt=sizes.prompt,
            held=held,
            readable=sizes.readable,
            threshold=situation.threshold_tokens,
            verify=loads.verify if verify is Verify.ROUTER else None,
        )
        total = int((part.seconds + part.price_s) * _MS)
        kind = Kind.LOCAL if warm else Kind.PULL
        ways.append(_Way((total, *order), node, kind, found.relation, verify, part, why_not))
    # Where every P can read it, each of them has two ways.
    some_cannot = len(ways) != 2 * len(usable)
    return [_priced(way) for way in ways] if reads and some_cannot and only is None else ways


def _reads(situation: Situation, node: Node, holder: Node | None) -> tuple[str, None] | tuple[None, Verify]:
    """Why P cannot read the handle that was found, or who proves it."""
    found = situation.found
    if found is None or found.handle is None:
        return Absence.NO_HANDLE, None
    reason = obstacle(situation, found, found.handle, node, holder)
    if reason is not None:
        return reason, None
    verify = verifier(situation, found, found.handle, node)
    return (Reason.UNVERIFIABLE, None) if verify is None else (None, verify)


def _priced(way: _Way) -> _Way:
    """Going to a P that cannot read the handle, while another can, leaves it as well."""
    if way.kind is not Kind.COLD or way.reason == Reason.CHEAPER:
        return way
    total, *order = way.rank
    rank = (total + int(LEAVE_PRICE_S * _MS), order[0], order[1], order[2])
    return way._replace(rank=rank)


def _closed(situation: Situation) -> str | None:
    """Why no P reads anything in this turn, as far as that does not depend on P."""
    found = situation.found
    if situation.mode == Verify.OFF:
        return Reason.VERIFY_OFF
    if situation.cold_reason or found is None:
        return situation.cold_reason or Reason.FIRST_TURN
    if found.handle is None:
        return found.absence or Absence.NO_HANDLE
    return None


def _stays(situation: Situation, sizes: Sizes) -> list[_Way]:
    """The D that answered the last turn, if the conversation may stay there."""
    found = situation.found
    if found is None or situation.request.unsplit is not None or not found.trace.decode:
        return []
    node = next((node for node in situation.decodes if node.key == found.trace.decode), None)
    if node is None:
        return []
    load = situation.loads.decode(node)
    part = staying(
        load,
        node,
        prompt=sizes.prompt,
        held=sizes.decode_held,
        kept_handle=None if leaves_handle(node) else _kept_tokens(situation, sizes, found.handle),
    )
    rank = (int((part.seconds + part.price_s + STAY_PRICE_S) * _MS), 9, node.in_flight, 0)
    why_not = _why_not_stay(situation, sizes, node)
    return [_Way(rank, node, Kind.STAY, found.relation, Verify.OFF, part, why_not)]


def leaves_handle(node: Node) -> bool:
    """Whether a turn that stays on this D is given a handle: its plugin does, a stock engine does not."""
    return node.engine.stamps is True


def _kept_tokens(situation: Situation, sizes: Sizes, handle: Handle | None) -> float:
    """How much of the prompt the turn after this one would find elsewhere than on D."""
    read = held = 0.0
    if handle is not None and handle.deadline_s - situation.now_s > STAY_LEFT_S:
        read = sizes.readable
    found = situation.found
    if found is not None and any(
        node.key == found.trace.prefill and _keeps(node, found.trace) for node in situation.prefills
    ):
        held = sizes.prefill_held
    return max(read, held)


def _why_not_stay(situation: Situation, sizes: Sizes, node: Node) -> str:
    found = situation.found
    if situation.policy != Policy.PLANNED:
        return Unfit.POLICY
    if situation.stay_max_tokens <= 0:
        return Unfit.OFF
    if situation.mode == Verify.OFF or situation.cold_reason or found is None:
        return situation.cold_reason or Reason.VERIFY_OFF
    if situation.mistrusted:
        return Reason.MODEL_MISTRUSTED
    if node.key in situation.exclude:
        return Unfit.FAILED
    if situation.request.endpoint is not Endpoint.CHAT:
        return Unfit.ENDPOINT
    if not _keeps(node, found.trace):
        return Unfit.NO_PREFIX_CACHE
    if found.handle is not None and found.handle.decode == node.key and restarted(found.handle, node):
        return Reason.ENGINE_RESTARTED
    if situation.media_depth > found.depth:
        return Reason.MEDIA
    if found.relation is Relation.FORK and not leaves_handle(node):
        return Unfit.FORK
    return Unfit.LONG_APPEND if sizes.append > situation.stay_max_tokens else ""


def _split_plan(situation: Situation, sizes: Sizes, prefill: _Way, decode: _Way) -> Plan:
    first, second = prefill.part, decode.part
    assert isinstance(first, PrefillPart)  # noqa: S101 - a prefill node's way has no other
    assert isinstance(second, DecodePart)  # noqa: S101
    estimate = Estimate(
        seconds=first.seconds + second.seconds,
        prompt_tokens=sizes.prompt,
        compute_tokens=first.compute_tokens,
        move_tokens=first.move_tokens,
        held_tokens=first.held_tokens,
        deliver_tokens=second.tokens,
    )
    found = situation.found
    handle = found.handle if found is not None and prefill.kind is not Kind.COLD else None
    return Plan(prefill.kind, prefill.reason, decode.node, prefill.node, prefill.verify, handle, estimate)


def _stay_plan(way: _Way, sizes: Sizes) -> Plan:
    part = way.part
    assert isinstance(part, DecodePart)  # noqa: S101 - a decode node's way has no other
    estimate = Estimate(part.seconds, sizes.prompt, part.tokens, held_tokens=sizes.decode_held)
    return Plan(Kind.STAY, way.reason, way.node, None, estimate=estimate)


def _alternative(kind: Kind, reason: str, prefill: _Way | None, decode: _Way) -> Alternative:
    parts = [way.part for way in (prefill, decode) if way is not None]
    return Alternative(
        kind=kind,
        reason=reason,
        prefill=prefill.node.key if prefill is not None else None,
        decode=decode.node.key,
        estimate_s=sum(part.seconds for part in parts),
        price_s=sum(part.price_s for part in parts),
        why_not=(prefill.why_not if prefill is not None else "") or decode.why_not,
    )


def _sorted(ways: Sequence[tuple[int, Alternative]], *, first: Alternative | None) -> tuple[Alternative, ...]:
    """``first``, then those that may be taken, by what they come to."""
    in_order = sorted(ways, key=lambda way: (way[1] != first, bool(way[1].why_not), way[0]))
    return tuple(alternative for _, alternative in in_order)
