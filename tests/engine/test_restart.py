"""Engines that die: the conversation goes on cold and right, and is reused again from its next turn on."""

from concurrent.futures import ThreadPoolExecutor

import openai

from tests.engine.conversation import notes, opening
from tests.engine.exchange import Engines
from tests.engine.front import Front, wait_until
from tests.engine.pair import Pair, Setup, prefix_cache
from tests.engine.play import Player, check, following
from tests.engine.recorder import Recorder
from tests.engine.report import Run

SEEN_DOWN_WITHIN_S = 60.0
TOLD_WITHIN_S = 120.0
"""A client is told, or served, within this time of P's death."""


def test_after_d_was_killed_a_conversation_is_cold_once(
    setup: Setup, engine_pair: Pair, router: Front, player: Player, engines: Engines, run: Run
) -> None:
    streamed = setup is Setup.PLUGIN
    one, two = player.grow("d dies", (notes("rye", 14), "Which is late?"), streamed=streamed)
    assert (one.plan, two.reused_tokens > 0) == ("cold", True), two.reason

    engine_pair.decode.kill()
    wait_until(lambda: not router.is_ready(), "the router saw D die", limit_s=SEEN_DOWN_WITHIN_S)
    engine_pair.decode.launch()
    engine_pair.decode.wait_started()
    engines.meet()
    router.wait_serving()
    three = player.turn(
        "d dies 3", following(two, "And which is not?"), streamed=streamed, builds_on="d dies 2"
    )
    four = player.turn("d dies 4", following(three, "Why?"), streamed=streamed, builds_on="d dies 3")

    run.of(setup).notes["D killed and restarted"] = (
        f"next turn {three.plan} ({three.reason}), right; the one after {four.plan},"
        f" {four.reused_tokens} of {len(four.answer.prompt_ids)} tokens reused, right"
    )
    assert three.plan == "cold"
    assert "remote_request_id" not in three.prefill_legs[-1].sent
    assert four.plan in ("pull", "local"), four.reason
    assert "remote_request_id" in four.prefill_legs[-1].sent
    assert four.reused_tokens > 0
    assert all(each.is_right for each in check([three, four], engines).values())


def test_p_killed_in_a_turn_tells_the_client_and_later_turns_are_reused(
    setup: Setup,
    engine_pair: Pair,
    router: Front,
    recorder: Recorder,
    player: Player,
    engines: Engines,
    run: Run,
) -> None:
    streamed = setup is Setup.PLUGIN
    one = player.turn("p dies 1", opening("hay", 14), streamed=streamed)
    messages = following(one, "Which is late?")
    engine_pair.prefill.freeze()  # it takes the leg, and is at it for as long as we like
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(player.turn, "p dies 2", messages, streamed=streamed, builds_on="p dies 1")
        wait_until(lambda: recorder.open["prefill"] > 0, "P has the leg", limit_s=SEEN_DOWN_WITHIN_S)
        engine_pair.prefill.kill()
        error = asked.exception(timeout=TOLD_WITHIN_S)
    assert isinstance(error, openai.InternalServerError), error
    assert isinstance(error.body, dict)
    assert {"message", "type", "code"} <= set(error.body)
    assert error.body["message"]
    wait_until(router.is_idle, "no turn is open", limit_s=SEEN_DOWN_WITHIN_S)

    engine_pair.prefill.launch("--prefill-prefix-cache", prefix_cache(setup, restarted=True))
    engine_pair.prefill.wait_started()
    engines.meet()
    router.wait_serving()
    two = player.turn("p dies 2", messages, streamed=streamed, builds_on="p dies 1")
    three = player.turn("p dies 3", following(two, "Why?"), streamed=streamed, builds_on="p dies 2")
    four = player.turn("p dies 4", following(three, "Really?"), streamed=streamed, builds_on="p dies 3")
    run.of(setup).notes["P killed in a turn"] = (
        f"the client is told {error.status_code} ({error.body['code']}); after the restart, the same turn"
        f" again: {two.plan} ({two.reason}); the next ones: {three.plan}, {three.reused_tokens} of"
        f" {len(three.answer.prompt_ids)}, and {four.plan}, {four.reused_tokens} of"
        f" {len(four.answer.prompt_ids)} tokens reused; all right"
    )
    for turn in (three, four):
        assert turn.plan in ("pull", "local"), turn.reason
        assert turn.reused_tokens > 0
    assert all(each.is_right for each in check([two, three, four], engines).values())
