"""A leg whose node is given up, before and after something has come."""

import asyncio

import pytest

from router.engines.upstream import Broken
from router.fleet.breaker import Verdict
from router.fleet.leg import Leg
from router.turn.waiting import WhileExpected


class Nobody:
    """Takes verdicts and does nothing with them."""

    def tell(self, key: str, verdict: Verdict, why: str = "", **more: object) -> None: ...

    def busy(self, key: str, for_s: float = 1.0) -> None: ...

    def untried(self, key: str) -> None: ...


def a_leg() -> Leg:
    return Leg(Nobody(), "d", with_handle=False, on_trial=False)


async def test_who_waits_need_not_wait_on() -> None:
    leg = a_leg()
    asyncio.get_running_loop().call_soon(leg.give_up, "no answer to a probe")
    with pytest.raises(Broken, match="no answer to a probe"), WhileExpected(leg):
        await asyncio.Event().wait()
    assert leg.when_given_up is None


async def test_after_the_first_byte_nobody_is_interrupted() -> None:
    leg = a_leg()
    with WhileExpected(leg) as end_watch:
        end_watch()
        leg.give_up("no answer to a probe")
        await asyncio.sleep(0)
        await asyncio.sleep(0)


async def test_given_up_and_answered_at_once_the_answer_counts() -> None:
    leg, came = a_leg(), asyncio.Event()

    def both() -> None:
        came.set()
        leg.give_up("no answer to a probe")

    asyncio.get_running_loop().call_soon(both)
    with WhileExpected(leg) as end_watch:
        await came.wait()
        end_watch()
        for _ in range(5):
            await asyncio.sleep(0)


async def test_time_outs_of_others_stay_what_they_are() -> None:
    with pytest.raises(TimeoutError), WhileExpected(a_leg()):
        raise TimeoutError
