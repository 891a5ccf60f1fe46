"""A straight line through what was measured lately: so much for any, and so much per token. Pure.

Weighted least squares over running sums, so that an observation costs the same however many there were.
Observations lose half their weight every ``half_life_s``; what remains of an old line then is its prior, so
that a node which was slow and is avoided for it is tried again. Two points of the prior line, brought to the
level of the observations, always count along: they hold the slope where all observations are of one size.
"""

from dataclasses import dataclass
from typing import Final

PRIOR_TOKENS: Final = (500.0, 20_000.0)
"""Where the prior line's two points lie: about the shortest and longest prompts of a conversation."""
_POINTS: Final = PRIOR_TOKENS[0] + PRIOR_TOKENS[1]
_SQUARES: Final = PRIOR_TOKENS[0] ** 2 + PRIOR_TOKENS[1] ** 2
CLIP: Final = 4.0
"""An observation counts as at most so many times what was expected, and at least its inverse.

A first handshake or a stalled host is no measure of a node, and one that really is slower than that has its
line moved by its next observations, each time by up to this factor.
"""
CLIP_FLOOR_S: Final = 0.005
"""Below this, noise of an event loop is larger than any factor."""


@dataclass(frozen=True, slots=True)
class Line:
    """Seconds for so many tokens: ``fixed_s + tokens * token_s``."""

    fixed_s: float
    token_s: float

    def at(self, tokens: float) -> float:
        return self.fixed_s + self.token_s * tokens


@dataclass(slots=True)
class Fit:
    """A line that moves with its observations. ``prior_weight`` is how many of them the prior is worth."""

    prior: Line
    prior_weight: float = 0.5
    half_life_s: float = 300.0
    line: Line = Line(0.0, 0.0)
    weight: float = 0.0
    """How many observations the line stands on, each by its age."""
    _at_s: float = 0.0
    _x: float = 0.0
    _y: float = 0.0
    _xx: float = 0.0
    _xy: float = 0.0

    def __post_init__(self) -> None:
        self.line = self.prior

    def observe(self, tokens: float, seconds: float, now_s: float) -> None:
        """Take in that ``tokens`` took ``seconds``."""
        self.age(now_s)
        # Several times for every turn, so without calls that can be done without.
        expected_s = self.line.fixed_s + self.line.token_s * tokens
        expected_s = expected_s if expected_s > CLIP_FLOOR_S else CLIP_FLOOR_S
        if seconds < expected_s / CLIP:
            seconds = expected_s / CLIP
        elif seconds > expected_s * CLIP:
            seconds = expected_s * CLIP
        self.weight += 1.0
        self._x += tokens
        self._y += seconds
        self._xx += tokens * tokens
        self._xy += tokens * seconds
        self._solve()

    def age(self, now_s: float) -> None:
        """Let observations lose weight up to now. The line itself moves with the next ``refresh``."""
        passed_s = now_s - self._at_s
        if passed_s <= 0.0:
            return
        self._at_s = now_s
        if self.weight:
            factor = 0.5 ** (passed_s / self.half_life_s)
            self.weight *= factor
            self._x *= factor
            self._y *= factor
            self._xx *= factor
            self._xy *= factor

    def refresh(self, prior: Line, now_s: float) -> None:
        """The line as it is by now, on another prior: that of all nodes of its kind."""
        self.prior = prior
        self.age(now_s)
        self._solve()

    def _solve(self) -> None:
        """The line through all observations, and through the prior's two points at their level."""
        fixed_s, token_s = self.prior.fixed_s, self.prior.token_s
        own, half, scale = self.weight, self.prior_weight / 2, 1.0
        if own:
            # How much slower than the prior they are: its shape is kept, its level is theirs.
            own_s = 2 * half * (fixed_s + token_s * (self._x / own))
            expected_s = own_s + fixed_s * own + token_s * self._x
            if expected_s > 0.0:
                scale = (own_s + self._y) / expected_s
        level = half * scale
        weight = own + 2 * half
        x = self._x + half * _POINTS
        xx = self._xx + half * _SQUARES
        y = self._y + level * (2 * fixed_s + _POINTS * token_s)
        xy = self._xy + level * (_POINTS * fixed_s + _SQUARES * token_s)
        token_s = (weight * xy - x * y) / (weight * xx - x * x)
        fixed_s = (y - token_s * x) / weight
        if token_s < 0.0:
            token_s, fixed_s = 0.0, y / weight
        elif fixed_s < 0.0:
            token_s, fixed_s = xy / xx, 0.0
        self.line = Line(fixed_s, token_s)


@dataclass(slots=True)
class Mean:
    """A mean of what was seen lately, beginning with a prior that is worth ``prior_weight`` observations."""

    prior: float
    prior_weight: float = 4.0
    half_life_s: float = 300.0
    value: float = 0.0
    _sum: float = 0.0
    _weight: float = 0.0
    _at_s: float = 0.0

    def __post_init__(self) -> None:
        self.value = self.prior

    def observe(self, value: float, now_s: float, weight: float = 1.0) -> None:
        passed_s = now_s - self._at_s
        if passed_s > 0.0:
            self._at_s = now_s
            factor = 0.5 ** (passed_s / self.half_life_s)
            self._sum *= factor
            self._weight *= factor
        self._sum += value * weight
        self._weight += weight
        self.value = (self.prior * self.prior_weight + self._sum) / (self.prior_weight + self._weight)
