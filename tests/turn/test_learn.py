"""What a turn's legs teach: the right numbers, and nothing where they cannot be told."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from router.fleet.load import PRIOR_BYTES_PER_TOKEN, Load, PrefillLeg
from router.turn.context import Context
from router.turn.learn import learn_first_byte, learn_prefill, learn_stay, learn_verify
from router.turn.plan import Estimate, Kind, Plan, Situation, Verify
from router.turn.prefill import Prefilled
from tests.e2e.http_pool import http_pool
from tests.turn.test_plan import decode, prefill, situation

ESTIMATE = Estimate(0.5, prompt_tokens=1000, compute_tokens=200, move_tokens=300, held_tokens=500)
PLAN = Plan(Kind.LOCAL, "extension", decode(), prefill(), Verify.ENGINE, None, ESTIMATE)
LEG = PrefillLeg("p1", sent_s=10.0, found_empty=True, head_s=10.0, ended_s=10.5)
LEFT = Prefilled(b"{}", None, 800, 800, None, prompt_tokens=1000, timing=LEG)


@dataclass
class Told(Load):
    """A load that writes down what it is told."""

    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def prefilled(self, leg: PrefillLeg, **what: Any) -> None:
        self.calls.append(("prefilled", what))
        super().prefilled(leg, **what)

    def kept(self, node: Any, **what: Any) -> None:
        self.calls.append(("kept", what))
        super().kept(node, **what)

    def delivered(self, key: str, **what: Any) -> None:
        self.calls.append(("delivered", what))
        super().delivered(key, **what)

    def stayed(self, key: str, **what: Any) -> None:
        self.calls.append(("stayed", what))
        super().stayed(key, **what)

    def told(self, name: str) -> list[dict[str, Any]]:
        return [what for called, what in self.calls if called == name]


@pytest.fixture
async def context() -> Any:
    async with http_pool() as pool:
        yield replace(pool.router.context, load=Told())


def load_of(context: Context) -> Told:
    assert isinstance(context.load, Told)
    return context.load


LONG: Situation = situation(sizes_bytes=(1_000, 3_000))


def test_of_a_turn_that_reads_what_p_had_itself_is_not_counted_as_read(context: Context) -> None:
    learn_prefill(context, LONG, PLAN, LEFT)
    assert load_of(context).told("prefilled") == [{"computed_tokens": 200, "moved_tokens": 300}]


def test_under_a_salt_of_ours_p_had_nothing_itself(context: Context) -> None:
    learn_prefill(context, LONG, PLAN, replace(LEFT, salt="ours"))
    assert load_of(context).told("prefilled") == [{"computed_tokens": 200, "moved_tokens": 800}]


def test_a_cold_turn_tells_how_much_p_had_kept(context: Context) -> None:
    learn_prefill(context, LONG, PLAN.cold("no_handle"), replace(LEFT, reused_tokens=100))
    (kept,) = load_of(context).told("kept")
    assert (kept["expected_tokens"], kept["cached_tokens"]) == (500, 100)
    assert load_of(context).told("prefilled") == [{"computed_tokens": 900, "moved_tokens": 0}]


@pytest.mark.parametrize(
    "left",
    [replace(LEFT, prompt_tokens=None), replace(LEFT, timing=None), replace(LEFT, reused_tokens=None)],
)
def test_what_is_not_known_teaches_nothing(context: Context, left: Prefilled) -> None:
    learn_prefill(context, LONG, PLAN, left)
    assert not load_of(context).calls


@pytest.mark.parametrize(("media_depth", "learned"), [(0, True), (1, False)])
def test_pictures_say_nothing_of_the_size_of_a_token(
    context: Context, media_depth: int, learned: bool
) -> None:
    learn_prefill(context, replace(LONG, media_depth=media_depth), PLAN, LEFT)
    found = context.load.snapshot((prefill(), decode()), LONG.request.model, 11.0).bytes_per_token
    assert (found != PRIOR_BYTES_PER_TOKEN) is learned


def test_a_first_byte_tells_of_the_tokens_that_there_really_were() -> None:
    load, plan = Told(), replace(PLAN, estimate=replace(ESTIMATE, deliver_tokens=400))
    learn_first_byte(load, plan, replace(LEFT, prompt_tokens=1100), seconds=0.1, legs=3, now_s=1.0)
    assert load.told("delivered") == [{"tokens": 500, "seconds": 0.1, "legs": 3, "now_s": 1.0}]
    learn_first_byte(load, plan, replace(LEFT, params=None), seconds=0.1, legs=3, now_s=1.0)
    learn_first_byte(load, replace(plan, estimate=None), LEFT, seconds=0.1, legs=3, now_s=1.0)
    assert len(load.calls) == 1


def test_a_turn_that_stayed_teaches_how_d_computes(context: Context) -> None:
    plan = Plan(Kind.STAY, "extension", decode(), None, estimate=ESTIMATE)
    load = load_of(context)
    learn_first_byte(load, plan, None, seconds=0.2, legs=1, now_s=1.0)
    assert load.told("stayed") == [{"computed_tokens": 200, "seconds": 0.2, "legs": 1, "now_s": 1.0}]
    learn_stay(context, plan, 250)
    assert load.told("kept")[0]["cached_tokens"] == 250
    learn_stay(context, PLAN, 250)
    assert len(load.told("kept")) == 1


def test_only_the_routers_own_comparing_takes_the_routers_time(context: Context) -> None:
    before = context.load.snapshot((), "m", 1.0).verify
    learn_verify(context, PLAN, 3.0)
    assert context.load.snapshot((), "m", 1.0).verify == before
    learn_verify(context, replace(PLAN, verify=Verify.ROUTER), 3.0)
    assert context.load.snapshot((), "m", 1.0).verify.at(1000) > before.at(1000)
