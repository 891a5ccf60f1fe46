"""An engine that misleads the router once: the turn is right all the same, and so is every later one.

And that although its prefix cache then holds wrong KV under right hashes.
"""

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest

from router.sim.faults import Fault
from router.sim.record import Corruption
from tests.e2e.asks import CHAT, MODEL, Ask, Message, passage
from tests.e2e.growing import ids_of
from tests.e2e.setups import pair
from tests.e2e.stage import Turn
from tests.e2e.world import World

RENDER = "/v1/chat/completions/render"


def ask(messages: Sequence[Message], tenant: str = "acme") -> Ask:
    return Ask(CHAT, {"model": MODEL, "messages": list(messages)}, tenant, "c")


def said(turn: Turn) -> Message:
    return {"role": "assistant", "content": turn.spoken.choices[0].content}


def opening() -> list[Message]:
    return [
        {"role": "system", "content": passage(1, 200)},
        {"role": "user", "content": passage(2, 100)},
    ]


def check(world: World, *turns: Turn) -> None:
    world.run(world.check(turns, disturbed=False))
    assert all(turn.status == 200 for turn in turns)


def only_the_first_read_was_wrong(world: World, *discarded: Corruption) -> None:
    """What P read before anybody could know; forgotten here, so that whatever follows is seen.

    ``discarded`` is what a prefill leg met whose answer was thrown away.
    """
    kinds = {record.kind for engine in world.prefills for record in engine.corruptions}
    assert kinds == {Corruption.FOREIGN_KV, *discarded}
    assert not any(engine.corruptions for engine in world.decodes)
    for engine in world.prefills:
        engine.corruptions.clear()


def later_turns_are_right(world: World, history: list[Message]) -> None:
    """The same conversation, the same history of another tenant, and a regenerated answer."""
    for _ in range(3):
        turn = world.run(world.turn(ask(history)))
        check(world, turn, world.run(world.turn(ask(history, "zeta"))))
        history = [*history, said(turn), {"role": "user", "content": passage(len(history), 30)}]
    check(world, world.run(world.turn(ask(history[:-2]))))


@pytest.mark.parametrize("prefills", [1, 2])
def test_a_prompt_that_is_rendered_otherwise_than_it_is_read(prefills: int) -> None:
    setup = pair("router", retokenise=1.0)
    with World(replace(setup, prefills=setup.prefills * prefills)) as world:
        history = opening()
        first = world.run(world.turn(ask(history)))
        held = world.run(ids_of(world.reference, first.ask)).held
        history += [said(first), {"role": "user", "content": passage(3, 30)}]
        lie = msgspec.json.encode({"token_ids": [*held, *range(1 << 30, (1 << 30) + 40)]}).decode()
        world.disturb(Fault(path=RENDER, status=200, body=lie), world.prefills)
        second = world.run(world.turn(ask(history)))
        only_the_first_read_was_wrong(world)
        check(world, second)
        assert (second.plan, second.reason) == ("cold", "mismatch")
        later_turns_are_right(world, [*history, said(second), {"role": "user", "content": "and?"}])


@pytest.mark.parametrize("restarts", [False, True])
def test_a_prompt_of_a_kind_that_was_read_as_rendered_before(restarts: bool) -> None:
    """Restarted, P is a process that nothing was ever compared with, and its leg had no salt all the same."""
    with World(pair("router", retokenise=1.0)) as world:
        history = opening()
        turn = world.run(world.turn(ask(history)))
        for depth in (3, 5):
            history += [said(turn), {"role": "user", "content": passage(depth, 30)}]
            if depth == 5:
                held = world.run(ids_of(world.reference, turn.ask)).held
                lie = msgspec.json.encode({"token_ids": [*held, *range(1 << 30, (1 << 30) + 40)]}).decode()
                world.disturb(Fault(path=RENDER, status=200, body=lie), world.prefills)
                for engine in world.prefills if restarts else ():
                    engine.restart()
            turn = world.run(world.turn(ask(history)))
            if depth == 3:
                assert turn.plan in ("pull", "local"), "this reading was compared, and agreed with"
        only_the_first_read_was_wrong(world)
        check(world, turn)
        assert (turn.plan, turn.reason) == ("cold", "mismatch")
        later_turns_are_right(world, [*history, said(turn), {"role": "user", "content": "and?"}])


@pytest.mark.parametrize("restarts", [False, True])
def test_a_prefill_node_that_has_lost_its_plugin(restarts: bool) -> None:
    """Restarted or not, and not yet probed again."""
    with World(pair("engine", retokenise=1.0)) as world:
        history = opening()
        first = world.run(world.turn(ask(history)))
        history += [said(first), {"role": "user", "content": passage(3, 30)}]
        for engine in world.prefills:
            engine.config = replace(engine.config, plugin=False)
            if restarts:
                engine.restart()
        second = world.run(world.turn(ask(history)))
        only_the_first_read_was_wrong(world)
        check(world, second)
        assert (second.plan, second.reason) == ("cold", "mismatch")
        later_turns_are_right(world, [*history, said(second), {"role": "user", "content": "and?"}])


def test_a_lie_that_nobody_can_compare_taints_nothing() -> None:
    """P reads, and its connection breaks: the first such prompt ran under a salt that nothing else has."""
    with World(pair("router", retokenise=1.0)) as world:
        history = opening()
        first = world.run(world.turn(ask(history)))
        held = world.run(ids_of(world.reference, first.ask)).held
        history += [said(first), {"role": "user", "content": passage(3, 30)}]
        lie = msgspec.json.encode({"token_ids": [*held, *range(1 << 30, (1 << 30) + 40)]}).decode()
        world.disturb(Fault(path=RENDER, status=200, body=lie), world.prefills)
        world.disturb(Fault(path=CHAT, cut_after_chunks=0, with_handle=True), world.prefills)
        second = world.run(world.turn(ask(history)))
        only_the_first_read_was_wrong(world)
        check(world, second)
        assert (second.plan, second.reason) == ("cold", "retry")
        later_turns_are_right(world, [*history, said(second), {"role": "user", "content": "and?"}])


@pytest.mark.parametrize("restarts", [False, True])
def test_a_lost_plugin_that_nobody_could_notice_at_once(restarts: bool) -> None:
    """The leg that was not verified broke; the next answer shows that it may have been wrong."""
    with World(pair("engine", retokenise=1.0)) as world:
        history = opening()
        first = world.run(world.turn(ask(history)))
        history += [said(first), {"role": "user", "content": passage(3, 30)}]
        for engine in world.prefills:
            engine.config = replace(engine.config, plugin=False)
            if restarts:
                engine.restart()
        world.disturb(Fault(path=CHAT, cut_after_chunks=0, with_handle=True), world.prefills)
        second = world.run(world.turn(ask(history)))
        only_the_first_read_was_wrong(world, Corruption.TAINTED_CACHE)
        check(world, second)
        later_turns_are_right(world, [*history, said(second), {"role": "user", "content": "and?"}])
