"""What the fleet measured lately, and what is queued on it now: the numbers that plans are estimated from.

``Load`` is told of every leg when it is sent and when it ends, on the event loop's thread; ``snapshot`` gives
the frozen values of one moment. Until something is measured, lines are those of ``PRIOR``; a node that
nothing is known of yet is taken to be as fast as the others of its role.

A prefill node is taken for a queue that computes one prompt after the other. That is exact for long prompts,
and right on average where an engine batches short ones: what is learned of a leg is the time between the end
of the one before it (or its own start, where it found the queue empty) and its own end.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from types import TracebackType
from typing import Final, NamedTuple, Protocol

from router.fleet.fit import Fit, Line, Mean
from router.fleet.node import Node, Role
from router.values import value

PRIOR_COMPUTE: Final = Line(0.0993, 26.86e-6)
PRIOR_MOVE: Final = Line(0.0209, 4.545e-6)
PRIOR_DELIVER: Final = Line(0.0024, 1.318e-6)
"""Lines through the published points of vLLM's bi-directional KV transfer: Qwen3-32B, 1P1D on two hosts with
eight H200 each, 2,000 and 24,000 prompt tokens. Prefill 153 and 744 ms, D to P 30 and 130 ms, and what the
time to first token has over the prefill, 5 and 34 ms. Only their proportions matter much: the first
observations set the level."""
PRIOR_VERIFY: Final = Line(0.001, 3.2e-6)
"""Rendering a prompt: 16,391 tokens in 53 ms on a CPU (``docs/engine-behaviour.md``)."""
PRIOR_BYTES_PER_TOKEN: Final = 4.0
"""English text in common vocabularies."""
PRIOR_LEG_TOKENS: Final = 1000.0
"""What an unknown leg computes, until legs were seen."""
REFRESH_S: Final = 5.0
"""How often a node that nothing new is learned of moves back towards the others of its role."""
PEAK_WINDOW_S: Final = 10.0
"""Legs that were open within the last one or two of these may still be in what a probe counted."""
MEASURED: Final = 2.0
"""Observations, each by its age, from which on a line is more than its prior."""
OVERDUE: Final = 3.0
OVERDUE_S: Final = 2.0
"""A leg that takes so many times what was expected, and so many seconds more, speaks against its node."""
NEW: Final = 8.0
"""Up to so many observations every one of them counts at once for all lines."""
MAX_MODELS: Final = 256
LOAD_STEPS: Final = 5
PROPORTION_TOKENS: Final = 4_000.0
"""The prompt length at which lines are compared."""


def load_step(legs: int) -> int:
    """The class of a decode node's load: 0 to 3 open legs, to 15, to 63, to 255, more."""
    return min(legs.bit_length() - 1, 2 * LOAD_STEPS - 1) // 2 if legs > 3 else 0


class PrefillLoad(NamedTuple):
    """A prefill node at one moment. Tuples, because a plan makes one for each node."""

    compute: Line
    """Seconds for prompt tokens that are computed."""
    move: Line
    """Seconds for tokens that are read from a decode node."""
    queue_s: float
    """Until what is queued on it now is computed."""
    queue_tokens: float
    kept_share: float
    """How much of a prompt that it computed its prefix cache still holds when the next turn comes."""
    is_measured: bool
    """Whether computing and reading were measured in this fleet lately, or the lines are those of a prior."""


class DecodeLoad(NamedTuple):
    """A decode node at one moment."""

    deliver: Line
    """Seconds from the leg's start to the first token, for tokens that it reads from the prefill node."""
    compute: Line
    """The same for tokens that it computes itself."""
    legs: int
    slowdown: float
    """Factor on both at this load."""
    kept_share: float


IDLE_PREFILL: Final = PrefillLoad(PRIOR_COMPUTE, PRIOR_MOVE, 0.0, 0.0, 1.0, is_measured=False)
IDLE_DECODE: Final = DecodeLoad(PRIOR_DELIVER, PRIOR_COMPUTE, 0, 1.0, 1.0)


@value
class Loads:
    """All nodes at one moment, by key. A node that is missing is idle and not measured."""

    prefills: Mapping[str, PrefillLoad] = field(default_factory=dict)
    decodes: Mapping[str, DecodeLoad] = field(default_factory=dict)
    verify: Line = PRIOR_VERIFY
    bytes_per_token: float = PRIOR_BYTES_PER_TOKEN

    def prefill(self, node: Node) -> PrefillLoad:
        known = self.prefills.get(node.key)
        if known is not None:
            return known
        work_s = PRIOR_COMPUTE.at(PRIOR_LEG_TOKENS)
        queued = node.in_flight
        return IDLE_PREFILL._replace(queue_s=queued * work_s, queue_tokens=queued * PRIOR_LEG_TOKENS)

    def decode(self, node: Node) -> DecodeLoad:
        known = self.decodes.get(node.key)
        return known if known is not None else IDLE_DECODE._replace(legs=node.in_flight)


UNMEASURED: Final = Loads()


class Clock(Protocol):
    def __call__(self) -> float: ...


@dataclass(slots=True)
class PrefillLeg:
    """One prefill leg, and what of its time was its own; see ``Load.prefilled``."""

    key: str
    sent_s: float
    found_empty: bool
    """Nothing else was queued on its node while it was open."""
    head_s: float = 0.0
    """When the leg before it ended."""
    ended_s: float = 0.0


@dataclass(slots=True)
class _Open:
    """Legs of ours on one node, and the most there were lately."""

    legs: int = 0
    peak: int = 0
    peak_before: int = 0
    window_s: float = 0.0

    def add(self, by: int, now_s: float) -> None:
        if now_s - self.window_s > PEAK_WINDOW_S:
            late = now_s - self.window_s > 2 * PEAK_WINDOW_S
            self.peak_before = self.legs if late else self.peak
            self.peak, self.window_s = self.legs, now_s
        self.legs += by
        self.peak = self.legs if self.legs > self.peak else self.peak

    def foreign(self, node: Node) -> int:
        """Requests on a node that are not ours, from what its last probe counted."""
        engine = node.engine
        if not (engine.running or engine.waiting):
            return 0
        counted = (engine.running or 0) + (engine.waiting or 0)
        return max(counted - max(self.peak, self.peak_before), 0)


@dataclass(slots=True)
class _Prefill:
    compute: Fit
    move: Fit
    open: _Open = field(default_factory=_Open)
    tokens: float = 0.0
    head_s: float = 0.0
    """When the first leg of the queue began to be computed: as it came, or as the one before it ended."""
    kept: Mean = field(default_factory=lambda: Mean(1.0))

    def load(self, node: Node, mean_tokens: float, now_s: float, *, is_measured: bool) -> PrefillLoad:
        line, legs = self.compute.line, self.open.legs
        others = self.open.foreign(node)
        if node.in_flight > legs:
            others += node.in_flight - legs
        tokens = self.tokens + others * mean_tokens
        queue_s = 0.0
        if legs or others:
            head_s = line.fixed_s + line.token_s * tokens / (legs + others)
            since_s = now_s - self.head_s if legs else 0.0
            done_s = since_s if since_s < head_s else head_s
            queue_s = max((legs + others) * line.fixed_s + line.token_s * tokens - done_s, 0.0)
            overdue_s = since_s - OVERDUE * head_s - OVERDUE_S
            if overdue_s > 0.0:
                queue_s += overdue_s  # who is silent for far too long is expected to be so for as long again
        return PrefillLoad(line, self.move.line, queue_s, tokens, self.kept.value, is_measured)


@dataclass(slots=True)
class _Decode:
    deliver: Fit
    compute: Fit
    open: _Open = field(default_factory=_Open)
    slow: list[Mean] = field(default_factory=lambda: [Mean(1.0) for _ in range(LOAD_STEPS)])
    kept: Mean = field(default_factory=lambda: Mean(1.0))

    def load(self, node: Node) -> DecodeLoad:
        ours = self.open.legs if self.open.legs > node.in_flight else node.in_flight
        legs = ours + self.open.foreign(node)
        slowdown = self.slow[load_step(legs)].value
        return DecodeLoad(self.deliver.line, self.compute.line, legs, slowdown, self.kept.value)

    def first_byte(self, legs: int, tokens: int, seconds: float, now_s: float, *, fit: Fit) -> None:
        slow = self.slow[load_step(legs)]
        if slow is not self.slow[0]:  # the lowest step is what the others are measured by
            expected_s = max(fit.line.at(tokens), 1e-3)
            slow.observe(min(max(seconds / expected_s, 0.5), 10.0), now_s)
        fit.observe(tokens, seconds / slow.value, now_s)


class _Prefilling:
    """A prefill leg for as long as it is open."""

    __slots__ = ("_key", "_leg", "_node", "_now", "_tokens")

    def __init__(self, node: _Prefill, key: str, tokens: float, now: Clock) -> None:
        self._node, self._key, self._tokens, self._now = node, key, tokens, now

    def __enter__(self) -> PrefillLeg:
        node, sent_s = self._node, self._now()
        if not node.open.legs:
            node.head_s = sent_s
        self._leg = PrefillLeg(self._key, sent_s, found_empty=not node.open.legs)
        node.open.add(+1, sent_s)
        node.tokens += self._tokens
        return self._leg

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        node, leg, now_s = self._node, self._leg, self._now()
        node.open.add(-1, now_s)
        node.tokens = max(node.tokens - self._tokens, 0.0) if node.open.legs else 0.0
        leg.head_s, leg.ended_s = node.head_s, now_s
        leg.found_empty = leg.found_empty and node.head_s <= leg.sent_s
        node.head_s = now_s


class _Decoding:
    """A decode leg for as long as it is open."""

    __slots__ = ("_node", "_now")

    def __init__(self, node: _Decode, now: Clock) -> None:
        self._node, self._now = node, now

    def __enter__(self) -> int:
        legs = self._node.open.legs
        self._node.open.add(+1, self._now())
        return legs

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._node.open.add(-1, self._now())


class Load:
    """Learns from legs. One event loop only; bounded by the nodes that exist and ``MAX_MODELS``."""

    def __init__(self) -> None:
        self._compute, self._move = Fit(PRIOR_COMPUTE), Fit(PRIOR_MOVE, prior_weight=2.0)
        self._deliver, self._stay = Fit(PRIOR_DELIVER), Fit(PRIOR_COMPUTE)
        self._verify = Fit(PRIOR_VERIFY)
        self._leg_tokens = Mean(PRIOR_LEG_TOKENS, prior_weight=1.0)
        self._prefills: dict[str, _Prefill] = {}
        self._decodes: dict[str, _Decode] = {}
        self._bytes_per_token: OrderedDict[str, Mean] = OrderedDict()
        self._refreshed_s = 0.0
        self._is_new = False
        self._turns = count()

    @property
    def has_computed(self) -> bool:
        """Whether computing was timed in this fleet lately; without that its lines are those of a prior."""
        return self._compute.weight > 0.0

    def next_turn(self) -> int:
        """Counts up."""
        return next(self._turns)

    def snapshot(self, nodes: Sequence[Node], model: str, now_s: float) -> Loads:
        """``nodes`` are all that there are: what is known of others is forgotten, once they have no leg."""
        prefills, decodes = {}, {}
        if self._is_new or now_s - self._refreshed_s > REFRESH_S:
            self._refresh(now_s)
        mean_tokens = self._leg_tokens.value
        is_measured = self._compute.weight >= MEASURED and self._move.weight >= MEASURED
        for node in nodes:
            key = node.key
            if node.role is not Role.DECODE:
                prefill = self._prefills.get(key) or self._prefill(key)
                prefills[key] = prefill.load(node, mean_tokens, now_s, is_measured=is_measured)
            if node.role is not Role.PREFILL:
                decode = self._decodes.get(key) or self._decode(key)
                decodes[key] = decode.load(node)
        if len(self._prefills) > len(prefills) or len(self._decodes) > len(decodes):
            self._forget(prefills, decodes)
        ratio = self._bytes_per_token.get(model)
        bytes_per_token = ratio.value if ratio is not None else PRIOR_BYTES_PER_TOKEN
        return Loads(prefills, decodes, self._verify.line, bytes_per_token)

    def prefilling(self, key: str, tokens: float, now: Clock) -> "_Prefilling":
        """Queue a prefill leg of about ``tokens`` tokens to compute, for as long as it is open."""
        return _Prefilling(self._prefill(key), key, tokens, now)

    def prefilled(self, leg: PrefillLeg, *, computed_tokens: int, moved_tokens: int) -> None:
        """A leg that ended well computed so many tokens, and read so many from a decode node."""
        node, now_s = self._prefill(leg.key), leg.ended_s
        computed = computed_tokens if computed_tokens > 1 else 1
        self._leg_tokens.observe(computed, now_s)
        if moved_tokens > 0:
            if leg.found_empty:
                moved_s = max(now_s - leg.sent_s - node.compute.line.at(computed), 0.0)
                node.move.observe(moved_tokens, moved_s, now_s)
                self._move.observe(moved_tokens, moved_s, now_s)
                return
            if leg.head_s < leg.sent_s + node.move.line.at(moved_tokens):
                return  # whether it waited for its tokens or for others' cannot be told
        service_s = now_s - max(leg.sent_s, leg.head_s)
        node.compute.observe(computed, service_s, now_s)
        self._compute.observe(computed, service_s, now_s)
        # The first ones set the level of all that is not measured yet.
        self._is_new = self._is_new or self._compute.weight < NEW

    def decoding(self, key: str, now: Clock) -> "_Decoding":
        """Count a decode leg for as long as it is open; how many there were before it."""
        return _Decoding(self._decode(key), now)

    def delivered(self, key: str, *, tokens: int, seconds: float, legs: int, now_s: float) -> None:
        """A first byte came ``seconds`` after its decode leg was sent; D had ``tokens`` to read from P."""
        node = self._decode(key)
        node.first_byte(legs, tokens, seconds, now_s, fit=node.deliver)
        self._deliver.observe(tokens, seconds, now_s)

    def stayed(self, key: str, *, computed_tokens: int, seconds: float, legs: int, now_s: float) -> None:
        """A first byte came of a turn that D served alone."""
        node = self._decode(key)
        node.first_byte(legs, computed_tokens, seconds, now_s, fit=node.compute)
        self._stay.observe(computed_tokens, seconds, now_s)

    def verified(self, *, tokens: int, seconds: float, now_s: float) -> None:
        """The router compared a prompt."""
        self._verify.observe(tokens, seconds, now_s)

    def kept(self, node: Node, *, expected_tokens: int, cached_tokens: int, now_s: float) -> None:
        """A node was expected to have so much of a prompt in its own cache, and had so much."""
        if expected_tokens > 0:
            share = min(max(cached_tokens, 0) / expected_tokens, 1.0)
            known = self._prefill if node.role is Role.PREFILL else self._decode
            known(node.key).kept.observe(share, now_s)

    def sized(self, model: str, *, prompt_bytes: int, prompt_tokens: int, now_s: float) -> None:
        """A prompt of a known size came to so many tokens."""
        if prompt_tokens < 1 or prompt_bytes < 1:
            return
        ratio = self._bytes_per_token.get(model)
        if ratio is None:
            ratio = self._bytes_per_token[model] = Mean(PRIOR_BYTES_PER_TOKEN, prior_weight=100.0)
            if len(self._bytes_per_token) > MAX_MODELS:
                self._bytes_per_token.popitem(last=False)
        # By tokens, so that many short prompts (mostly template) do not outweigh the long ones.
        ratio.observe(min(prompt_bytes / prompt_tokens, 100.0), now_s, weight=prompt_tokens)

    def _refresh(self, now_s: float) -> None:
        """Let what is old lose weight, and bring what is hardly measured into proportion with what is."""
        self._refreshed_s, self._is_new = now_s, False
        self._compute.refresh(PRIOR_COMPUTE, now_s)
        scale = self._compute.line.at(PROPORTION_TOKENS) / PRIOR_COMPUTE.at(PROPORTION_TOKENS)
        self._move.refresh(_scaled(PRIOR_MOVE, scale), now_s)
        self._deliver.refresh(_scaled(PRIOR_DELIVER, scale), now_s)
        self._stay.refresh(self._compute.line, now_s)
        for prefill in self._prefills.values():
            prefill.compute.refresh(self._compute.line, now_s)
            prefill.move.refresh(self._move.line, now_s)
        for decode in self._decodes.values():
            decode.deliver.refresh(self._deliver.line, now_s)
            decode.compute.refresh(self._stay.line, now_s)

    def _prefill(self, key: str) -> _Prefill:
        node = self._prefills.get(key)
        if node is None:
            node = _Prefill(Fit(self._compute.line), Fit(self._move.line, prior_weight=2.0))
            self._prefills[key] = node
        return node

    def _decode(self, key: str) -> _Decode:
        node = self._decodes.get(key)
        if node is None:
            node = self._decodes[key] = _Decode(Fit(self._deliver.line), Fit(self._stay.line))
        return node

    def _forget(self, prefills: Mapping[str, object], decodes: Mapping[str, object]) -> None:
        for key in [k for k, node in self._prefills.items() if k not in prefills and not node.open.legs]:
            del self._prefills[key]
        for key in [k for k, node in self._decodes.items() if k not in decodes and not node.open.legs]:
            del self._decodes[key]


def _scaled(line: Line, by: float) -> Line:
    return Line(line.fixed_s * by, line.token_s * by)
