"""A handle of another conversation, put into a prefill leg below the router, which cannot know of it.

With the plugin P cuts it to nothing. On a stock engine the answer is wrong: the control, without which every
equality in this directory could hold because nothing looks.
"""

from tests.engine.conversation import opening
from tests.engine.exchange import Engines
from tests.engine.pair import Setup
from tests.engine.play import Player, check, following
from tests.engine.recorder import Json, Recorder
from tests.engine.report import Run


def test_a_wrong_handle_is_cut_to_nothing_or_seen_in_the_answer(
    setup: Setup, player: Player, recorder: Recorder, engines: Engines, run: Run
) -> None:
    streamed = setup is Setup.PLUGIN
    other = player.turn("harbour 1", opening("harbour", 14), streamed=streamed)
    first = player.turn("orchard 1", opening("orchard", 18), streamed=streamed)
    # Longer than what the other one holds, so that P would read all of it and trim nothing.
    assert len(first.answer.prompt_ids) > other.handle["remote_num_tokens"]

    def swapped(role: str, params: Json) -> Json:
        return other.handle if role == "prefill" and params.get("remote_request_id") else params

    with recorder.editing(swapped):
        turn = player.turn(
            "orchard 2", following(first, "And now?"), streamed=streamed, builds_on="orchard 1"
        )
    (leg,) = turn.prefill_legs
    assert leg.sent["remote_request_id"] == other.handle["remote_request_id"]
    assert leg.handle is not None

    (beside,) = check([turn], engines).values()
    equal = sum(
        ours == theirs for ours, theirs in zip(turn.answer.ids, beside.reference.decode.ids, strict=True)
    )
    verdicts = (
        f"P's first token {beside.first_verdict}, answer {beside.answer_verdict}"
        f" ({equal} of {len(turn.answer.ids)} tokens equal)"
    )
    if setup is Setup.STOCK:
        assert turn.reused_tokens == other.handle["remote_num_tokens"]
        run.of(setup).notes["control, a wrong handle below the router"] = f"is read, and seen: {verdicts}"
        assert not beside.is_right
        engines.release(turn.handle)
    else:
        said = leg.handle["boomerang"]
        run.of(setup).notes["a wrong handle below the router"] = (
            f"cut to {said['verified_tokens']} tokens ({said['reason']}): {verdicts}"
        )
        assert (said["verified_tokens"], said["reason"]) == (0, "another prompt")
        assert beside.is_right
