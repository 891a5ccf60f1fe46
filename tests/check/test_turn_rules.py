from dataclasses import replace
from typing import Any

import pytest

from router.check import turn_rules
from router.check.findings import Judged, Verdict
from router.check.observed import Assumed, HandlePlace, PairSeen, RouteSeen, StreamSeen, TurnSeen
from router.fleet.node import Role
from tests.check.values import D_ID, IDS, P_ID, failed, good_pair, leg, node

OK, WARNING, ERROR, SKIPPED = Verdict.OK, Verdict.WARNING, Verdict.ERROR, Verdict.SKIPPED
ASSUMED = Assumed()


def judged(rule: Any, seen: PairSeen, assumed: Assumed = ASSUMED) -> Judged:
    found: Judged | None = rule(seen, assumed)
    assert found is not None
    assert found.advice or found.verdict in (OK, SKIPPED)
    return found


def first(prefill: dict[str, Any] | None = None, decode: dict[str, Any] | None = None) -> PairSeen:
    """The pair, with members of the first turn's params replaced."""
    turn = TurnSeen(leg(Role.PREFILL, 7, **(prefill or {})), leg(Role.DECODE, 7, 8, **(decode or {})))
    return replace(good_pair(), first=turn)


@pytest.mark.parametrize("name", turn_rules.TURN_RULES)
def test_all_is_well(name: str) -> None:
    assert judged(turn_rules.TURN_RULES[name], good_pair()).verdict is OK


@pytest.mark.parametrize("name", turn_rules.TURN_RULES)
def test_what_was_not_reached_is_not_judged(name: str) -> None:
    nothing = PairSeen(node(Role.PREFILL), node(Role.DECODE))
    assert turn_rules.TURN_RULES[name](nothing, ASSUMED) is None


@pytest.mark.parametrize(
    ("leg_seen", "advice"),
    [
        (failed(timed_out=True, status=None), "--timeout-s"),
        (failed("answered 401", status=401), "--api-key-file"),
        (failed("connection refused", status=None), "still runs"),
        (failed(), "log"),
    ],
)
def test_a_prefill_leg_that_fails_says_what_to_do(leg_seen: Any, advice: str) -> None:
    found = judged(turn_rules.connector, replace(good_pair(), first=TurnSeen(leg_seen)))
    assert found.verdict is ERROR
    assert advice in found.advice


@pytest.mark.parametrize(
    ("prefill_host", "decode_host", "named", "verdict"),
    [
        ("10.0.0.1", "10.0.0.2", "10.0.0.2", OK),
        ("10.0.0.1", "10.0.0.2", "127.0.0.1", ERROR),
        ("10.0.0.1", "10.0.0.2", "127.1.2.3", ERROR),
        ("10.0.0.1", "10.0.0.2", "localhost", ERROR),
        ("10.0.0.1", "10.0.0.2", "::1", ERROR),
        ("10.0.0.1", "10.0.0.2", "0.0.0.0", ERROR),  # noqa: S104 - compared, never bound
        ("10.0.0.1", "10.0.0.2", "", ERROR),
        ("10.0.0.1", "10.0.0.2", "engine-d.local", OK),
        ("10.0.0.1", "10.0.0.1", "127.0.0.1", OK),
        ("127.0.0.1", "localhost", "127.0.0.1", OK),
        ("[::1]", "127.0.0.1", "127.0.0.1", OK),
    ],
)
def test_a_side_channel_on_loopback_is_wrong_between_machines(
    prefill_host: str, decode_host: str, named: str, verdict: Verdict
) -> None:
    seen = replace(
        first(decode={"remote_host": named}),
        prefill=node(Role.PREFILL, prefill_host),
        decode=node(Role.DECODE, decode_host),
    )
    assert judged(turn_rules.side_channel, seen).verdict is verdict


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict"),
    [
        (P_ID, D_ID, OK),
        (f"{P_ID}_dp3", f"{D_ID}_dp0", OK),
        (P_ID.replace("-", ""), D_ID, OK),
        ("prefill-0", D_ID, WARNING),
        (P_ID, f"{P_ID}_dp1", ERROR),
        ("fixed", "fixed", ERROR),
    ],
)
def test_engine_ids_are_fresh_and_their_own(ours: str, theirs: str, verdict: Verdict) -> None:
    seen = first({"remote_engine_id": ours}, {"remote_engine_id": theirs})
    assert judged(turn_rules.engine_id, seen).verdict is verdict


def test_one_engine_may_be_in_both_pools() -> None:
    seen = first({"remote_engine_id": P_ID}, {"remote_engine_id": P_ID})
    seen = replace(seen, prefill=node(Role.PREFILL, "10.0.0.9"), decode=node(Role.DECODE, "10.0.0.9"))
    assert judged(turn_rules.engine_id, seen).verdict is OK


@pytest.mark.parametrize("side", [Role.PREFILL, Role.DECODE])
def test_push_mode_of_either_side_is_an_error(side: Role) -> None:
    push = {"transfer_mode": "push"}
    seen = first(push) if side is Role.PREFILL else first(decode=push)
    assert judged(turn_rules.push_mode, seen).verdict is ERROR


def test_a_stamp_that_tells_the_ttl_is_compared_with_the_router_s() -> None:
    seen = first(decode={"boomerang": {"digests": "", "ttl_s": 120.0}})
    found = judged(turn_rules.ttl, seen)
    assert found.verdict is ERROR
    assert "decode_ttl_s to 120" in found.advice
    assert judged(turn_rules.ttl, seen, Assumed(ttl_s=100.0, ttl_is_set=True)).verdict is OK


def test_handles_that_name_no_end_need_a_ttl() -> None:
    seen = first(decode={"remote_blocks_expiry_time": None})
    assert "nothing is reused" in judged(turn_rules.ttl, seen).advice
    assert "as you say" in judged(turn_rules.ttl, seen, Assumed(ttl_is_set=True)).seen


@pytest.mark.parametrize(
    ("expiry_s", "verdict"), [(5_004.0, OK), (5_005.5, OK), (5_030.0, WARNING), (5_000.0, WARNING)]
)
def test_two_handles_end_as_far_apart_as_they_were_made(expiry_s: float, verdict: Verdict) -> None:
    apart = TurnSeen(
        leg(Role.PREFILL, 7, at_s=5.0), leg(Role.DECODE, 7, at_s=5.0, remote_blocks_expiry_time=expiry_s)
    )
    assert judged(turn_rules.ttl, replace(good_pair(), reference=apart)).verdict is verdict


def test_clocks_of_different_ranks_are_not_compared() -> None:
    other = leg(Role.DECODE, 7, at_s=5.0, remote_blocks_expiry_time=9.0, remote_engine_id=f"{D_ID}_dp1")
    assert (
        judged(turn_rules.ttl, replace(good_pair(), reference=TurnSeen(leg(Role.PREFILL), other))).verdict
        is OK
    )


def test_a_slow_decode_eats_up_the_lease() -> None:
    slow = replace(leg(Role.DECODE, 7), began_s=1.0, ended_s=21.0)
    seen = replace(good_pair(), second=None, reference=None, first=TurnSeen(leg(Role.PREFILL, 7), slow))
    found = judged(turn_rules.lease, seen)
    assert found.verdict is WARNING
    assert found.seen.startswith("20.00 s")
    assert judged(turn_rules.lease, seen, Assumed(lease_s=60.0)).verdict is OK


def test_different_prompts_are_told_with_the_place() -> None:
    other = IDS[:50] + IDS[60:]
    seen = replace(good_pair(), first=TurnSeen(leg(Role.PREFILL, 7), leg(Role.DECODE, 7, prompt=other)))
    found = judged(turn_rules.templates, seen)
    assert found.verdict is ERROR
    assert "from token 50 on" in found.seen


def test_streams_without_a_handle_are_an_error_only_where_there_are_handles() -> None:
    seen = replace(
        good_pair(), streamed=StreamSeen(good_pair().first or TurnSeen(failed()), HandlePlace.NONE)
    )
    assert judged(turn_rules.stream_handle, seen).verdict is ERROR
    no_handle = replace(seen, first=TurnSeen(leg(Role.PREFILL, 7), replace(leg(Role.DECODE, 7), params=None)))
    assert turn_rules.stream_handle(no_handle, ASSUMED) is None
    assert judged(turn_rules.bidirectional_decode, no_handle).verdict is ERROR


@pytest.mark.parametrize(
    ("route", "router_mode", "engine_mode"),
    [
        (RouteSeen("render", 200, agrees=True), OK, OK),
        (RouteSeen("tokenize", 200, agrees=None), OK, OK),
        (RouteSeen("", 404), ERROR, OK),
        (RouteSeen("tokenize", 200, agrees=False), ERROR, WARNING),
    ],
)
def test_router_mode_needs_the_prompts_tokens(
    route: RouteSeen, router_mode: Verdict, engine_mode: Verdict
) -> None:
    assert judged(turn_rules.prompt_tokens, replace(good_pair(), route=route)).verdict is router_mode
    plugin = first({"boomerang": {"verified_tokens": 0}}, {"boomerang": {"digests": ""}})
    assert judged(turn_rules.prompt_tokens, replace(plugin, route=route)).verdict is engine_mode


def test_half_a_plugin_is_a_warning() -> None:
    verifies, stamps = {"boomerang": {"verified_tokens": 0}}, {"boomerang": {"digests": ""}}
    assert judged(turn_rules.stamping, first(verifies)).verdict is WARNING
    assert judged(turn_rules.verification, first(decode=stamps)).verdict is WARNING
    whole = first(verifies, stamps)
    assert judged(turn_rules.verification, whole).seen.startswith("engine")
