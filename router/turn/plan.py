"""What a turn may do, and why it may not: a plan's values, and the rules that no estimate overrides. Pure.

``router.turn.weigh`` chooses among what these rules leave.
"""

from collections.abc import Collection, Sequence
from dataclasses import field, replace
from enum import StrEnum

from router.fleet.load import UNMEASURED, Loads
from router.fleet.node import SAME_START_S, Node, process_of
from router.ledger.store import Found, Handle, Relation
from router.turn.policy import Policy
from router.turn.request import Endpoint, Request
from router.values import value


class Kind(StrEnum):
    """The ways a turn can go."""

    COLD = "cold"
    """P computes the whole prompt (less what its own prefix cache holds)."""
    PULL = "pull"
    """P reads from D what D holds of the prompt."""
    LOCAL = "local"
    """As ``PULL``, on the P that computed the last turn: it reads only what it lacks."""
    STAY = "stay"
    """D alone: it holds the conversation in its own cache, and computes the few tokens that are new."""
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
    CHEAPER = "cheaper"
    """Computing it takes less time than reading it, as both were measured."""


class Unfit(StrEnum):
    """Why an alternative was not to be had, besides reasons. Told by ``explain``."""

    UNMEASURED = "unmeasured"
    """It would leave a handle for an estimate that nothing measured stands behind."""
    POLICY = "policy"
    OFF = "off"
    FAILED = "failed"
    """This turn has seen the node fail."""
    ENDPOINT = "endpoint"
    NO_PREFIX_CACHE = "no_prefix_cache"
    """The node is not known to keep prompts in a cache of its own."""
    LONG_APPEND = "long_append"
    FORK = "fork"
    """It begins a line of its own, which would begin without a handle."""


@value
class Estimate:
    """What a plan was estimated to come to. Tokens are estimates too: nobody has counted the prompt yet."""

    seconds: float | None
    """To the first token; None where the plan has changed since."""
    prompt_tokens: float
    compute_tokens: float
    """By P, or by D in a turn that stays."""
    move_tokens: float = 0.0
    """That P reads from D."""
    held_tokens: float = 0.0
    """That P (or D, in a turn that stays) has in its own cache."""
    deliver_tokens: float = 0.0
    """That D reads from P."""


@value
class Plan:
    """What a turn will do. ``handle`` is None unless it is to be used."""

    kind: Kind
    reason: str
    decode: Node
    prefill: Node | None
    verify: Verify = Verify.OFF
    handle: Handle | None = None
    estimate: Estimate | None = field(default=None, compare=False)

    def cold(self, reason: str) -> "Plan":
        """The same nodes, with nothing reused."""
        plan = self
        if self.estimate is not None and self.kind is not Kind.COLD:
            computed = self.estimate.compute_tokens + self.estimate.move_tokens
            estimate = replace(self.estimate, seconds=None, compute_tokens=computed, move_tokens=0.0)
            plan = replace(self, estimate=estimate)
        return replace(plan, kind=Kind.COLD, reason=reason, verify=Verify.OFF, handle=None)

    def unestimated(self) -> "Plan":
        """The same plan where the turn has lost time already that nobody had foreseen."""
        if self.estimate is None:
            return self
        return replace(self, estimate=replace(self.estimate, seconds=None))

    def on_decode(self, other: "Plan") -> "Plan":
        """The same first half, decoded where another plan decodes."""
        if self.estimate is None or other.estimate is None:
            return replace(self, decode=other.decode)
        estimate = replace(self.estimate, seconds=None, deliver_tokens=other.estimate.deliver_tokens)
        return replace(self, decode=other.decode, estimate=estimate)


@value
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
    sizes_bytes: Sequence[int] = ()
    """Of the history up to each boundary; see ``Lineage``."""
    loads: Loads = UNMEASURED
    readable: Sequence[Node] = ()
    """Decode nodes that can be read from, also such as get no new turns."""
    policy: str = Policy.PLANNED
    turn: int = 0
    """Counts up from turn to turn, so that equals take their turns."""
    threshold_tokens: int = 64
    stay_max_tokens: int = 0
    """The longest append that may stay on D; 0 where none may."""
    now_s: float = 0.0
    """On the ledger's clock."""

    def holder(self, handle: Handle) -> Node | None:
        """The node that keeps a handle's blocks, if it can be read from."""
        if handle.decode in self.exclude:
            return None
        for nodes in (self.decodes, self.readable):
            for node in nodes:
                if node.key == handle.decode:
                    return node
        return None


def obstacle(
    situation: Situation, found: Found, handle: Handle, prefill: Node, holder: Node | None
) -> Reason | None:
    """What stands in the way of reading a handle on ``prefill``, before anything is verified."""
    if holder is None:
        return Reason.HOLDER_GONE
    if restarted(handle, holder):
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


def restarted(handle: Handle, holder: Node) -> bool:
    """Whether another process runs on the node by now than the one that gave the handle."""
    running = process_of(holder.engine.engine_id)
    if running is not None and running != process_of(handle.engine_id):
        return True
    since_s, then_s = holder.engine.started_at_s, handle.started_at_s
    return since_s is not None and then_s is not None and abs(since_s - then_s) > SAME_START_S


def _shifts_blocks(prefill: Node, holder: Node) -> bool:
    """Whether P may read the wrong blocks even of a handle that is all its prompt's.

    P reads as many blocks from the end of D's list as its own prefix cache lacks. A count of its own blocks
    points at the wrong ones in a list of blocks of another size.
    """
    ours, theirs = prefill.engine.block_size, holder.engine.block_size
    differ = ours is not None and theirs is not None and ours != theirs
    return differ and prefill.engine.prefix_cache is not False


def _engine_checks(mode: str, handle: Handle, prefill: Node) -> bool:
    return mode in ("auto", Verify.ENGINE) and handle.stamped and prefill.engine.verifies is True


def verifier(situation: Situation, found: Found, handle: Handle, prefill: Node) -> Verify | None:
    """Who would prove the handle's tokens on ``prefill``; None where nobody can."""
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
