"""What a turn will do, and why. Pure: the fleet and what the ledger found go in, a plan comes out."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from router.fleet.node import SAME_START_S, Node, process_of
from router.ledger.store import Absence, Found, Handle, Relation
from router.turn.request import Endpoint, Request


class Kind(StrEnum):
    """The ways a turn can go."""

    COLD = "cold"
    """P computes the whole prompt (less what its own prefix cache holds)."""
    PULL = "pull"
    """P reads from D what D holds of the prompt."""
    LOCAL = "local"
    """As ``PULL``, on the P that computed the last turn: it reads only what it lacks."""
    UNSPLIT = "unsplit"
    """One node does both."""


class Verify(StrEnum):
    """Who proves that a handle's tokens are the prompt's."""

    ENGINE = "engine"
    ROUTER = "router"
    LINEAGE = "lineage"
    """Nobody: equal messages are trusted. Known to be wrong where templates strip or answers retokenise."""
    OFF = "off"


class Reason(StrEnum):
    """Why a turn is cold. Other reasons are values of Absence, Relation, Uncut and Unsplit."""

    FIRST_TURN = "first_turn"
    VERIFY_OFF = "verify_off"
    NO_IDENTITY = "no_identity"
    LEDGER_DOWN = "ledger_down"
    ENGINE_RESTARTED = "engine_restarted"
    HOLDER_GONE = "holder_gone"
    PAIR_COOLING = "pair_cooling"
    MODEL_MISTRUSTED = "model_mistrusted"
    UNVERIFIABLE = "unverifiable"
    MEDIA = "media"
    BLOCK_SIZE = "block_size"
    """P and D hold blocks of different sizes, and P's own prefix cache would shift the ones that it reads."""
    RETRY = "retry"
    """A prefill leg that carried the handle failed or was overdue."""
    MISMATCH = "mismatch"
    """P read another prompt than was verified; computed again under a salt of our own."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a turn will do. ``handle`` is None unless it is to be used."""

    kind: Kind
    reason: str
    decode: Node
    prefill: Node | None
    verify: Verify = Verify.OFF
    handle: Handle | None = None

    def cold(self, reason: str) -> "Plan":
        """The same nodes, with nothing reused."""
        return replace(self, kind=Kind.COLD, reason=reason, verify=Verify.OFF, handle=None)


@dataclass(frozen=True, slots=True)
class Situation:
    """All that a plan is made of. ``prefills`` and ``decodes`` are the nodes that may be used now."""

    request: Request
    media_depth: int
    """Depth of the request's last message with an image or the like."""
    prefills: Sequence[Node]
    decodes: Sequence[Node]
    found: Found | None
    mode: str
    """The ``verify`` setting: auto, engine, router, lineage or off."""
    cooling: Collection[tuple[str, str]] = ()
    """Pairs (P, D) that failed a pull lately."""
    mistrusted: bool = False
    """The model's prompts were read otherwise than they were rendered."""
    cold_reason: str = ""
    """Set where nothing is to be reused, and why."""
    exclude: Collection[str] = ()
    """Nodes this turn has seen fail."""
    shape: frozenset[str] = frozenset()
    """What kind of prompt it is; see ``Lineage``."""


def choose(situation: Situation) -> Plan | None:
    """The plan of a turn; None where no node or no full pair is ready.

    The node that holds the conversation's KV decodes, the node that computed its last turn prefills;
    otherwise the ones with the fewest open legs.
    """
    found = situation.found
    held_by = None if found is None else (found.handle.decode if found.handle else found.trace.decode)
    decode = _pick(situation.decodes, held_by, situation.exclude)
    if decode is None:
        return None
    if situation.request.unsplit is not None:
        return Plan(Kind.UNSPLIT, situation.request.unsplit, decode, None)
    computed_by = None if found is None else found.trace.prefill
    prefill = _pick(situation.prefills, computed_by, situation.exclude)
    if prefill is None:
        return None
    base = Plan(Kind.COLD, Reason.FIRST_TURN, decode, prefill)
    if situation.mode == Verify.OFF:
        return base.cold(Reason.VERIFY_OFF)
    if situation.cold_reason or found is None:
        return base.cold(situation.cold_reason or Reason.FIRST_TURN)
    handle = found.handle
    if handle is None:
        return base.cold(found.absence or Absence.NO_HANDLE)
    obstacle = _obstacle(situation, found, handle, prefill)
    if obstacle is not None:
        return base.cold(obstacle)
    verify = _verifier(situation, found, handle, prefill)
    if verify is None:
        return base.cold(Reason.UNVERIFIABLE)
    warm = prefill.key == computed_by and prefill.engine.prefix_cache is True
    return replace(
        base, kind=Kind.LOCAL if warm else Kind.PULL, reason=found.relation, verify=verify, handle=handle
    )


def _pick(nodes: Sequence[Node], preferred: str | None, exclude: Collection[str]) -> Node | None:
    usable = [node for node in nodes if node.key not in exclude]
    return next(
        (node for node in usable if node.key == preferred),
        min(usable, key=lambda node: node.in_flight, default=None),
    )


def _obstacle(situation: Situation, found: Found, handle: Handle, prefill: Node) -> Reason | None:
    """What stands in the way of a handle that was found, before anything is verified."""
    holder = next((node for node in situation.decodes if node.key == handle.decode), None)
    if holder is None or holder.key in situation.exclude:
        return Reason.HOLDER_GONE
    running = process_of(holder.engine.engine_id)
    if running is not None and running != process_of(handle.engine_id):
        return Reason.ENGINE_RESTARTED
    since_s, then_s = holder.engine.started_at_s, handle.started_at_s
    if since_s is not None and then_s is not None and abs(since_s - then_s) > SAME_START_S:
        return Reason.ENGINE_RESTARTED
    if (prefill.key, handle.decode) in situation.cooling:
        return Reason.PAIR_COOLING
    if situation.mistrusted:
        return Reason.MODEL_MISTRUSTED
    if handle.media_depth > found.depth and not _engine_checks(situation.mode, handle, prefill):
        # Placeholder tokens are equal for different images, so tokens prove nothing past the equal messages.
        return Reason.MEDIA
    if _shifts_blocks(prefill, holder):
        return Reason.BLOCK_SIZE
    return None


def _shifts_blocks(prefill: Node, holder: Node) -> bool:
    """Whether P may read the wrong blocks even of a handle that is all its prompt's.

    P reads as many blocks from the end of D's list as its own prefix cache lacks. A count of its own blocks
    points at the wrong ones in a list of blocks of another size.
    """
    sizes = {prefill.engine.block_size, holder.engine.block_size} - {None}
    return len(sizes) > 1 and prefill.engine.prefix_cache is not False


def _engine_checks(mode: str, handle: Handle, prefill: Node) -> bool:
    return mode in ("auto", Verify.ENGINE) and handle.stamped and prefill.engine.verifies is True


def _verifier(situation: Situation, found: Found, handle: Handle, prefill: Node) -> Verify | None:
    mode = situation.mode
    if _engine_checks(mode, handle, prefill):
        return Verify.ENGINE
    if mode in ("auto", Verify.ROUTER) and handle.held is not None:
        return Verify.ROUTER
    # The boundaries of a plain prompt are strides: an extension is known only up to one of them.
    by_message = situation.request.endpoint is Endpoint.CHAT
    if mode == Verify.LINEAGE and by_message and found.relation is Relation.EXTENSION:
        return Verify.LINEAGE
    return None


def proof_limit(situation: Situation, handle: Handle) -> int:
    """Up to which token the router's comparison of tokens is a proof.

    A new image past the known messages cannot hide among tokens of the old prompt, but nothing is proven of
    the old answer then.
    """
    found = situation.found
    if found is not None and situation.media_depth > found.depth:
        return handle.prompt_tokens
    return handle.tokens
