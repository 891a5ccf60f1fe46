import asyncio

from router.sim.clock import RealClock, VirtualClock


async def test_sleepers_wake_in_the_order_of_their_deadlines() -> None:
    clock, woken = VirtualClock(start_s=0.0), list[float]()

    async def sleeper(seconds: float) -> None:
        await clock.sleep(seconds)
        assert clock.now() >= seconds
        woken.append(seconds)

    await asyncio.gather(*(sleeper(seconds) for seconds in (3.0, 1.0, 2.0)))
    assert woken == [1.0, 2.0, 3.0]
    assert clock.now() == 3.0


async def test_what_can_run_runs_before_the_clock_moves() -> None:
    clock = VirtualClock(start_s=0.0)
    late = asyncio.ensure_future(clock.sleep(100))
    for _ in range(10):
        await clock.sleep(1)
    assert clock.now() == 10.0
    assert not late.done()
    clock.advance(90)
    await late
    assert clock.now() == 100.0


async def test_a_sleeper_that_is_cancelled_holds_nobody_up() -> None:
    clock = VirtualClock(start_s=0.0)
    gone = asyncio.ensure_future(clock.sleep(5))
    await asyncio.sleep(0)
    gone.cancel()
    await clock.sleep(7)
    assert clock.now() == 7.0


async def test_the_real_clock_moves_forward() -> None:
    clock = RealClock()
    before = clock.now()
    await clock.sleep(0)
    assert clock.now() >= before
