"""Handles that are too old: the router leaves them, and an engine that finds one so costs a cold turn."""

import time

from tests.engine.conversation import opening
from tests.engine.exchange import Engines
from tests.engine.pair import HANDLE_TTL_S, Setup
from tests.engine.play import Checked, Player, check, following
from tests.engine.plays import Aging
from tests.engine.recorder import Json, Recorder
from tests.engine.report import Run


def test_a_turn_after_the_deadline_is_cold_and_right(
    aging: Aging, player: Player, checked: dict[str, Checked], engines: Engines, setup: Setup, run: Run
) -> None:
    assert checked  # it takes its time, in which the handle grows old
    time.sleep(max(0.0, aging.ended_s + HANDLE_TTL_S + 1 - time.monotonic()))
    turn = player.turn(
        "aging 2", following(aging.turn, "And now?"), streamed=aging.turn.streamed, builds_on="aging 1"
    )
    run.of(setup).notes["a turn after the handle's end"] = f"{turn.plan} ({turn.reason}), right"
    assert (turn.plan, turn.reason) == ("cold", "expired")
    assert "remote_request_id" not in turn.prefill_legs[-1].sent
    (beside,) = check([turn], engines).values()
    assert beside.is_right
    engines.release(turn.handle)


def test_a_handle_that_only_the_engine_knows_to_be_over_costs_a_cold_turn(
    setup: Setup, player: Player, recorder: Recorder, engines: Engines, run: Run
) -> None:
    """A router that was told a TTL longer than D's. vLLM itself fails such a request."""

    def over(role: str, params: Json) -> Json:
        is_late = role == "prefill" and params.get("remote_request_id")
        return params | {"remote_blocks_expiry_time": 1.0} if is_late else params

    streamed = setup is Setup.PLUGIN
    first = player.turn("late 1", opening("wine", 16), streamed=streamed)
    with recorder.editing(over):
        turn = player.turn("late 2", following(first, "And now?"), streamed=streamed, builds_on="late 1")
    statuses = [leg.status for leg in turn.prefill_legs]
    assert statuses == ([200] if setup is Setup.PLUGIN else [500, 200])
    run.of(setup).notes["a handle that is over at D before the router knows"] = (
        f"P answers {statuses[0]}, the turn is {turn.plan} ({turn.reason}), right"
    )
    assert turn.plan == "cold"
    (beside,) = check([turn], engines).values()
    assert beside.is_right
    for handle in (first.handle, turn.handle):
        engines.release(handle)
